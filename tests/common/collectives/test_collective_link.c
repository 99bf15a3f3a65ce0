/* Runs collectives over an emulated link. Results must be right, and calls never faster than the link. The
 * tests set no upper bounds of times, since the machine may be slow. */
#include "common/base/clock.h"
#include "tests/common/collectives/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

enum { MOST = 1 << 20 };

typedef struct link_case {
    const char *implementation;
    collective_kind kind;
    int ranks;
    int64_t count;
    int messages;      /* Number of messages that are sent one after another. */
    double bytes_part; /* Part of the buffer's bytes that the busier direction of a rank's link carries. */
} link_case;

/* A ring takes 2(n-1) steps, and sends 2(n-1)/n of the buffer. Two-shot exchanges with all peers at once, in
 * a reduce-scatter and an all-gather. Below 32 KiB every rank reads the operands of all ranks instead. */
static const link_case cases[] = {
    {"ring", COLLECTIVE_ALL_REDUCE, 2, MOST, 2, 1.0},    {"ring", COLLECTIVE_ALL_REDUCE, 4, MOST, 6, 1.5},
    {"ring", COLLECTIVE_ALL_REDUCE, 4, 400, 6, 1.5},     {"ring", COLLECTIVE_ALL_GATHER, 4, MOST, 3, 0.75},
    {"ring", COLLECTIVE_BROADCAST, 3, MOST, 1, 1.0},     {"two-shot", COLLECTIVE_ALL_REDUCE, 4, MOST, 2, 1.5},
    {"two-shot", COLLECTIVE_ALL_REDUCE, 4, 400, 1, 3.0}, {"two-shot", COLLECTIVE_BROADCAST, 3, MOST, 1, 1.0},
    {"two-shot", COLLECTIVE_BARRIER, 3, 0, 1, 0.0},
};

static const net_link emulated = {.bytes_per_second = 400000000, .latency_ns = 2000000};

typedef struct link_rank {
    const link_case *c;
    float (*values)[MOST];
} link_rank;

static status check(const link_rank *r, int rank, int ranks)
{
    const float *x = r->values[rank];
    for (int64_t i = 0; i < r->c->count; i++) {
        int64_t part = 0;
        while (i >= collective_part_begin(r->c->count, ranks, (int)part + 1)) part++;
        float right = r->c->kind == COLLECTIVE_ALL_REDUCE   ? (float)(ranks * (ranks + 1) / 2)
                      : r->c->kind == COLLECTIVE_ALL_GATHER ? (float)(part + 1)
                                                            : 1.0f;
        if (x[i] != right)
            return rank_error(STATUS_MISMATCH, "rank %d, element %lld: found %g, expected %g", rank,
                              (long long)i, (double)x[i], (double)right);
    }
    return STATUS_OK;
}

static status run_case(rank_context *context, collective_world *world, collective_group *group)
{
    const link_rank *r = context->shared;
    const link_case *c = r->c;
    float *x = r->values[context->rank];
    (void)world;
    for (int64_t i = 0; i < c->count; i++) x[i] = (float)(context->rank + 1);
    collective_buffer all = {.base = x}, part = all;
    if (c->kind == COLLECTIVE_ALL_GATHER)
        part.base = x + collective_part_begin(c->count, context->world, context->rank);
    collective_call call = {.kind = c->kind, .type = DTYPE_F32, .count = c->count, .in = part, .out = all};
    int64_t begin = clock_now_ns();
    TRY(collective_run(group, &call));
    int64_t took = clock_now_ns() - begin;
    int64_t bytes = (int64_t)(c->bytes_part * (double)c->count * sizeof(float));
    int64_t least = c->messages * emulated.latency_ns + net_link_occupied_ns(&emulated, bytes);
    /* The root of a broadcast has nothing to receive. */
    bool receives = c->kind != COLLECTIVE_BROADCAST || context->rank != 0;
    if (receives && took < least * 99 / 100)
        return rank_error(STATUS_MISMATCH, "%s %s of %lld by %d ranks took %lld us, the link takes %lld us",
                          c->implementation, collective_kind_name(c->kind), (long long)c->count,
                          context->world, (long long)took / 1000, (long long)least / 1000);
    return check(r, context->rank, context->world);
}

static status rank_of_case(rank_context *context)
{
    const link_rank *r = context->shared;
    collective_config config = ranks_config(context);
    config.link = emulated;
    return ranks_in_world(context, r->c->implementation, &config, run_case);
}

static void calls_take_at_least_the_time_of_the_link_and_give_right_results(void **state)
{
    (void)state;
    static float values[4][MOST];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        ranks_run_well(cases[i].ranks, rank_of_case, &(link_rank){&cases[i], values});
}

typedef struct starts {
    int64_t (*started)[2]; /* Start times of both calls, by rank. */
} starts;

static status note_when_calls_started(rank_context *context, collective_world *world, collective_group *group)
{
    const starts *s = context->shared;
    float x[64] = {0};
    (void)world;
    for (int i = 0; i < 2; i++) {
        collective_call call = {.kind = COLLECTIVE_ALL_REDUCE,
                                .type = DTYPE_F32,
                                .count = 64,
                                .in = {.base = x},
                                .out = {.base = x}};
        collective_ticket ticket;
        TRY(collective_post(group, &call, &ticket));
        TRY(ranks_wait(group, ticket));
        s->started[context->rank][i] = collective_get_times(group, ticket).started_ns;
    }
    return STATUS_OK;
}

static status rank_that_notes(rank_context *context)
{
    collective_config config = ranks_config(context);
    config.link = emulated;
    return ranks_in_world(context, "two-shot", &config, note_when_calls_started);
}

/* The link begins to carry a call when the last rank has posted it. A rank that gets a processor later does
 * not delay this time. */
static void a_call_starts_at_the_same_time_on_all_ranks(void **state)
{
    (void)state;
    static int64_t started[4][2];
    ranks_run_well(4, rank_that_notes, &(starts){started});
    for (int rank = 1; rank < 4; rank++)
        for (int i = 0; i < 2; i++) assert_int_equal(started[rank][i], started[0][i]);
    assert_true(started[0][1] >= started[0][0] + emulated.latency_ns);
}

static void mpi_over_an_emulated_link_is_an_error(void **state)
{
    (void)state;
    rank_context context = {.world = 1};
    collective_config config = ranks_config(&context);
    collective_world *world = NULL;
    config.link = emulated;
    error_clear();
    assert_int_equal(collective_open("mpi", &config, &world), STATUS_CONFIG);
    error_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_take_at_least_the_time_of_the_link_and_give_right_results),
        cmocka_unit_test(a_call_starts_at_the_same_time_on_all_ranks),
        cmocka_unit_test(mpi_over_an_emulated_link_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
