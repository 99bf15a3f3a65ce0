/* Measures two ranks at a time: how much they slow each other, and how fast they exchange data through
 * memory. The exchanges ("passes") are timed in processor time of the thread. They follow a training step on
 * both ranks, so that caches have the same contents as in a run: this core's cache holds little of this
 * rank's data, and the other core's cache holds the data that the other rank has written. */
#include "common/base/clock.h"
#include "common/base/least.h"
#include "common/reduce/reduce.h"
#include "common/sim/price.h"
#include "harness/report/significance.h"
#include "harness/sim/calibrate_impl.h"
#include "harness/train/local_ranks.h"
#include "ring/bench/bench.h"

#include <string.h>

/* PASS_REDUCE_SCATTER and PASS_ALL_GATHER are a ring all-reduce of two ranks. */
typedef enum pass { PASS_PACK, PASS_SERVE, PASS_REDUCE_SCATTER, PASS_ALL_GATHER, PASS_COPY } pass;
enum { PAIR = 2, PASSES = PASS_COPY + 1 };
enum { COPY_BYTES = 32 << 20, SMALL_BYTES = 4096, SERVER_CHUNK = 8192, SERVER_ARENAS = 6 };

typedef struct rank_times {
    double compute_s[CALIBRATION_SETTINGS][CALIBRATED_CONTENTIONS];
    double passes[PASSES][CALIBRATION_REPEATS]; /* In ns. */
} rank_times;

typedef struct pair {
    calibration *result;
    uint64_t token;
    calibration_run runs[PAIR];
    device_memory buckets[PAIR], sums[PAIR]; /* Each buffer has the size of the gradients. */
    rank_times times[PAIR];
    double bytes;
    double memory_gbs[PAIR]; /* Rate of a copy that both ranks make at the same time. */
} pair;

/* ---- compute ---------------------------------------------------------------------------------- */

/* Adds the time of each operation to the sum of its contention class. The classes are convolutions, GEMMs,
 * and all other operations together with the optimizer's update. */
static void add_times(calibration_run *r, calibration_setting setting, double sums[CALIBRATED_CONTENTIONS])
{
    for (int i = 0; i < r->program->op_count; i++)
        sums[sim_contention_of(r->program->ops[i].desc.kind)] += calibration_op_ns(r, setting, i) * 1e-9;
    sums[sim_contention_of(OP_sgd)] += calibration_op_ns(r, setting, r->program->op_count) * 1e-9;
}

/* ---- passes ----------------------------------------------------------------------------------- */

static float *at(void *arena, int64_t element)
{
    return (float *)arena + element;
}

/* Returns the half of an arena that belongs to the rank. */
static piece half_of(const pair *p, int rank)
{
    int64_t all = p->runs[rank].params->arena_elements, half = all / 2;
    return rank == 0 ? (piece){0, half} : (piece){half, all - half};
}

/* Works like a server: sums a chunk of both ranks' gradients and updates the parameters while the sum is
 * in the cache. */
static status serve(pair *p, int rank, piece half)
{
    calibration_run *own = &p->runs[rank];
    int64_t end = half.offset + half.count;
    for (int64_t i = half.offset; i < end; i += SERVER_CHUNK) {
        piece chunk = {i, least(SERVER_CHUNK, end - i)};
        const void *grads[] = {at(p->runs[0].params->grads.data, i), at(p->runs[1].params->grads.data, i)};
        void *sums[] = {at(p->sums[rank].data, i)};
        reduce_many(DTYPE_F32, REDUCE_MEAN, sums, 1, grads, PAIR, chunk.count);
        TRY(optimizer_update(own->optimizers[0], own->stream, own->params->params.data, p->sums[rank].data,
                             (piece_list){&chunk, 1}, 0, 0.0, 1.0));
    }
    return STATUS_OK;
}

static status do_pass(pair *p, int rank, pass which)
{
    calibration_run *own = &p->runs[rank];
    param_set *others = p->runs[1 - rank].params;
    piece half = half_of(p, rank), other = half_of(p, 1 - rank);
    const void *buckets[] = {at(p->buckets[0].data, half.offset), at(p->buckets[1].data, half.offset)};
    void *back[] = {at(own->params->grads.data, half.offset)};
    switch (which) {
    case PASS_PACK: /* Packs the gradients into buckets. */
        reduce_convert(DTYPE_F32, p->buckets[rank].data, DTYPE_F32, own->params->grads.data,
                       own->params->arena_elements, PAIR);
        break;
    case PASS_SERVE:
        return serve(p, rank, half);
    case PASS_REDUCE_SCATTER:
        reduce_many(DTYPE_F32, REDUCE_SUM, back, 1, buckets, PAIR, half.count);
        break;
    case PASS_ALL_GATHER:
        memcpy(at(own->params->grads.data, other.offset), at(others->grads.data, other.offset),
               (size_t)other.count * sizeof(float));
        break;
    case PASS_COPY: /* Copies the parameters that the other rank has updated. */
        memcpy(at(own->params->params.data, other.offset), at(others->params.data, other.offset),
               (size_t)other.count * sizeof(float));
        break;
    }
    return STATUS_OK;
}

static status run_passes(local_ranks *group, pair *p, int rank, int turn)
{
    for (int which = 0; which < PASSES; which++) {
        TRY(local_ranks_barrier(group));
        int64_t begin = clock_cpu_ns(CLOCK_THREAD_CPUTIME_ID);
        TRY(do_pass(p, rank, (pass)which));
        int64_t ns = clock_cpu_ns(CLOCK_THREAD_CPUTIME_ID) - begin;
        if (turn >= 0) p->times[rank].passes[which][turn] = (double)ns;
    }
    return local_ranks_barrier(group);
}

