/* Runs ranks as threads that meet at a rendezvous. */
#ifndef TESTS_COMMON_NET_RENDEZVOUS_TEST_H
#define TESTS_COMMON_NET_RENDEZVOUS_TEST_H

#include "common/net/rendezvous.h"

#include "tests/common/net/net_test.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MEET_MAX = 8 };

/* One rank: opens a rendezvous, runs `body` if that succeeded, and closes the rendezvous. */
typedef struct meeting {
    rendezvous_options options;
    status (*body)(rendezvous *r, const rendezvous_options *options); /* May be NULL. */
    int64_t delay_ns; /* Delay before the rank opens its rendezvous. */
    status result;
    char message[1024];
    atomic_bool ended;
    pthread_t thread;
} meeting;

rendezvous_options meet_options(const char *url, int rank, int world);
void meet_start(meeting *m);
void meet_join(meeting *m);
/* Starts all ranks, and waits until they have ended. */
void meet(meeting *ranks, int count);
/* Fails the test unless the rank ended with `code` and a message that contains `text`. */
void meet_check(const meeting *m, status code, const char *text);

#endif
