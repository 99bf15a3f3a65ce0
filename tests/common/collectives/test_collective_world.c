/* Tests groups, the order of calls and sums, and counted bytes. Ranks are threads. */
#include "common/base/clock.h"
#include "common/net/shm.h"
#include "tests/common/collectives/ranks.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
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

/* ---- groups ----------------------------------------------------------------------------------- */

enum { GROUPS = 4, GROUP_ROUNDS = 20, GROUP_COUNT = 700 };
static const struct {
    const char *name;
    int ranks[6], count;
} group_table[GROUPS] = {
    {"all", {0, 1, 2, 3, 4, 5}, 6}, {"even", {0, 2, 4}, 3}, {"mixed", {1, 2, 5}, 3}, {"pair", {3, 4}, 2}};

static bool is_member(int g, int rank)
{
    for (int i = 0; i < group_table[g].count; i++)
        if (group_table[g].ranks[i] == rank) return true;
    return false;
}

/* Every rank posts the calls of all groups before it waits for the first one. Each rank posts to the groups
 * from a different one on, and waits for them in reverse order. */
static status interleave(rank_context *context, collective_group *const *groups)
{
    static const int64_t counts[GROUPS] = {GROUP_COUNT, 1, 100, GROUP_COUNT};
    float x[GROUPS][GROUP_COUNT];
    for (int round = 0; round < GROUP_ROUNDS; round++) {
        collective_ticket tickets[GROUPS];
        for (int i = 0; i < GROUPS; i++) {
            int g = (i + context->rank) % GROUPS;
            if (!groups[g]) continue;
            for (int64_t k = 0; k < counts[g]; k++) x[g][k] = (float)(context->rank + 1 + round + g);
            collective_call call = all_reduce(x[g], counts[g]);
            TRY(collective_post(groups[g], &call, &tickets[g]));
        }
        for (int i = GROUPS - 1; i >= 0; i--) {
            int g = (i + context->rank) % GROUPS;
            if (!groups[g]) continue;
            TRY(ranks_wait(groups[g], tickets[g]));
            float sum = 0;
            for (int m = 0; m < group_table[g].count; m++)
                sum += (float)(group_table[g].ranks[m] + 1 + round + g);
            for (int64_t k = 0; k < counts[g]; k++)
                if (x[g][k] != sum)
                    return rank_error(STATUS_MISMATCH, "group %s, round %d: found %g, expected %g",
                                      group_table[g].name, round, (double)x[g][k], (double)sum);
        }
    }
    return STATUS_OK;
}

static status rank_of_groups(rank_context *context)
{
    collective_config config = ranks_config(context);
    collective_world *world = NULL;
    collective_group *groups[GROUPS] = {NULL};
    status rc;
    config.inline_bytes = 64;
    TRY_GOTO(rc, ranks_open_world(context->shared, &config, &world), out);
    for (int g = 0; g < GROUPS; g++)
        if (is_member(g, context->rank))
            TRY_GOTO(rc,
                     collective_group_open(world, group_table[g].name, group_table[g].ranks,
                                           group_table[g].count, &groups[g]),
                     out);
    rc = interleave(context, groups);
out:
    for (int g = 0; g < GROUPS; g++) collective_group_close(&groups[g]);
    collective_close(&world);
    return rc;
}

static void groups_run_side_by_side_in_any_order(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) ranks_run_well(6, rank_of_groups, implementations[i]);
}

/* ---- order of calls and sums ------------------------------------------------------------------ */

static float fraction(int rank, int64_t i)
{
    return 1.0f / (float)(3 + rank * 7 + i % 11);
}

enum { ORDER_COUNT = 1000 };

/* Returns the sum in the order of the algorithm. The ring sums chunk c from rank c on, and two-shot sums from
 * rank 0 on. */
static float in_order(bool ring, int n, int64_t i)
{
    int first = 0;
    if (ring) {
        while (i >= (int64_t)ORDER_COUNT * (first + 1) / n / 16 * 16 && first < n - 1) first++;
    }
    float sum = fraction(first, i);
    for (int k = 1; k < n; k++) sum = fraction((first + k) % n, i) + sum;
    return sum / (float)n;
}

/* Sums fractions, so that the result shows the order of summation. If `control` is set, the call is one of
 * the engine's own calls, which use two-shot with any algorithm of the world. */
static status sum_in_order(rank_context *context, collective_group *group, bool control)
{
    float x[ORDER_COUNT];
    bool ring = strcmp(context->shared, "ring") == 0 && !control;
    for (int repeat = 0; repeat < 2; repeat++) {
        for (int64_t i = 0; i < ORDER_COUNT; i++) x[i] = fraction(context->rank, i);
        collective_call call = all_reduce(x, ORDER_COUNT);
        call.op = REDUCE_MEAN;
        call.control = control;
        TRY(collective_run(group, &call));
        for (int64_t i = 0; i < ORDER_COUNT; i++)
            if (x[i] != in_order(ring, context->world, i))
                return rank_error(STATUS_MISMATCH, "%d ranks, element %lld: found %.9g, expected %.9g",
                                  context->world, (long long)i, (double)x[i],
                                  (double)in_order(ring, context->world, i));
    }
    return STATUS_OK;
}

