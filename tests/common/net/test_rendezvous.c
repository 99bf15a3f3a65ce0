#include "tests/common/net/rendezvous_test.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int64_t soon(void)
{
    return clock_now_ns() + TEST_LIMIT_NS;
}

static status call_everything(rendezvous *r, const rendezvous_options *o)
{
    rendezvous_blob all[MEET_MAX], one;
    char text[32];
    int used = snprintf(text, sizeof text, "I am %d", o->rank);
    TRY(rendezvous_allgather(r, "names", text, (size_t)used * (o->rank != 1), soon(), all));
    for (int i = 0; i < o->world; i++) {
        snprintf(text, sizeof text, "I am %d", i);
        size_t expected = i == 1 ? 0 : strlen(text);
        if (all[i].bytes != expected || memcmp(all[i].data, text, expected) != 0)
            return fail(STATUS_MISMATCH, "allgather: blob %d", i);
    }
    for (int round = 0; round < 3; round++) {
        double number = o->rank == 2 ? 3.5 + round : -1;
        TRY(rendezvous_broadcast(r, "number", 2, &number, sizeof number, soon(), &one));
        if (one.bytes != sizeof number || *(const double *)one.data != 3.5 + round)
            return fail(STATUS_MISMATCH, "broadcast");
    }
    TRY(rendezvous_barrier(r, "wait", soon()));
    double values[2] = {o->rank + 1, 0.1};
    TRY(rendezvous_sum(r, "total", values, 2, soon()));
    double expected = 0;
    for (int i = 0; i < o->world; i++) expected = i == 0 ? 0.1 : expected + 0.1;
    if (values[0] != o->world * (o->world + 1) / 2 || values[1] != expected)
        return fail(STATUS_MISMATCH, "sum: %g %.17g", values[0], values[1]);
    const rendezvous_member *members = rendezvous_members(r);
    for (int i = 0; i < o->world; i++)
        if (members[i].pid != getpid() || !members[i].host[0] || members[i].host_id != members[0].host_id)
            return fail(STATUS_MISMATCH, "member %d: pid %d host '%s'", i, (int)members[i].pid,
                        members[i].host);
    return STATUS_OK;
}

static void all_ranks_meet_and_call(meeting *ranks, const char *url, transport_hub *hub, uint64_t token)
{
    enum { WORLD = 4 };
    for (int i = 0; i < WORLD; i++) {
        ranks[i] = (meeting){.options = meet_options(url, i, WORLD), .body = call_everything};
        ranks[i].options.hub = hub;
        ranks[i].options.token = token;
    }
    meet(ranks, WORLD);
    for (int i = 0; i < WORLD; i++) meet_check(&ranks[i], STATUS_OK, "");
}

static void ranks_meet_over_every_kind_of_url(void **state)
{
    (void)state;
    meeting ranks[MEET_MAX];
    char url[128], port[16];
    net_url("ipc", url, sizeof url);
    all_ranks_meet_and_call(ranks, url, NULL, 42);
    net_free_port_url(url, sizeof url);
    all_ranks_meet_and_call(ranks, url, NULL, 0);
    transport_hub *hub;
    assert_ok(transport_hub_open(&hub));
    net_url("inproc", url, sizeof url);
    all_ranks_meet_and_call(ranks, url, hub, 42);
    transport_hub_close(&hub);

    net_free_port_url(url, sizeof url);
    snprintf(port, sizeof port, "%s", strrchr(url, ':') + 1);
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("MASTER_PORT", port, 1);
    all_ranks_meet_and_call(ranks, "env://", NULL, 42);
    unsetenv("MASTER_ADDR");
    meeting alone = {.options = meet_options("env://", 0, 1)};
    meet(&alone, 1);
    meet_check(&alone, STATUS_CONFIG, "MASTER_ADDR is not set");
}

