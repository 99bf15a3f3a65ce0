/* Tests calls of a process group that an agent runs, over shared memory. Ranks are threads. */
#include "common/collectives/collective_impl.h"
#include "common/process_group/process_group.h"
#include "tests/common/collectives/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 3, COUNT = 1000, CALLS = 40, FIRST = 0, SECOND = 1, QUEUES = 2 };

/* A rank, its values, and the calls of its process group in the order in which they ended. */
typedef struct rank_state {
    rank_context *context;
    collective_group *group;
    device *device;
    device_stream *compute;
    process_group *calls;
    float values[CALLS][COUNT];
    int phases[CALLS];
    process_work ended[2 * CALLS], accounted[2 * CALLS];
    int ended_count, accounted_count;
} rank_state;

static status all_reduce_of(void *context, const process_call *p, int phase, collective_call *out)
{
    rank_state *s = context;
    collective_buffer b = {.base = s->values[p->index]};
    s->phases[p->index] = phase + 1;
    *out = (collective_call){.kind = COLLECTIVE_ALL_REDUCE,
                             .op = REDUCE_SUM,
                             .type = DTYPE_F32,
                             .tag = p->index,
                             .count = COUNT,
                             .in = b,
                             .out = b};
    return STATUS_OK;
}

static void ended(void *context, const process_call *p, const process_times *t)
{
    rank_state *s = context;
    (void)p;
    s->ended[s->ended_count++] = t->work;
}

static void accounted(void *context, const process_times *t)
{
    rank_state *s = context;
    s->accounted[s->accounted_count++] = t->work;
}

static const process_group_ops ops = {.call = all_reduce_of, .ended = ended, .accounted = accounted};

static status open_rank(rank_state *s)
{
    device_config device = {.name = "reference", .world = 1, .threads = 1};
    TRY(device_open(&device, &s->device));
    TRY(device_stream_open(s->device, DEVICE_STREAM_COMPUTE, &s->compute));
    process_group_config config = {.ops = &ops,
                                   .context = s,
                                   .name = "test-agent",
                                   .who = "the test's rank",
                                   .device = s->device,
                                   .compute = s->compute,
                                   .rank = s->context->rank,
                                   .waits_for_each = true,
                                   .queues = QUEUES,
                                   .most = {CALLS, CALLS}};
    TRY(process_group_open(&config, &s->calls));
    return process_group_start(s->calls, s->group->world);
}

static void close_rank(rank_state *s)
{
    process_group_close(&s->calls);
    device_stream_close(&s->compute);
    device_close(&s->device);
}

static void fill(rank_state *s)
{
    for (int i = 0; i < CALLS; i++)
        for (int k = 0; k < COUNT; k++) s->values[i][k] = (float)(s->context->rank + 1 + i);
}

/* Checks that every phase has replaced the values by their sum over the ranks. */
static status check_sums(const rank_state *s, int index, int phases)
{
    float expected = RANKS * (RANKS + 1) / 2 + RANKS * (float)index;
    for (int p = 1; p < phases; p++) expected *= RANKS;
    for (int k = 0; k < COUNT; k++)
        if (s->values[index][k] != expected)
            return rank_error(STATUS_INTERNAL, "call %d, element %d: found %g, expected %g", index, k,
                              (double)s->values[index][k], (double)expected);
    return STATUS_OK;
}

typedef status (*rank_body)(rank_state *s);
static rank_body body_now;

static status in_world(rank_context *context, collective_world *world, collective_group *group)
{
    static _Thread_local rank_state s;
    (void)world;
    memset(&s, 0, sizeof s);
    s.context = context;
    s.group = group;
    status rc = open_rank(&s);
    if (rc == STATUS_OK) {
        fill(&s);
        rc = body_now(&s);
    }
    close_rank(&s);
    return rc;
}

static status run_rank(rank_context *context)
{
    collective_config config = ranks_config(context);
    return ranks_in_world(context, "ring", &config, in_world);
}

static void run(rank_body body)
{
    body_now = body;
    ranks_run_well(RANKS, run_rank, NULL);
}

/* ---- tests ------------------------------------------------------------------------------------ */

