/* Tests errors between ranks, and the message that each rank reports. Ranks are threads. */
#include "common/base/clock.h"
#include "tests/common/collectives/ranks.h"
#include "tests/support/status_name.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char *const implementations[] = {"two-shot", "ring"};

static collective_buffer at(void *base)
{
    return (collective_buffer){.base = base};
}

static collective_call all_reduce(float *x, int64_t count)
{
    return (collective_call){.kind = COLLECTIVE_ALL_REDUCE,
                             .op = REDUCE_SUM,
                             .type = DTYPE_F32,
                             .count = count,
                             .in = at(x),
                             .out = at(x)};
}

/* ---- differences ------------------------------------------------------------------------------ */

typedef struct difference {
    const char *what;
    collective_call usual, other;
    const char *usual_text, *other_text;
} difference;

static float shared_word[RANKS_MAX][64];

#define CALL(kind_, count_, ...)                                                                             \
    {                                                                                                        \
        .kind = COLLECTIVE_##kind_, .type = DTYPE_F32, .count = count_, __VA_ARGS__                          \
    }

static const difference differences[] = {
    {"kind", CALL(ALL_REDUCE, 4), CALL(BROADCAST, 4), "all_reduce (sum) of 4 float32, tag 0",
     "broadcast of 4 float32, root 0, tag 0"},
    {"op", CALL(ALL_REDUCE, 4), CALL(ALL_REDUCE, 4, .op = REDUCE_MIN), "all_reduce (sum)",
     "all_reduce (min)"},
    {"type",
     CALL(ALL_REDUCE, 4),
     {.kind = COLLECTIVE_ALL_REDUCE, .type = DTYPE_I32, .count = 4},
     "float32",
     "int32"},
    {"count", CALL(ALL_GATHER, 8), CALL(ALL_GATHER, 9), "of 8 float32", "of 9 float32"},
    {"root", CALL(REDUCE, 4, .root = 1), CALL(REDUCE, 4, .root = 2), "root 1", "root 2"},
    {"tag", CALL(ALL_REDUCE, 4, .tag = 7), CALL(ALL_REDUCE, 4, .tag = 8), "tag 7", "tag 8"},
};

static status run_difference(rank_context *context, collective_world *world, collective_group *group)
{
    (void)world;
    const difference *d = context->shared;
    collective_call barrier = {.kind = COLLECTIVE_BARRIER};
    TRY(collective_run(group, &barrier));
    collective_call call = context->rank == 2 ? d->other : d->usual;
    call.in = call.out = at(shared_word[context->rank]);
    return collective_run(group, &call);
}

static status rank_of_difference(rank_context *context)
{
    collective_config config = ranks_config(context);
    return ranks_in_world(context, "two-shot", &config, run_difference);
}

static void different_calls_are_both_named_on_every_rank(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof differences / sizeof differences[0]; i++) {
        rank_context results[4];
        ranks_run(4, rank_of_difference, &differences[i], results);
        for (int r = 0; r < 4; r++) {
            const error_record *e = &results[r].error;
            if (e->code != STATUS_PROTOCOL || !strstr(e->message, differences[i].usual_text) ||
                !strstr(e->message, differences[i].other_text) || !strstr(e->message, "rank 2 makes"))
                fail_msg("%s, rank %d: %s '%s'", differences[i].what, r, status_name(e->code), e->message);
        }
    }
}

/* ---- late, given up --------------------------------------------------------------------------- */

static atomic_int others_ended;

static status run_late(rank_context *context, collective_world *world, collective_group *group)
{
    (void)world;
    float x[4] = {0};
    collective_call call = all_reduce(x, 4);
    TRY(collective_run(group, &call));
    if (context->rank == 2) {
        while (atomic_load(&others_ended) < context->world - 1) clock_sleep_ns(NS_PER_MS);
        return STATUS_OK;
    }
    status rc = collective_run(group, &call);
    atomic_fetch_add(&others_ended, 1);
    return rc;
}

static status rank_of_late(rank_context *context)
{
    collective_config config = ranks_config(context);
    config.stall_timeout_ns = NS_PER_S;
    return ranks_in_world(context, context->shared, &config, run_late);
}

static void a_late_rank_is_named_at_the_stall_timeout(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        rank_context results[4];
        atomic_store(&others_ended, 0);
        ranks_run(4, rank_of_late, implementations[i], results);
        for (int r = 0; r < 4; r++) {
            const error_record *e = &results[r].error;
            if (r == 2)
                assert_int_equal(e->code, STATUS_OK);
            else if (e->code != STATUS_PEER || !strstr(e->message, "waits for rank 2"))
                fail_msg("%s, rank %d: %s '%s'", implementations[i], r, status_name(e->code), e->message);
        }
    }
}

static status run_give_up(rank_context *context, collective_world *world, collective_group *group)
{
    float x[4] = {0};
    collective_call call = all_reduce(x, 4);
    TRY(collective_run(group, &call));
    if (context->rank != 1) return collective_run(group, &call);
    rank_error(STATUS_DATA, "sample 17 is torn");
    error_record why;
    error_copy(&why);
    collective_abort(world, &why);
    collective_ticket ticket;
    if (collective_post(group, &call, &ticket) != STATUS_DATA) return STATUS_MISMATCH;
    return STATUS_DATA;
}

static status rank_of_give_up(rank_context *context)
{
    collective_config config = ranks_config(context);
    return ranks_in_world(context, "ring", &config, run_give_up);
}