static void a_file_holds_the_address_until_the_end_and_a_stale_one_does_no_harm(void **state)
{
    (void)state;
    char folder[] = "/tmp/test-psring-rendezvous-XXXXXX", url[128];
    assert_non_null(mkdtemp(folder));
    snprintf(url, sizeof url, "file://%s/address", folder);
    const char *path = url + strlen("file://");
    meeting ranks[MEET_MAX];
    static const char *const stale[] = {NULL, "", "tcp://127.0.0.1:1 00000000000000ff\n", "tcp://127.0.0.1:1",
                                        "junk\n"};
    for (size_t i = 0; i < sizeof stale / sizeof stale[0]; i++)
        for (uint64_t token = 0; token <= 42; token += 42) {
            if (stale[i]) {
                FILE *file = fopen(path, "w");
                fputs(stale[i], file);
                fclose(file);
            }
            all_ranks_meet_and_call(ranks, url, NULL, token);
            assert_int_not_equal(access(path, F_OK), 0);
        }
    assert_int_equal(mkfifo(path, 0600), 0); /* what somebody else may put there: to open it must not block */
    all_ranks_meet_and_call(ranks, url, NULL, 42);
    assert_int_equal(rmdir(folder), 0); /* nothing temporary is left either */
}

static void a_rank_that_comes_before_the_store_waits_for_it(void **state)
{
    (void)state;
    static const char *const schemes[] = {"ipc", "tcp", "inproc"};
    for (int s = 0; s < 3; s++) {
        char url[128];
        transport_hub *hub = NULL;
        if (s == 1)
            net_free_port_url(url, sizeof url);
        else
            net_url(schemes[s], url, sizeof url);
        if (s == 2) assert_ok(transport_hub_open(&hub));
        meeting ranks[3];
        for (int i = 0; i < 3; i++) {
            ranks[i] = (meeting){.options = meet_options(url, i, 3), .body = call_everything};
            ranks[i].delay_ns = i == 0 ? 300 * NS_PER_MS : 0;
            ranks[i].options.hub = hub;
        }
        meet(ranks, 3);
        for (int i = 0; i < 3; i++) meet_check(&ranks[i], STATUS_OK, "");
        transport_hub_close(&hub);
    }
}

static void nobody_at_the_address_ends_at_the_connect_limit_and_names_it(void **state)
{
    (void)state;
    static const struct {
        const char *url, *text;
    } cases[] = {
        {"tcp://127.0.0.1:1", "rendezvous at tcp://127.0.0.1:1: rank 1 did not reach rank 0 within 200 ms"},
        {"tcp://no-such-host.invalid:5000", "the name 'no-such-host.invalid' is not known"},
        {"ipc://@psring-nobody", "ipc://@psring-nobody"},
        {"file:///tmp/psring-no-such-file", "there is no such file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        meeting m = {.options = meet_options(cases[i].url, 1, 2)};
        m.options.connect_limit_ns = 200 * NS_PER_MS;
        meet(&m, 1);
        meet_check(&m, STATUS_PEER, cases[i].text);
    }
}

static void a_malformed_url_is_refused(void **state)
{
    (void)state;
    static const char *const urls[] = {
        "", "tcp://", "tcp://host", "tcp://host:99999", "ipc:///tmp/x", "http://a:1", "file://"};
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        meeting m = {.options = meet_options(urls[i], 0, 1)};
        meet(&m, 1);
        meet_check(&m, STATUS_USAGE, "");
    }
}

static void missing_ranks_are_listed_on_every_rank_that_came(void **state)
{
    (void)state;
    char url[128];
    net_url("ipc", url, sizeof url);
    meeting ranks[2] = {{.options = meet_options(url, 0, 5)}, {.options = meet_options(url, 3, 5)}};
    for (int i = 0; i < 2; i++) ranks[i].options.connect_limit_ns = 3 * NS_PER_S;
    meet(ranks, 2);
    for (int i = 0; i < 2; i++) {
        meet_check(&ranks[i], STATUS_PEER, "from ranks 1, 2, 4");
        meet_check(&ranks[i], STATUS_PEER, url);
    }
}

static atomic_int others_ended;

static status late_for_the_barrier(rendezvous *r, const rendezvous_options *o)
{
    if (o->rank == 1) {
        while (atomic_load(&others_ended) < 2) clock_sleep_ns(NS_PER_MS);
        return rendezvous_barrier(r, "tea", soon());
    }
    status result = rendezvous_barrier(r, "tea", clock_now_ns() + NS_PER_S);
    atomic_fetch_add(&others_ended, 1);
    return result;
}

