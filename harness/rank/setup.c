#include "harness/rank/rank.h"

#include "common/data/batches.h"
#include "harness/options/engines.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

sampler_config trainer_sampler(const run_config *c, const dataset *set, int job, int world)
{
    return (sampler_config){.mode = (sampler_mode)c->data.sampler,
                            .samples = dataset_describe(set)->samples[DATA_TRAIN],
                            .batch = run_config_batch(c, job),
                            .world = world,
                            .drop_last = c->data.drop_last};
}

status trainer_setup_job(const run_config *c, const dataset *set, const nn_model *model, int job, int rank,
                         int world, trainer_config *out)
{
    int engine = job_engine(job);
    sampler_config config = trainer_sampler(c, set, job, world);
    sampler sampler;
    TRY(sampler_init(&sampler, &config));
    *out = (trainer_config){.sync.rank = rank,
                            .sync.world = world,
                            .prefetch = c->run.prefetch != 0,
                            .threads = 1,
                            .model = model,
                            .engine = engine_table[engine],
                            .sync.options = c->engine_options[engine],
                            .sync.policy = c->policies[engine],
                            .optimizer = &c->optimizer,
                            .batch = config.batch,
                            .sum_loss = c->run.loss_reduction == 1,
                            .sync.stall_timeout_ns = CLOCK_NEVER / 4, /* virtual ranks do not stall */
                            .accumulate = c->run.accumulate,
                            .sync.divide = c->shared.divide,
                            .slow = run_config_slow(c, job)};
    /* The last batch of an epoch may not be full. */
    int64_t last = sampler_span_of(&sampler, rank, sampler.steps - 1).count;
    if (last != config.batch) out->sizes[0] = last;
    return STATUS_OK;
}

status trainer_setup(const run_config *c, const dataset *set, const nn_model *model, int job, int rank,
                     int world, trainer_config *out)
{
    /* The compute thread itself exchanges gradients up to this size. Waking another thread would take longer
     * than the exchange. */
    enum { INLINE_BYTES = 256 << 10 };
    bool small = model->parameter_elements * 4 <= INLINE_BYTES;
    TRY(trainer_setup_job(c, set, model, job, rank, world, out));
    out->device = c->run.device;
    out->precision = run_config_precision(c);
    out->sync.share_gpu = c->run.share_gpu;
    out->sync.stall_timeout_ns = c->shared.stall_timeout_ns;
    out->benchmark = c->run.benchmark;
    out->cuda_graph = c->run.cuda_graph;
    out->threads = run_config_threads(c, job);
    /* Most rows have no target, so a head that computes only the rows with a target is faster. */
    out->masked_loss = dataset_describe(set)->form.target == DATA_TARGET_MASKED;
    out->sync.inline_progress = c->run.inline_progress == 0 ? small : c->run.inline_progress == 2;
    return run_config_link(c, &out->sync.link);
}

/* ---- batches ---------------------------------------------------------------------------------- */

static status allocate(void *context, size_t bytes, void **out)
{
    rank_batches *m = context;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    *out = aligned_alloc(page, whole);
    if (!*out) return fail(STATUS_SYSTEM, "loader: no memory for a buffer of %zu bytes", whole);
    memset(*out, 0, whole); /* pages must exist before they are pinned */
    if (m->buffer_count < TRAINER_MAX_BUFFERS) m->buffers[m->buffer_count++] = (sync_blob){*out, whole};
    return STATUS_OK;
}

static void release(void *context, void *data)
{
    (void)context;
    free(data);
}

status rank_batches_open(const run_config *c, const rank_place *place, const dataset *set,
                         const nn_model *model, rank_batches *out)
{
    *out = (rank_batches){.loaders = {.context = out, .allocate = allocate, .release = release}};
    sync_requirements needs = {0};
    TRY(run_config_requirements(c, place->engine, place->world, &needs));
    bool elsewhere = needs.whole_batch && place->rank != 0; /* rank 0 loads the batches of this rank */
    int replicas = run_config_replicas(c, place->job);      /* stages of a replica have the same data */
    batches_config b = {.set = set,
                        .part = DATA_TRAIN,
                        .purpose = BATCHES_TRAIN,
                        .model = data_form_of_model(model),
                        .seed = c->run.seed,
                        .rank = place->rank % replicas,
                        .world = replicas,
                        .batch = run_config_batch(c, place->job),
                        .sampler = (sampler_mode)c->data.sampler,
                        .drop_last = c->data.drop_last,
                        .whole = needs.whole_batch && !elsewhere,
                        .threads = elsewhere ? 0 : (int)c->data.loader_threads,
                        .memory = &out->loaders};
    TRY(data_augment_parse(c->data.augment, &b.augment));
    out->loader_threads = b.threads;
    TRY(batches_open(&b, &out->training));
    if (dataset_describe(set)->samples[DATA_TEST] < replicas) return STATUS_OK; /* nothing to evaluate */
    b.part = DATA_TEST;
    b.whole = false;
    b.threads = (int)c->data.loader_threads;
    b.purpose = BATCHES_EVALUATE;
    b.sampler = SAMPLER_DISTRIBUTED;
    b.drop_last = false;
    b.augment = 0;
    return batches_open(&b, &out->evaluation);
}
