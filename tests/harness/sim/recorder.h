/* Records the communication of ranks: calls of collectives, and messages. The program is linked with --wrap
 * for the functions that are recorded. */
#ifndef TESTS_HARNESS_SIM_RECORDER_H
#define TESTS_HARNESS_SIM_RECORDER_H

#include <stdint.h>

typedef enum recorded_kind { RECORDED_CALL, RECORDED_MESSAGE } recorded_kind;

typedef struct recorded {
    recorded_kind kind;
    int rank, peer;      /* Sender and receiver of a message. The peer of a call is -1. */
    int server;          /* True if the sender is a server. */
    int what;            /* A collective_kind for a call, or a message_kind. */
    int64_t step_or_tag; /* The step in the header of a message, or the tag of a call. */
    int64_t key_or_root;
    int64_t bytes;
} recorded;

enum { RECORDER_MOST = 1 << 16 };

void recorder_start(void);
/* Stops recording. Returns the records sorted by (rank, server, peer, what). Records that are equal in all
 * four stay in the order in which they were made. The recorder owns the result. */
const recorded *recorder_stop(int *count);

#endif
