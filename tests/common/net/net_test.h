/* Functions that the tests of common/net share: deadlines, and a pair of transports. */
#ifndef TESTS_COMMON_NET_NET_TEST_H
#define TESTS_COMMON_NET_NET_TEST_H

#include "common/base/clock.h"
#include "common/net/transport.h"
#include "tests/support/check.h"

/* A generous limit, which is reached only if something hangs. */
#define TEST_LIMIT_NS (60 * NS_PER_S)

/* A server (rank 0) and a client (rank 1), after the client's link to the server has been established. */
typedef struct net_pair {
    transport_hub *hub;
    transport *server, *client;
    int link; /* The client's link to the server. */
    char url[128];
    /* Ticket of the client's sends. It must stay until both transports are closed. */
    transport_ticket ticket;
} net_pair;

/* Opens both transports. `scheme` is "inproc", "ipc" or "tcp". If the scheme needs a hub, sets the hub in the
 * options. */
void net_pair_open(net_pair *pair, const char *scheme, transport_options server, transport_options client);
void net_pair_close(net_pair *pair, int64_t flush_ns);

/* Waits for a message. Fails the test if none arrives within TEST_LIMIT_NS. */
void net_receive(transport *t, transport_message *out);
/* Waits until receiving fails, and returns the code. Releases the messages that arrive before. */
status net_receive_failure(transport *t);
/* Sends a message, and waits if there is no room for it. */
void net_send(transport *t, int link, const message_header *header, const message_frame *frames, int count,
              transport_ticket *ticket);
#define TEST_KEY "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

/* Writes "tcp://127.0.0.1:PORT", where PORT is a free port of this host. */
void net_free_port_url(char *url, size_t size);

/* Writes an unused url of the scheme, such as "ipc://@psring-test-PID-3". */
void net_url(const char *scheme, char *url, size_t size);

#endif
