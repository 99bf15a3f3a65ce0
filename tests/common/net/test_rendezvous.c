#include "tests/common/net/rendezvous_test.h"

#include "common/net/rendezvous_impl.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int64_t soon(void)
{
    return clock_now_ns() + TEST_LIMIT_NS;
}

/* Gathers texts of several lengths: empty, shorter than a piece of 1 MiB, several whole pieces, and several
 * pieces and a part of one. */
static status gather_texts(rendezvous *r, const rendezvous_options *o)
{
    static const size_t lengths[MEET_MAX] = {100, 0, 2 << 20, (3 << 20) + 12345};
    text_buffer all[MEET_MAX] = {0};
    char *mine = malloc(lengths[o->rank] + 1);
    if (!mine) return fail(STATUS_SYSTEM, "no memory for a text");
    for (size_t i = 0; i < lengths[o->rank]; i++) mine[i] = (char)('a' + (i / 1000 + (size_t)o->rank) % 26);
    status rc = rendezvous_gather(r, "texts", o->rank, o->world, mine, lengths[o->rank], TEST_LIMIT_NS, all);
    for (int rank = 0; rank < o->world && rc == STATUS_OK; rank++) {
        size_t expected = o->rank == 0 ? lengths[rank] : 0;
        if (all[rank].length != expected)
            rc = fail(STATUS_MISMATCH, "gather: %zu bytes of rank %d", all[rank].length, rank);
        for (size_t i = 0; i < expected && rc == STATUS_OK; i++)
            if (all[rank].data[i] != (char)('a' + (i / 1000 + (size_t)rank) % 26))
                rc = fail(STATUS_MISMATCH, "gather: byte %zu of rank %d", i, rank);
        text_free(&all[rank]);
    }
    free(mine);
    return rc;
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
    TRY(gather_texts(r, o));
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

static void localhost_needs_no_resolver(void **state)
{
    (void)state;
    static const char *const urls[] = {"tcp://localhost:29500", "env://"};
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("MASTER_PORT", "29500", 1);
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        rendezvous_endpoints endpoints;
        assert_ok(rendezvous_address_parse(urls[i], &endpoints));
        assert_string_equal(endpoints.connect, "tcp://127.0.0.1:29500");
    }
    unsetenv("MASTER_ADDR");
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
    /* Another program may have put a FIFO there. Opening it must not block. */
    assert_int_equal(mkfifo(path, 0600), 0);
    all_ranks_meet_and_call(ranks, url, NULL, 42);
    assert_int_equal(rmdir(folder), 0); /* This succeeds only if no temporary file is left either. */
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
        {"file:///tmp/psring-no-such-file", "the file does not exist or is not from this job"},
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

/* Works for 1.2 s, then makes the call that the other ranks have already made with a limit of 0.5 s. */
static status late_call(rendezvous *r, const rendezvous_options *o)
{
    rank_slot *slot = status_table_slot(o->table, o->rank);
    for (int i = 0; i < 60 && o->rank == 1; i++) {
        clock_sleep_ns(20 * NS_PER_MS);
        rank_slot_enter(slot, RANK_FORWARD, clock_now_ns());
    }
    return rendezvous_barrier(r, "late", clock_now_ns() + NS_PER_S / 2);
}

/* Runs the ranks. If `own` is set, each rank has a separate status table, otherwise all share one. */
static void meet_with_tables(meeting *ranks, int count, bool own)
{
    status_table *tables[MEET_MAX];
    for (int i = 0; i < count; i++) {
        if (i == 0 || own) assert_ok(status_table_create(42, count, &tables[i]));
        if (i > 0 && !own) tables[i] = tables[0];
        ranks[i].options.table = tables[i];
        ranks[i].options.exchanges_status = own;
        ranks[i].options.slot = status_table_slot(tables[i], i);
        rank_slot_begin(ranks[i].options.slot, i);
    }
    meet(ranks, count);
    for (int i = 0; i < count; i++)
        if (i == 0 || own) status_table_close(&tables[i]);
}

static void a_call_waits_for_a_rank_that_makes_progress(void **state)
{
    (void)state;
    for (int own = 0; own < 2; own++) {
        char url[128];
        meeting ranks[3];
        net_url("ipc", url, sizeof url);
        for (int i = 0; i < 3; i++)
            ranks[i] = (meeting){.options = meet_options(url, i, 3), .body = late_call};
        meet_with_tables(ranks, 3, own);
        for (int i = 0; i < 3; i++) meet_check(&ranks[i], STATUS_OK, "");
    }
}

/* A rank may be up to two steps ahead of another one. Ranks 1 and 2 get a signal in step 50. */
enum { STOPPERS = 3, AHEAD = 2 };
static _Atomic int64_t steps_done[STOPPERS];

static status run_until_stopped(rendezvous *r, const rendezvous_options *o)
{
    (void)r;
    int64_t step = 0;
    for (; !job_stop_here(o->table, o->rank, step, false); step++) {
        for (int other = 0; other < STOPPERS; other++)
            while (atomic_load(&steps_done[other]) + AHEAD < step) clock_sleep_ns(NS_PER_MS / 10);
        if (step == 50 && o->rank > 0) job_stop_hold(o->table, o->rank == 1 ? 15 : 10);
        atomic_store(&steps_done[o->rank], step + 1);
    }
    return job_stop_requested(o->table) != 0 ? STATUS_OK : STATUS_INTERNAL;
}

static void ranks_without_a_common_table_stop_after_the_same_step(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        char url[128];
        meeting ranks[STOPPERS];
        net_url("ipc", url, sizeof url);
        for (int k = 0; k < STOPPERS; k++) {
            atomic_store(&steps_done[k], 0);
            ranks[k] = (meeting){.options = meet_options(url, k, STOPPERS), .body = run_until_stopped};
        }
        meet_with_tables(ranks, STOPPERS, true);
        for (int k = 0; k < STOPPERS; k++) {
            meet_check(&ranks[k], STATUS_OK, "");
            assert_int_equal(steps_done[k], steps_done[0]);
        }
        assert_true(steps_done[0] > 50);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_meet_over_every_kind_of_url),
        cmocka_unit_test(localhost_needs_no_resolver),
        cmocka_unit_test(a_file_holds_the_address_until_the_end_and_a_stale_one_does_no_harm),
        cmocka_unit_test(a_rank_that_comes_before_the_store_waits_for_it),
        cmocka_unit_test(nobody_at_the_address_ends_at_the_connect_limit_and_names_it),
        cmocka_unit_test(a_malformed_url_is_refused),
        cmocka_unit_test(missing_ranks_are_listed_on_every_rank_that_came),
        cmocka_unit_test(a_late_rank_is_named_and_learns_why_it_is_alone),
        cmocka_unit_test(ranks_that_make_different_calls_are_both_named),
        cmocka_unit_test(a_stop_request_ends_the_wait),
        cmocka_unit_test(the_status_cell_shows_the_wait_and_counts_as_progress),
        cmocka_unit_test(a_call_waits_for_a_rank_that_makes_progress),
        cmocka_unit_test(ranks_without_a_common_table_stop_after_the_same_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
