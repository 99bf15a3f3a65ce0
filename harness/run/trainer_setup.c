#include "harness/run/trainer_setup.h"

#include "common/data/sampler.h"

/* Batches that an epoch's last step may have besides the full one. */
static status odd_sizes(const sampler_config *c, int rank, int64_t sizes[TRAINER_MAX_SIZES])
{
    sampler sampler;
    TRY(sampler_init(&sampler, c));
    int64_t count = sampler_span_of(&sampler, rank, sampler.steps - 1).count;
    if (count != c->batch && count != 0) sizes[0] = count;
    return STATUS_OK;
}

/* Gradients smaller than this are exchanged by the compute thread itself: a wake-up of another thread
 * would take longer than the exchange. */
enum { INLINE_BYTES = 256 << 10 };

static bool progress_inline(const run_config *c, const nn_model *m)
{
    if (c->run.inline_progress != 0) return c->run.inline_progress == 2;
    return m->parameter_elements * 4 <= INLINE_BYTES;
}

status trainer_setup(const run_config *c, const dataset *set, const nn_model *model, int engine, int rank, int world,
                     trainer_config *out)
{
    const data_description *data = dataset_describe(set);
    sampler_config sampler = {.mode = (sampler_mode)c->data.sampler,
                              .samples = data->samples[DATA_TRAIN],
                              .batch = c->data.batch,
                              .world = world,
                              .drop_last = c->data.drop_last};
    *out = (trainer_config){.rank = rank,
                            .world = world,
                            .device = c->run.device,
                            .precision = run_config_precision(c),
                            .share_gpu = c->run.share_gpu,
                            .benchmark = c->run.cudnn_benchmark,
                            .prefetch = c->run.prefetch != 0,
                            .cuda_graph = c->run.cuda_graph,
                            .threads = run_config_threads(c, engine),
                            .model = model,
                            .engine = engine_table[engine],
                            .engine_options = c->engine_options[engine],
                            .policy = c->policies[engine],
                            .optimizer = &c->optimizer,
                            .batch = c->data.batch,
                            /* Gathering rows pays where most have no target. */
                            .masked_loss = data->form.target == DATA_TARGET_MASKED,
                            .sum_loss = c->run.loss_reduction == 1,
                            .stall_timeout_ns = c->shared.stall_timeout_ns,
                            .inline_progress = progress_inline(c, model),
                            .accumulate = c->run.accumulate,
                            .divide = c->shared.divide,
                            .slow = run_config_slow(c, engine)};
    TRY(net_link_parse(c->shared.link, &out->link));
    return odd_sizes(&sampler, rank, out->sizes);
}
