#include "tests/common/net/rendezvous_test.h"

#include "common/net/rendezvous_impl.h"
#include "common/net/zmq_socket.h"
#include "tests/support/status_name.h"

#include <stdio.h>
#include <zmq.h>

/* The difference between rank 1 and rank 0, and the message that both ranks report. */
typedef struct refusal {
    const char *name;
    void (*change)(rendezvous_options *o);
    status code;
    const char *text[2]; /* Both values, which the messages of both ranks must contain. */
} refusal;

static void other_program(rendezvous_options *o)
{
    o->program = "2.0";
}

static void other_hash(rendezvous_options *o)
{
    o->config_hash = 8;
}

static void other_seed(rendezvous_options *o)
{
    o->config_hash = 8;
    o->config_text = "model = toy\nseed = 2\nbatch = 4\n";
}

static void less_text(rendezvous_options *o)
{
    o->config_hash = 8;
    o->config_text = "model = toy";
}

static void other_world(rendezvous_options *o)
{
    o->world = 3;
}

static void high_rank(rendezvous_options *o)
{
    o->rank = 2;
}

static void ranks_that_differ_are_refused_with_both_values_on_both_sides(void **state)
{
    (void)state;
    static const refusal cases[] = {
        {"program", other_program, STATUS_PROTOCOL, {"rank 1 has '2.0'", "rank 0 has '1.0'"}},
        {"hash",
         other_hash,
         STATUS_PROTOCOL,
         {"rank 1 has hash 0000000000000008", "rank 0 has 0000000000000007"}},
        {"seed", other_seed, STATUS_PROTOCOL, {"rank 1 has 'seed = 2'", "rank 0 has 'seed = 1'"}},
        {"text", less_text, STATUS_PROTOCOL, {"rank 1 has ''", "rank 0 has 'seed = 1'"}},
        {"world", other_world, STATUS_CONFIG, {"rank 1 has 3", "rank 0 has 2"}},
        {"rank", high_rank, STATUS_CONFIG, {"got 2", "expected 0 to 1"}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        char url[128];
        net_url("ipc", url, sizeof url);
        meeting ranks[2];
        for (int i = 0; i < 2; i++) {
            ranks[i] = (meeting){.options = meet_options(url, i, 2)};
            ranks[i].options.config_text = "model = toy\nseed = 1\nbatch = 4\n";
        }
        cases[c].change(&ranks[1].options);
        if (cases[c].change == other_hash) ranks[1].options.config_text = ranks[0].options.config_text;
        meet(ranks, 2);
        for (int i = 0; i < 4; i++) meet_check(&ranks[i / 2], cases[c].code, cases[c].text[i % 2]);
    }
}

static status wait_for_the_stranger(rendezvous *r, const rendezvous_options *o)
{
    (void)o;
    return rendezvous_barrier(r, "end", clock_now_ns() + TEST_LIMIT_NS);
}

/* Two claim the same rank. The one that comes second is refused. */
static void a_second_claim_to_a_rank_is_refused_and_the_first_stays(void **state)
{
    (void)state;
    char url[128];
    net_url("ipc", url, sizeof url);
    meeting ranks[3], twin = {.options = meet_options(url, 1, 3), .body = wait_for_the_stranger};
    for (int i = 0; i < 3; i++)
        ranks[i] = (meeting){.options = meet_options(url, i, 3), .body = wait_for_the_stranger};
    meet_start(&ranks[0]);
    meet_start(&ranks[1]);
    meet_start(&twin);
    while (!atomic_load(&ranks[1].ended) && !atomic_load(&twin.ended)) clock_sleep_ns(NS_PER_MS);
    bool twin_is_second = atomic_load(&twin.ended);
    meet_start(&ranks[2]);
    for (int i = 0; i < 3; i++) meet_join(&ranks[i]);
    meet_join(&twin);
    meet_check(twin_is_second ? &twin : &ranks[1], STATUS_CONFIG, "rank 1 is taken twice");
    meet_check(twin_is_second ? &ranks[1] : &twin, STATUS_OK, "");
    meet_check(&ranks[0], STATUS_OK, "");
    meet_check(&ranks[2], STATUS_OK, "");
}

static void a_rank_of_another_job_is_refused_and_this_job_goes_on(void **state)
{
    (void)state;
    char url[128];
    net_url("ipc", url, sizeof url);
    meeting ranks[2], other = {.options = meet_options(url, 1, 2)};
    other.options.token = 43;
    for (int i = 0; i < 2; i++)
        ranks[i] = (meeting){.options = meet_options(url, i, 2), .body = wait_for_the_stranger};
    meet_start(&ranks[0]);
    meet(&other, 1);
    meet_start(&ranks[1]);
    for (int i = 0; i < 2; i++) meet_join(&ranks[i]);
    meet_check(&other, STATUS_PROTOCOL, "job token: rank 1 has a different token from the job at");
    for (int i = 0; i < 2; i++) meet_check(&ranks[i], STATUS_OK, "");
    /* A token is a password: the other rank must not learn the token of the job. */
    assert_null(strstr(other.message, "000000000000002a"));
}

/* A job is complete. Then rank 1 of 2 and rank 2 of 3 of another job come to the address of this job. */
static status come_again(rendezvous *r, const rendezvous_options *o)
{
    for (int rank = 1; rank < 3 && o->rank == 0; rank++) {
        meeting other = {.options = *o};
        other.options.rank = rank;
        other.options.world = rank + 1;
        meet(&other, 1);
        if (other.result != STATUS_PROTOCOL || !strstr(other.message, "whose 2 ranks have all joined"))
            return fail(STATUS_MISMATCH, "found %s '%s'", status_name(other.result), other.message);
    }
    return rendezvous_barrier(r, "end", clock_now_ns() + TEST_LIMIT_NS);
}

static void a_rank_that_comes_to_a_complete_job_is_refused_by_its_token(void **state)
{
    (void)state;
    char url[128];
    net_url("ipc", url, sizeof url);
    meeting ranks[2];
    for (int i = 0; i < 2; i++) ranks[i] = (meeting){.options = meet_options(url, i, 2), .body = come_again};
    meet(ranks, 2);
    for (int i = 0; i < 2; i++) meet_check(&ranks[i], STATUS_OK, "");
}

/* Rank 1 fails while rank 0 waits in a call, and while rank 2 waits outside of a call. */
static status fail_on_rank_1(rendezvous *r, const rendezvous_options *o)
{
    int64_t deadline_ns = clock_now_ns() + TEST_LIMIT_NS;
    if (o->rank == 0) return rendezvous_barrier(r, "opened", deadline_ns);
    if (o->rank == 1) {
        clock_sleep_ns(NS_PER_S / 10);
        rendezvous_fail(r, STATUS_IO, "no disk\x1b[31m");
        return fail(STATUS_IO, "no disk");
    }
    while (!rendezvous_has_failed(r) && clock_now_ns() < deadline_ns) clock_sleep_ns(NS_PER_MS);
    return error_code();
}

static void the_error_of_a_rank_ends_pending_and_later_calls(void **state)
{
    (void)state;
    char url[128];
    net_url("ipc", url, sizeof url);
    meeting ranks[3];
    for (int i = 0; i < 3; i++)
        ranks[i] = (meeting){.options = meet_options(url, i, 3), .body = fail_on_rank_1};
    meet(ranks, 3);
    for (int i = 0; i < 3; i++) meet_check(&ranks[i], STATUS_IO, i == 1 ? "no disk" : "): no disk?[31m");
    for (int i = 0; i < 3; i += 2) meet_check(&ranks[i], STATUS_IO, "rank 1 (");
}

static void the_error_of_a_rank_that_cannot_join_reaches_ranks_that_come_later(void **state)
{
    (void)state;
    static const error_record failure = {STATUS_DATA, "no data"};
    for (int failed = 0; failed < 3; failed++)
        for (int late = 0; late < 3; late++) {
            char url[128];
            net_url("ipc", url, sizeof url);
            meeting ranks[3];
            for (int i = 0; i < 3; i++) ranks[i] = (meeting){.options = meet_options(url, i, 3)};
            ranks[failed].options.failure = &failure;
            ranks[late].delay_ns = NS_PER_S / 4;
            meet(ranks, 3);
            for (int i = 0; i < 3; i++) meet_check(&ranks[i], STATUS_DATA, "): no data");
        }
}

static status open_another(rendezvous *r, const rendezvous_options *o)
{
    meeting other = {.options = *o};
    char address[128];
    snprintf(address, sizeof address, "%s", r->address);
    other.options.url = address;
    meet(&other, 1);
    return other.result == STATUS_UNAVAILABLE && strstr(other.message, address)
               ? STATUS_OK
               : fail(STATUS_MISMATCH, "found %s '%s'", status_name(other.result), other.message);
}

static void a_second_store_at_the_same_address_is_refused(void **state)
{
    (void)state;
    char url[128];
    net_url("ipc", url, sizeof url);
    const char *const urls[] = {url, "tcp://127.0.0.1:0"};
    for (int i = 0; i < 2; i++) {
        meeting m = {.options = meet_options(urls[i], 0, 1), .body = open_another};
        meet(&m, 1);
        meet_check(&m, STATUS_OK, "");
    }
}

/* Sends messages to a store as a program with another version of the protocol would. */
static void another_protocol_version_is_refused_with_both_values(void **state)
{
    (void)state;
    char url[128];
    net_url("ipc", url, sizeof url);
    meeting m = {.options = meet_options(url, 0, 2)};
    meet_start(&m);
    zsocket_context *context;
    zsocket peer;
    assert_ok(zsocket_context_open(&context));
    const zsocket_options options = {
        .type = ZMQ_DEALER, .frame_bytes = 1 << 20, .queue = 8, .rank = 1, .key = TEST_KEY};
    assert_ok(zsocket_open(context, &options, url, NULL, 0, &peer));
    uint8_t bytes[1024];
    const rendezvous_packet hello = {
        .kind = RENDEZVOUS_HELLO, .protocol = 9, .token = 42, .rank = 1, .world = 2};
    size_t used = rendezvous_pack(&hello, bytes, sizeof bytes);
    assert_int_equal(zmq_send(peer.zmq, bytes, used, 0), used);
    _Alignas(16) static unsigned char arena[RENDEZVOUS_ARENA_BYTES];
    rendezvous_packet answer;
    int got = zmq_recv(peer.zmq, bytes, sizeof bytes, 0);
    assert_ok(rendezvous_unpack(bytes, (size_t)got, arena, &answer));
    assert_int_equal(answer.kind, RENDEZVOUS_REFUSED);
    assert_int_equal(answer.code, STATUS_PROTOCOL);
    assert_string_equal(answer.text, "rendezvous protocol: rank 1 has version 9, rank 0 has 1");
    zsocket_close(&peer, 0);
    zsocket_context_close(&context);
    meet_join(&m);
    meet_check(&m, STATUS_PROTOCOL, answer.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_differ_are_refused_with_both_values_on_both_sides),
        cmocka_unit_test(a_second_claim_to_a_rank_is_refused_and_the_first_stays),
        cmocka_unit_test(a_rank_of_another_job_is_refused_and_this_job_goes_on),
        cmocka_unit_test(a_rank_that_comes_to_a_complete_job_is_refused_by_its_token),
        cmocka_unit_test(the_error_of_a_rank_ends_pending_and_later_calls),
        cmocka_unit_test(the_error_of_a_rank_that_cannot_join_reaches_ranks_that_come_later),
        cmocka_unit_test(a_second_store_at_the_same_address_is_refused),
        cmocka_unit_test(another_protocol_version_is_refused_with_both_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
