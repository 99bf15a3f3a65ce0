/* Shared by the tests of common/net: cmocka with its prerequisites, deadlines, a pair of transports. */
#ifndef TESTS_COMMON_NET_NET_TEST_H
#define TESTS_COMMON_NET_NET_TEST_H

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/net/transport.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h> /* last: it defines a macro fail() */

#undef fail /* is ours, of status.h */
#undef fail_msg
#define fail_msg(...)                                                                                \
    do {                                                                                             \
        print_error("ERROR: " __VA_ARGS__);                                                          \
        print_error("\n");                                                                           \
        _fail(__FILE__, __LINE__);                                                                   \
    } while (0)

/* Generous: reached only where something hangs. */
#define TEST_LIMIT_NS (60 * NS_PER_S)

#define assert_ok(expression)                                                                        \
    do {                                                                                             \
        status assert_ok_ = (expression);                                                            \
        if (assert_ok_ != STATUS_OK)                                                                 \
            fail_msg("%s: %s: %s", #expression, status_name(assert_ok_), error_message());           \
    } while (0)

/* The expression fails with `code`, and the message contains `text`. Clears the record. */
#define assert_fails(expression, code, text)                                                         \
    do {                                                                                             \
        status assert_fails_ = (expression);                                                         \
        if (assert_fails_ != (code) || !strstr(error_message(), text))                               \
            fail_msg("%s: found %s '%s', expected %s '%s'", #expression, status_name(assert_fails_), \
                     error_message(), status_name(code), text);                                      \
        error_clear();                                                                               \
    } while (0)

/* A server (rank 0) and a client (rank 1), the latter's link to the former up. */
typedef struct net_pair {
    transport_hub *hub;
    transport *server, *client;
    int link; /* of the client, to the server */
    char url[128];
    transport_ticket ticket; /* of the client's sends: needed until all is closed */
} net_pair;

/* `scheme` is "inproc", "ipc" or "tcp". The options' hub is set here where it is needed. */
void net_pair_open(net_pair *pair, const char *scheme, transport_options server, transport_options client);
void net_pair_close(net_pair *pair, int64_t flush_ns);

/* Waits for a message; fails the test at TEST_LIMIT_NS. */
void net_receive(transport *t, transport_message *out);
/* Waits until receiving fails, and returns the code. Releases what comes before. */
status net_receive_failure(transport *t);
/* Sends, waiting for room. */
void net_send(transport *t, int link, const message_header *header, const message_frame *frames, int count,
              transport_ticket *ticket);
#define TEST_KEY "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

/* A port of this host that is free now, as "tcp://127.0.0.1:PORT". */
void net_free_port_url(char *url, size_t size);

/* A free url of the scheme: "ipc://@psring-test-PID-3". */
void net_url(const char *scheme, char *url, size_t size);

#endif