static status post(rank_state *s, int queue, int index, process_work after, int phases, process_work *out)
{
    process_call p = {.group = s->group,
                      .queue = queue,
                      .index = index,
                      .after = after,
                      .later_phases = phases - 1,
                      .bucket = index};
    return process_group_post(s->calls, &p, out);
}

static status post_all_then_wait_for_the_last(rank_state *s)
{
    process_work last = 0;
    for (int i = 0; i < CALLS; i++) TRY(post(s, FIRST, i, 0, 1, &last));
    TRY(process_group_wait(s->calls, last, NULL));
    for (int i = 0; i < CALLS; i++) {
        if (!process_group_done(s->calls, process_work_of(FIRST, (uint64_t)i + 1)))
            return rank_error(STATUS_INTERNAL, "call %d has not ended before a later one", i);
        TRY(check_sums(s, i, 1));
    }
    process_group_poll(s->calls);
    for (int i = 0; i < CALLS; i++)
        if (s->ended[i] != process_work_of(FIRST, (uint64_t)i + 1) || s->accounted[i] != s->ended[i])
            return rank_error(STATUS_INTERNAL, "call %d ended or was accounted out of order", i);
    return STATUS_OK;
}

static void calls_of_a_queue_end_in_the_order_of_their_posts(void **context)
{
    (void)context;
    run(post_all_then_wait_for_the_last);
}

/* Each call of the second queue sums again the result of a call of the first queue. */
static status post_pairs(rank_state *s)
{
    process_work first = 0, second = 0;
    for (int i = 0; i < CALLS; i++) {
        TRY(post(s, FIRST, i, 0, 1, &first));
        TRY(post(s, SECOND, i, first, 1, &second));
    }
    TRY(process_group_wait(s->calls, second, NULL));
    for (int i = 0; i < CALLS; i++) TRY(check_sums(s, i, 2));
    return STATUS_OK;
}

static void a_call_begins_after_the_call_of_another_queue_that_it_names(void **context)
{
    (void)context;
    run(post_pairs);
}

static status post_phases(rank_state *s)
{
    process_work work = 0;
    for (int i = 0; i < CALLS; i++) TRY(post(s, FIRST, i, 0, i % 3 + 1, &work));
    TRY(process_group_wait(s->calls, work, NULL));
    for (int i = 0; i < CALLS; i++) {
        if (s->phases[i] != i % 3 + 1)
            return rank_error(STATUS_INTERNAL, "call %d had %d phases", i, s->phases[i]);
        TRY(check_sums(s, i, i % 3 + 1));
    }
    return STATUS_OK;
}

static void the_phases_of_a_call_run_one_after_another(void **context)
{
    (void)context;
    run(post_phases);
}

static status give_up_on_rank_1(rank_state *s)
{
    process_work work = 0;
    if (s->context->rank == 1) {
        rank_error(STATUS_CONFIG, "the test gives up");
        return process_group_give_up(s->calls, STATUS_CONFIG);
    }
    TRY(post(s, FIRST, 0, 0, 1, &work));
    return process_group_wait(s->calls, work, NULL);
}

static void when_a_rank_gives_up_the_waits_of_the_others_fail_with_its_name(void **context)
{
    rank_context results[RANKS_MAX];
    (void)context;
    body_now = give_up_on_rank_1;
    ranks_run(RANKS, run_rank, NULL, results);
    assert_int_equal(results[1].error.code, STATUS_CONFIG);
    for (int r = 0; r < RANKS; r += 2) {
        assert_int_equal(results[r].error.code, STATUS_CONFIG);
        if (!strstr(results[r].error.message, "rank 1") ||
            !strstr(results[r].error.message, "the test's rank: "))
            fail_msg("rank %d: '%s' does not name rank 1", r, results[r].error.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_of_a_queue_end_in_the_order_of_their_posts),
        cmocka_unit_test(a_call_begins_after_the_call_of_another_queue_that_it_names),
        cmocka_unit_test(the_phases_of_a_call_run_one_after_another),
        cmocka_unit_test(when_a_rank_gives_up_the_waits_of_the_others_fail_with_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