static void when_a_rank_gives_up_the_others_end_with_its_reason(void **state)
{
    (void)state;
    rank_context results[5];
    ranks_run(5, rank_of_give_up, NULL, results);
    for (int r = 0; r < 5; r++) {
        const error_record *e = &results[r].error;
        if (e->code != STATUS_DATA || !strstr(e->message, "sample 17 is torn") ||
            (r != 1 && !strstr(e->message, "gave up: ")))
            fail_msg("rank %d: %s '%s'", r, status_name(e->code), e->message);
    }
}

static void *wake_later(void *world)
{
    clock_sleep_ns(20 * NS_PER_MS);
    collective_wake(world);
    return NULL;
}

static status run_wake(rank_context *context, collective_world *world, collective_group *group)
{
    (void)context;
    (void)group;
    pthread_t thread;
    int64_t deadline;
    bool worked;
    TRY(collective_progress(world, clock_now_ns(), &deadline, &worked));
    collective_wake(world);
    collective_wait(world, CLOCK_NEVER); /* collective_wake() came before, so this returns at once */
    TRY(collective_progress(world, clock_now_ns(), &deadline, &worked));
    if (pthread_create(&thread, NULL, wake_later, world) != 0) return rank_error(STATUS_SYSTEM, "no thread");
    collective_wait(world, CLOCK_NEVER);
    pthread_join(thread, NULL);
    return STATUS_OK;
}

static status rank_of_wake(rank_context *context)
{
    collective_config config = ranks_config(context);
    return ranks_in_world(context, "two-shot", &config, run_wake);
}

static void a_wake_ends_a_wait_before_or_after_it_begins(void **state)
{
    (void)state;
    ranks_run_well(1, rank_of_wake, NULL);
}

/* ---- what makes no sense ---------------------------------------------------------------------- */

static status expect_refusal(collective_group *group, collective_call call, const char *text)
{
    collective_ticket ticket;
    status rc = collective_post(group, &call, &ticket);
    if (rc != STATUS_INTERNAL || !strstr(error_message(), text))
        return rank_error(STATUS_MISMATCH, "expected '%s': found %s", text, status_name(rc));
    error_clear();
    return STATUS_OK;
}

static status run_refusals(rank_context *context, collective_world *world, collective_group *group)
{
    (void)context;
    (void)world;
    static const piece three[] = {{0, 3}};
    float x[8] = {0};
    collective_buffer short_one = {x, {three, 1}};
    TRY(expect_refusal(group, (collective_call)CALL(BROADCAST, 4, .root = 2), "no such rank"));
    TRY(expect_refusal(group, (collective_call)CALL(SEND, 4, .root = context->rank), "that is this rank"));
    TRY(expect_refusal(group, (collective_call){.kind = COLLECTIVE_REDUCE, .type = DTYPE_U8, .count = 4},
                       "cannot be reduced"));
    TRY(expect_refusal(group, (collective_call)CALL(ALL_REDUCE, -1), "is no call"));
    return expect_refusal(group, (collective_call)CALL(ALL_REDUCE, 4, .in = short_one, .out = at(x)),
                          "of `in` hold another");
}

static status rank_of_refusals(rank_context *context)
{
    collective_config config = ranks_config(context);
    return ranks_in_world(context, "two-shot", &config, run_refusals);
}

static void invalid_calls_are_errors(void **state)
{
    (void)state;
    ranks_run_well(2, rank_of_refusals, NULL);
}

static void implementations_that_cannot_run_give_the_reason(void **state)
{
    (void)state;
    rank_context context = {.rank = 0, .world = 2, .token = 1};
    collective_config config = ranks_config(&context);
    collective_world *world = NULL;
    error_clear();
    assert_int_equal(collective_open("tree", &config, &world), STATUS_USAGE);
    assert_string_equal(error_message(),
                        "collectives: expected one of shm, nccl, mpi, sim, plan, got 'tree'");
    error_clear();
    assert_int_equal(collective_open("mpi", &config, &world), STATUS_UNAVAILABLE);
    assert_string_equal(error_message(),
                        "collectives mpi: this process was not started by mpirun: mpirun -x HARNESS_KEY -x "
                        "MASTER_ADDR -x MASTER_PORT -np 2 harness --mode ring --collective mpi");
    error_clear();
    config.algorithm = COLLECTIVE_ALGORITHM_LIBRARY;
    assert_int_equal(collective_open("shm", &config, &world), STATUS_USAGE);
    assert_string_equal(
        error_message(),
        "--algorithm: expected one of ring, two-shot, tuned with --collective shm, got 'library'");
    error_clear();
    config.algorithm = COLLECTIVE_ALGORITHM_AUTO;
    config.world = 65;
    assert_int_equal(collective_open("shm", &config, &world), STATUS_CONFIG);
    assert_string_equal(error_message(), "collectives over shared memory: expected 1 to 64 ranks, got 65");
    error_clear();
    config.world = 2;
    config.connect_timeout_ns = 30 * NS_PER_MS;
    assert_int_equal(collective_open("shm", &config, &world), STATUS_PEER);
    assert_non_null(strstr(error_message(), "rank 1"));
    assert_null(world);
    error_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(different_calls_are_both_named_on_every_rank),
        cmocka_unit_test(a_late_rank_is_named_at_the_stall_timeout),
        cmocka_unit_test(when_a_rank_gives_up_the_others_end_with_its_reason),
        cmocka_unit_test(a_wake_ends_a_wait_before_or_after_it_begins),
        cmocka_unit_test(invalid_calls_are_errors),
        cmocka_unit_test(implementations_that_cannot_run_give_the_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
