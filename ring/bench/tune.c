/* Measures for each number of ranks and each size whether two-shot or ring is faster on this machine. */
#include "common/base/least.h"
#include "ring/bench/bench_impl.h"

#include <stdio.h>
#include <stdlib.h>

static const int64_t sizes[] = {4 << 10, 64 << 10, 1 << 20, 8 << 20, 32 << 20};
enum { SIZES = sizeof sizes / sizeof sizes[0], TUNE_TURNS = 3 };

static const bench_system systems[] = {{"shm", COLLECTIVE_ALGORITHM_TWO_SHOT},
                                       {"shm", COLLECTIVE_ALGORITHM_RING}};

static double median(double *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, ascending_doubles);
    return times[count / 2];
}

static status measure_size(bench_rank *b, collective_group *const *groups, int64_t bytes,
                           collective_algorithm *faster)
{
    bench_case c = {.kind = COLLECTIVE_ALL_REDUCE,
                    .type = DTYPE_F32,
                    .op = REDUCE_SUM,
                    .count = bytes / 4,
                    .in_place = true};
    int each = bytes <= 64 << 10 ? 60 : bytes <= 1 << 20 ? 20 : 4, used[2] = {0, 0};
    double *times[2] = {b->times, b->times + BENCH_MOST_ITERATIONS / 2};
    for (int turn = -1; turn < TUNE_TURNS; turn++) /* the first turn warms up */
        for (int i = 0; i < 2; i++) {
            if (turn == 0) used[i] = 0;
            TRY(bench_time(b, groups[i], &c, each, times[i], &used[i]));
        }
    *faster = systems[median(times[1], used[1]) < median(times[0], used[0])].algorithm;
    return STATUS_OK;
}

/* Adds the rows for `ranks` ranks. Adjacent sizes with the same result become one row. The last row covers
 * all larger sizes. */
static void add_rows(collective_tuning *t, int ranks, const collective_algorithm *faster)
{
    for (int s = 0; s < SIZES; s++) {
        bool last = s + 1 == SIZES;
        if (!last && faster[s] == faster[s + 1]) continue;
        if (t->count == COLLECTIVE_TUNING_ROWS) return;
        t->rows[t->count++] = (collective_tuning_row){ranks, last ? INT64_MAX : sizes[s], faster[s]};
    }
}

static status measure_ranks(bench_rank *b, int ranks, collective_tuning *out)
{
    collective_group *groups[2] = {NULL, NULL};
    collective_algorithm faster[SIZES] = {COLLECTIVE_ALGORITHM_TWO_SHOT};
    char name[16];
    status rc = STATUS_OK;
    if (b->config->rank >= ranks) return STATUS_OK;
    snprintf(name, sizeof name, "first %d", ranks);
    for (int i = 0; i < 2; i++)
        TRY_GOTO(rc, collective_group_open(b->worlds[i], name, NULL, ranks, &groups[i]), out);
    for (int s = 0; s < SIZES; s++) TRY_GOTO(rc, measure_size(b, groups, sizes[s], &faster[s]), out);
    add_rows(out, ranks, faster);
out:
    for (int i = 0; i < 2; i++) collective_group_close(&groups[i]);
    return rc;
}

/* Returns the number of ranks after `ranks`: 2, 4, 8, ..., the world, then one more than the world. */
static int next_ranks(int ranks, int world)
{
    if (ranks == world) return world + 1;
    return 2 * ranks < world ? 2 * ranks : world;
}

status ring_bench_tune(const ring_bench_config *config, collective_tuning *out)
{
    bench_rank b;
    *out = (collective_tuning){0};
    TRY(bench_rank_open(config, systems, 2, sizes[SIZES - 1], &b));
    status rc = STATUS_OK;
    for (int ranks = 2; rc == STATUS_OK && ranks <= config->world; ranks = next_ranks(ranks, config->world)) {
        rc = measure_ranks(&b, ranks, out);
        /* If a stop was requested, the ranks that took no part learn of it here. */
        if (rc == STATUS_OK || rc == STATUS_STOPPED) rc = bench_agree_to_go_on(&b, b.groups[0]);
    }
    /* The rows for all ranks of the world also apply to larger worlds. */
    for (int i = 0; i < out->count; i++)
        if (out->rows[i].most_ranks == config->world) out->rows[i].most_ranks = COLLECTIVE_TUNING_MOST_RANKS;
    bench_rank_close(&b);
    return rc;
}