static void a_late_rank_is_named_and_learns_why_it_is_alone(void **state)
{
    (void)state;
    char url[128];
    net_url("ipc", url, sizeof url);
    meeting ranks[3];
    for (int i = 0; i < 3; i++)
        ranks[i] = (meeting){.options = meet_options(url, i, 3), .body = late_for_the_barrier};
    meet(ranks, 3);
    meet_check(&ranks[0], STATUS_PEER, "barrier 'tea': no call from rank 1 in time");
    meet_check(&ranks[2], STATUS_PEER, "barrier 'tea': no call from rank 1 in time");
    assert_int_equal(ranks[1].result, STATUS_PEER);
}

static status different_calls(rendezvous *r, const rendezvous_options *o)
{
    double values[2] = {0, 0};
    rendezvous_blob out[MEET_MAX];
    if (strcmp(o->program, "sizes") == 0)
        return rendezvous_sum(r, "loss", values, 1 + (o->rank == 1), soon());
    if (strcmp(o->program, "roots") == 0)
        return rendezvous_broadcast(r, "seed", o->rank, values, 8, soon(), out);
    if (o->rank == 1) return rendezvous_barrier(r, "save", soon());
    return rendezvous_sum(r, "loss", values, 1, soon());
}

static void ranks_that_make_different_calls_are_both_named(void **state)
{
    (void)state;
    static const struct {
        const char *program, *text[2];
    } cases[] = {
        {"calls", {"calls barrier 'save'", "calls sum 'loss'"}},
        {"sizes", {"has 8", "has 16"}},
        {"roots", {"(root 0)", "(root 1)"}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        char url[128];
        net_url("ipc", url, sizeof url);
        meeting ranks[2];
        for (int i = 0; i < 2; i++) {
            ranks[i] = (meeting){.options = meet_options(url, i, 2), .body = different_calls};
            ranks[i].options.program = cases[c].program;
        }
        meet(ranks, 2);
        for (int i = 0; i < 4; i++) meet_check(&ranks[i / 2], STATUS_PROTOCOL, cases[c].text[i % 2]);
    }
}

static bool always(void *context)
{
    (void)context;
    return true;
}

static void a_stop_request_ends_the_wait(void **state)
{
    (void)state;
    char url[128];
    net_url("ipc", url, sizeof url);
    meeting m = {.options = meet_options(url, 0, 2)};
    m.options.canceled = always;
    meet(&m, 1);
    meet_check(&m, STATUS_STOPPED, "stopped on request");
}

static void the_status_cell_shows_the_wait_and_counts_as_progress(void **state)
{
    (void)state;
    static rank_slot slot;
    rank_slot_begin(&slot, 0);
    meeting m = {.options = meet_options("ipc://@psring-alone", 1, 2)};
    m.options.slot = &slot;
    m.options.connect_limit_ns = NS_PER_S;
    meet(&m, 1);
    rank_status s;
    rank_slot_read(&slot, &s);
    assert_int_equal(s.operation, RANK_RENDEZVOUS);
    assert_true(s.progress >= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_meet_over_every_kind_of_url),
        cmocka_unit_test(a_file_holds_the_address_until_the_end_and_a_stale_one_does_no_harm),
        cmocka_unit_test(a_rank_that_comes_before_the_store_waits_for_it),
        cmocka_unit_test(nobody_at_the_address_ends_at_the_connect_limit_and_names_it),
        cmocka_unit_test(a_malformed_url_is_refused),
        cmocka_unit_test(missing_ranks_are_listed_on_every_rank_that_came),
        cmocka_unit_test(a_late_rank_is_named_and_learns_why_it_is_alone),
        cmocka_unit_test(ranks_that_make_different_calls_are_both_named),
        cmocka_unit_test(a_stop_request_ends_the_wait),
        cmocka_unit_test(the_status_cell_shows_the_wait_and_counts_as_progress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
