/* Lets the k-th allocation fail, for every k, and checks that nothing crashes or leaks, and that the error
 * says "no memory". The linker (--wrap) replaces the allocation functions that the code under test calls, but
 * not the functions that libraries call. */
#include "tests/common/net/net_test.h"
#include "tests/common/net/transport_fault.h"

#include "common/net/link.h"
#include "common/net/rendezvous.h"
#include "common/net/shm.h"
#include "common/net/status_table.h"
#include "tests/support/status_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static _Thread_local long countdown = -1; /* Number of allocations until one fails, or -1 if none fails. */

static bool fails_now(void)
{
    return countdown >= 0 && countdown-- == 0;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
char *__wrap_strdup(const char *text);

void *__wrap_malloc(size_t bytes)
{
    return fails_now() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails_now() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails_now() ? NULL : __real_aligned_alloc(alignment, bytes);
}

char *__wrap_strdup(const char *text)
{
    return fails_now() ? NULL : __real_strdup(text);
}

static status use_status_table(void)
{
    status_table *b, *again;
    TRY(status_table_create(1, 2, &b));
    status result =
        status_table_attach(dup(status_table_memory_fd(b)), dup(status_table_notify_fd(b)), 1, 2, &again);
    if (result == STATUS_OK) status_table_close(&again);
    status_table_close(&b);
    return result;
}

static status use_exchange(void)
{
    shm_segment own = {0}, peers[1];
    TRY(shm_create("test", 100, &own));
    const shm_exchange_options options = {.name = "alone",
                                          .token = 9,
                                          .world = 1,
                                          .own = &own,
                                          .count = 1,
                                          .deadline_ns = clock_now_ns() + TEST_LIMIT_NS};
    status result = shm_exchange(&options, peers);
    shm_close(&own);
    return result;
}

static status converse(transport *server, transport *client, int link, transport_ticket *ticket)
{
    const message_frame frame = {"frame", 5};
    int64_t until = clock_now_ns() + TEST_LIMIT_NS;
    bool sent = false;
    while (clock_now_ns() < until) {
        transport_message m;
        status result =
            sent ? STATUS_OK
                 : transport_send(client, link, &(message_header){.kind = MESSAGE_PUSH}, &frame, 1, ticket);
        sent = sent || result == STATUS_OK;
        if (result == STATUS_OK || result == STATUS_AGAIN) result = transport_receive(server, &m);
        if (result == STATUS_OK) {
            transport_release(server, &m);
            return STATUS_OK;
        }
        if (result != STATUS_AGAIN) return result;
        TRY(transport_wait(client, clock_now_ns() + NS_PER_MS));
    }
    return STATUS_PEER;
}

static status use_transport(void)
{
    transport_options options[2] = {transport_defaults(0, 2, 1, 100), transport_defaults(1, 2, 1, 100)};
    transport *server = NULL, *client = NULL;
    transport_ticket ticket = {0};
    char url[128];
    int link;
    net_adapter adapter = {.link = {.bytes_per_second = 1000 * NS_PER_S}};
    options[1].adapter = &adapter;
    net_url("ipc", url, sizeof url);
    status result = transport_open(&transport_zmq, &options[0], &server);
    if (result == STATUS_OK) result = transport_open(&transport_zmq, &options[1], &client);
    if (result == STATUS_OK) transport_inject(client, TRANSPORT_DOUBLE, 0);
    if (result == STATUS_OK) result = transport_listen(server, url, NULL, 0);
    if (result == STATUS_OK) result = transport_connect(client, 0, url, &link);
    if (result == STATUS_OK) result = converse(server, client, link, &ticket);
    transport_close(&client, 0);
    transport_close(&server, 0);
    return transport_sent(&ticket) ? result : STATUS_INTERNAL;
}

static status use_rendezvous(void)
{
    char url[128];
    double one = 1;
    net_url("ipc", url, sizeof url);
    const rendezvous_options options = {.url = url,
                                        .world = 1,
                                        .key = TEST_KEY,
                                        .program = "p",
                                        .config_text = "c",
                                        .connect_limit_ns = TEST_LIMIT_NS};
    rendezvous *r = NULL;
    TRY(rendezvous_open(&options, &r));
    status result = rendezvous_sum(r, "one", &one, 1, clock_now_ns() + TEST_LIMIT_NS);
    rendezvous_close(&r);
    return result;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        status (*use)(void);
        int at_least; /* Least number of allocations that the case is expected to make. */
    } cases[] = {
        {"table", use_status_table, 2},
        {"exchange", use_exchange, 2},
        {"transport", use_transport, 10},
        {"rendezvous", use_rendezvous, 6},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int failures = 0;
        for (long k = 0;; k++) {
            countdown = k;
            status result = cases[c].use();
            bool reached = countdown < 0;
            countdown = -1;
            if (!reached) {
                assert_int_equal(result, STATUS_OK);
                break;
            }
            failures++;
            if (result != STATUS_SYSTEM || !strstr(error_message(), "memory"))
                fail_msg("%s, allocation %ld: found %s '%s'", cases[c].name, k, status_name(result),
                         error_message());
            error_clear();
        }
        if (failures < cases[c].at_least)
            fail_msg("%s: %d allocations, expected more", cases[c].name, failures);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_may_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
