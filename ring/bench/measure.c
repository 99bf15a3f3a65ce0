/* Opens the worlds that are measured, and runs the timing loop. */
#include "common/base/clock.h"
#include "ring/bench/bench_impl.h"

#include <stdio.h>
#include <stdlib.h>

static status open_world(bench_rank *b, int index)
{
    const ring_bench_config *c = b->config;
    collective_window window = {b->memory.data, b->memory.bytes, b->memory.fd};
    char world[32];
    snprintf(world, sizeof world, "bench %d", index);
    collective_config config = {
        .rank = c->rank,
        .world = c->world,
        .job_token = c->job_token,
        .name = world,
        .windows = &window,
        .window_count = 1,
        .stall_timeout_ns = c->timeout_ns,
        .connect_timeout_ns = c->timeout_ns,
        .algorithm = b->systems[index].algorithm,
        .tuning = &b->tuning,
    };
    TRY(net_link_parse(c->options->link, &config.link));
    TRY(collective_open(b->systems[index].library, &config, &b->worlds[index]));
    return collective_group_open(b->worlds[index], "all", NULL, c->world, &b->groups[index]);
}

status bench_rank_open(const ring_bench_config *config, const bench_system *systems, int count,
                       int64_t most_bytes, bench_rank *out)
{
    *out = (bench_rank){.config = config};
    out->half_bytes =
        (most_bytes + 64 * 8 + 4095) / 4096 * 4096; /* all_to_all needs up to one element more per rank */
    status rc;
    out->times = calloc(BENCH_MOST_ITERATIONS, sizeof *out->times);
    if (!out->times) return fail(STATUS_SYSTEM, "no memory for a benchmark");
    TRY_GOTO(rc, shm_create("bench", 2 * out->half_bytes, &out->memory), failed);
    if (config->options->table)
        TRY_GOTO(rc, collective_tuning_load(config->options->table, config->world, &out->tuning), failed);
    for (int i = 0; i < count; i++) {
        out->systems[i] = systems[i];
        /* The count is incremented first, so that bench_rank_close() closes this world even if opening it
         * fails. */
        out->count++;
        TRY_GOTO(rc, open_world(out, i), failed);
    }
    return STATUS_OK;
failed:
    bench_rank_close(out);
    return rc;
}

void bench_rank_close(bench_rank *b)
{
    for (int i = 0; i < b->count; i++) {
        collective_group_close(&b->groups[i]);
        collective_close(&b->worlds[i]);
    }
    shm_close(&b->memory);
    free(b->times);
    *b = (bench_rank){0};
}

static status barrier(collective_group *group)
{
    collective_call call = {.kind = COLLECTIVE_BARRIER, .control = true};
    return collective_run(group, &call);
}

static status over_ranks(collective_group *group, reduce_op op, dtype type, void *values, int64_t count)
{
    collective_call call = collective_in_place(COLLECTIVE_ALL_REDUCE, type, count, values);
    call.control = true;
    call.op = op;
    return collective_run(group, &call);
}

status bench_agree_to_go_on(const bench_rank *b, collective_group *group)
{
    const status_table *t = b->config->table;
    int64_t stop = t && job_stop_requested(t);
    TRY(over_ranks(group, REDUCE_MAX, DTYPE_I64, &stop, 1));
    return stop ? fail(STATUS_STOPPED, "bench: stopped on request") : STATUS_OK;
}

status bench_time(const bench_rank *b, collective_group *group, const bench_case *c, int iterations,
                  double *times, int *used)
{
    int rank = collective_group_rank(group), ranks = collective_group_size(group);
    collective_call call = bench_call(b, c, rank, ranks);
    for (int i = 0; i < iterations; i++) {
        TRY(bench_agree_to_go_on(b, group));
        TRY(barrier(group)); /* The agreement does not end at the same time on all ranks. */
        int64_t begin = clock_now_ns();
        TRY(collective_run(group, &call));
        times[*used + i] = (double)(clock_now_ns() - begin) * 1e-3;
    }
    TRY(over_ranks(group, REDUCE_MAX, DTYPE_F64, times + *used, iterations));
    *used += iterations;
    return STATUS_OK;
}

status bench_check(const bench_rank *b, collective_group *group, const bench_case *c, int64_t *wrong)
{
    int rank = collective_group_rank(group), ranks = collective_group_size(group);
    collective_call call = bench_call(b, c, rank, ranks);
    bench_fill(b, c, rank, ranks);
    TRY(bench_agree_to_go_on(b, group));
    TRY(collective_run(group, &call));
    *wrong = bench_count_wrong(b, c, rank, ranks);
    return over_ranks(group, REDUCE_SUM, DTYPE_I64, wrong, 1);
}