static status run_order(rank_context *context, collective_world *world, collective_group *group)
{
    (void)world;
    TRY(sum_in_order(context, group, false));
    return sum_in_order(context, group, true);
}

static status rank_of_order(rank_context *context)
{
    collective_config config = ranks_config(context);
    return ranks_in_world(context, context->shared, &config, run_order);
}

static void sums_are_taken_in_the_documented_order(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int n = 2; n <= 7; n++) ranks_run_well(n, rank_of_order, implementations[i]);
}

static status run_queue(rank_context *context, collective_world *world, collective_group *group)
{
    (void)world;
    float x[COLLECTIVE_QUEUE + 1];
    collective_ticket tickets[COLLECTIVE_QUEUE], more;
    collective_call barrier = {.kind = COLLECTIVE_BARRIER};
    if (context->rank == 1) TRY(collective_run(group, &barrier)); /* Meanwhile rank 0 fills its queue. */
    for (int i = 0; i < COLLECTIVE_QUEUE - (context->rank == 0); i++) {
        x[i] = 1;
        collective_call call = all_reduce(&x[i], 1);
        if (i == 0 && context->rank == 0) {
            collective_ticket first;
            TRY(collective_post(group, &barrier, &first));
        }
        TRY(collective_post(group, &call, &tickets[i]));
    }
    collective_call last = all_reduce(&x[COLLECTIVE_QUEUE], 1);
    if (context->rank == 0) {
        if (collective_post(group, &last, &more) != STATUS_AGAIN)
            return rank_error(STATUS_MISMATCH, "call %d was taken", COLLECTIVE_QUEUE + 1);
    }
    TRY(ranks_wait(group, tickets[COLLECTIVE_QUEUE - 2]));
    for (int i = 0; i < COLLECTIVE_QUEUE - 1; i++) {
        collective_times t = collective_get_times(group, tickets[i]);
        if (!collective_done(group, tickets[i]) || x[i] != (float)context->world)
            return rank_error(STATUS_MISMATCH, "call %d is not done", i);
        if (t.started_ns <= 0 || t.finished_ns < t.started_ns)
            return rank_error(STATUS_MISMATCH, "call %d: started %lld, finished %lld", i,
                              (long long)t.started_ns, (long long)t.finished_ns);
    }
    if (context->rank == 0) { /* Rank 1 has posted one call more. */
        x[COLLECTIVE_QUEUE] = 1;
        return collective_run(group, &last);
    }
    return ranks_wait(group, tickets[COLLECTIVE_QUEUE - 1]);
}

static status rank_of_queue(rank_context *context)
{
    collective_config config = ranks_config(context);
    return ranks_in_world(context, "two-shot", &config, run_queue);
}

static void calls_run_in_the_order_of_posting_and_a_full_queue_returns_again(void **state)
{
    (void)state;
    ranks_run_well(2, rank_of_queue, NULL);
}

/* ---- bytes ------------------------------------------------------------------------------------ */

static status run_traffic(rank_context *context, collective_world *world, collective_group *group)
{
    enum { COUNT = 16 * 60 * 10 }; /* 1 to 5 ranks divide this count evenly. */
    static _Thread_local float x[COUNT];
    int64_t n = context->world, right = 2 * (n - 1) * COUNT / n * (int64_t)sizeof x[0];
    collective_call call = all_reduce(x, COUNT);
    TRY(collective_run(group, &call));
    collective_traffic t = collective_get_traffic(world);
    if (t.bytes_sent != right || t.bytes_received != right || t.messages_sent != 2 * (n - 1))
        return rank_error(STATUS_MISMATCH,
                          "%lld ranks: found %lld bytes sent, %lld received, %lld messages; expected %lld",
                          (long long)n, (long long)t.bytes_sent, (long long)t.bytes_received,
                          (long long)t.messages_sent, (long long)right);
    return STATUS_OK;
}

static status rank_of_traffic(rank_context *context)
{
    collective_config config = ranks_config(context);
    config.inline_bytes = 1;
    return ranks_in_world(context, context->shared, &config, run_traffic);
}

static void an_all_reduce_moves_2_n_minus_1_nths_of_its_bytes_each_way(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int n = 1; n <= 5; n++) ranks_run_well(n, rank_of_traffic, implementations[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_run_side_by_side_in_any_order),
        cmocka_unit_test(sums_are_taken_in_the_documented_order),
        cmocka_unit_test(calls_run_in_the_order_of_posting_and_a_full_queue_returns_again),
        cmocka_unit_test(an_all_reduce_moves_2_n_minus_1_nths_of_its_bytes_each_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