static status open_passes(pair *p, int rank)
{
    calibration_run *r = &p->runs[rank];
    size_t bytes = (size_t)r->params->arena_elements * sizeof(float);
    TRY(device_allocate(r->device, DEVICE_MEMORY_SHARED, bytes, &p->buckets[rank]));
    return device_allocate(r->device, DEVICE_MEMORY_PRIVATE, bytes, &p->sums[rank]);
}

/* ---- ranks ------------------------------------------------------------------------------------ */

/* Alternates between running one rank, the other rank, and both ranks, so that the processor's clock is the
 * same for all. */
static status compute_all(local_ranks *group, pair *p, int rank, bool passes)
{
    calibration_run *r = &p->runs[rank];
    for (int begin = 0; begin < CALIBRATION_REPEATS; begin += CALIBRATION_BLOCK) {
        for (int turn = 0; turn < PAIR; turn++) {
            TRY(local_ranks_barrier(group));
            for (int i = -1; turn == rank && i < CALIBRATION_BLOCK; i++)
                TRY(calibration_step(r, CALIBRATION_ALONE, i < 0 ? i : begin + i));
        }
        for (int i = -1; i < CALIBRATION_BLOCK; i++) {
            int repeat = i < 0 ? i : begin + i;
            TRY(local_ranks_barrier(group));
            TRY(calibration_step(r, CALIBRATION_BESIDE, repeat));
            if (passes) TRY(run_passes(group, p, rank, repeat));
        }
    }
    for (int s = 0; s < CALIBRATION_SETTINGS; s++)
        add_times(r, (calibration_setting)s, p->times[rank].compute_s[s]);
    return STATUS_OK;
}

/* Runs the passes only with the first model, whose gradients are larger than caches. */
static status measure_model(local_ranks *group, pair *p, int rank, int model)
{
    status rc = calibration_open_cpu(&p->runs[rank], &calibration_workloads[model], p->result->threads);
    bool passes = model == 0;
    if (rc == STATUS_OK && passes) rc = open_passes(p, rank);
    if (rc == STATUS_OK && passes && rank == 0)
        p->bytes = (double)p->runs[rank].model->parameter_elements * sizeof(float);
    if (rc == STATUS_OK) rc = compute_all(group, p, rank, passes);
    if (rc == STATUS_OK) rc = local_ranks_barrier(group);
    device_free(p->runs[rank].device, &p->buckets[rank]);
    device_free(p->runs[rank].device, &p->sums[rank]);
    calibration_close_cpu(&p->runs[rank]);
    return rc;
}

static void take_row(void *context, const ring_bench_row *row)
{
    ((pair *)context)->result->allreduce_us = row->in_place.median_us;
}

static status measure_latency(pair *p, int rank)
{
    ring_bench_options options;
    option_binding binding = {.table = &ring_bench_option_table, .storage = &options};
    TRY(options_defaults(&binding, 1));
    options.operations = "all_reduce";
    options.check = false;
    options.begin = options.end = SMALL_BYTES;
    ring_bench_config bench = {
        .rank = rank, .world = PAIR, .job_token = p->token, .timeout_ns = 30 * NS_PER_S, .options = &options};
    return ring_bench(&bench, take_row, p);
}

static status run_rank(local_ranks *group, int rank, void *context)
{
    pair *p = context;
    TRY(calibration_bind(p->result, rank));
    TRY(local_ranks_barrier(group));
    TRY(calibration_copy_gbs(COPY_BYTES, &p->memory_gbs[rank]));
    for (int model = 0; model < CALIBRATION_MODELS; model++) TRY(measure_model(group, p, rank, model));
    return measure_latency(p, rank);
}

/* ---- result ----------------------------------------------------------------------------------- */

/* Returns the rate of a pass that processes `bytes`, as the mean of both ranks. */
static double rate_of(pair *p, pass which, double bytes)
{
    double ns = 0;
    for (int r = 0; r < PAIR; r++) ns += median_of(p->times[r].passes[which], CALIBRATION_REPEATS) / PAIR;
    return ns > 0 ? bytes / ns : 0;
}

static void take_result(pair *p)
{
    calibration *c = p->result;
    double bytes = p->bytes;
    for (int k = 0; k < CALIBRATED_CONTENTIONS; k++) {
        double sums[CALIBRATION_SETTINGS] = {0};
        for (int r = 0; r < PAIR; r++)
            for (int setting = 0; setting < CALIBRATION_SETTINGS; setting++)
                sums[setting] += p->times[r].compute_s[setting][k];
        double alone = sums[CALIBRATION_ALONE], together = sums[CALIBRATION_BESIDE];
        c->contention[k] = alone > 0 && together > alone ? together / alone : 1;
    }
    c->host_memory_gbs = p->memory_gbs[0] + p->memory_gbs[1];
    c->pack_gbs = rate_of(p, PASS_PACK, 2 * bytes); /* Reads and writes. */
    c->host_sum_gbs =
        rate_of(p, PASS_SERVE, SERVER_ARENAS * bytes / 2); /* Sum and update: 2 reads, 1 write each. */
    double scatter = rate_of(p, PASS_REDUCE_SCATTER, bytes), gather = rate_of(p, PASS_ALL_GATHER, bytes);
    c->allreduce_gbs = scatter > 0 && gather > 0 ? 1 / (1 / scatter + 1 / gather) : 0;
    c->copy_gbs = rate_of(p, PASS_COPY, bytes / 2);
}

status calibrate_pair(calibration *c)
{
    pair p = {.result = c, .token = (uint64_t)clock_now_ns()};
    TRY(local_ranks_run(PAIR, run_rank, &p));
    take_result(&p);
    return STATUS_OK;
}
