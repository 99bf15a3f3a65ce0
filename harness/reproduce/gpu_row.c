#include "harness/reproduce/reproduce.h"

#include "common/base/clock.h"
#include "common/base/options.h"
#include "common/base/random.h"
#include "common/data/batch_source.h"
#include "harness/options/engines.h"
#include "harness/options/run_options.h"
#include "harness/report/statistics.h"
#include "harness/train/local_ranks.h"
#include "harness/train/trainer.h"

#include <stdlib.h>

enum { MOST_GPUS = 16 };

typedef struct measuring {
    const gpu_row *row;
    const nn_model *model;
    const sync_engine_type *engine;
    const void *options;
    status_table *table;
    uint64_t token;
    double forward_ms[MOST_GPUS], backward_ms[MOST_GPUS];
} measuring;

/* ---- the batch of every step: random images, all of class 0 ----------------------------------- */

typedef struct fixed_batch {
    int64_t inputs, targets; /* Elements of the inputs and of the targets of a batch. */
} fixed_batch;

static int64_t fill(const void *context, int64_t step, void *inputs, void *targets)
{
    const fixed_batch *b = context;
    (void)targets;
    for (int64_t i = 0; i < b->inputs && step == 0; i++)
        ((float *)inputs)[i] = (float)random_signed(1, (uint64_t)i);
    return b->targets;
}

/* ---- ranks ------------------------------------------------------------------------------------ */

static status run_steps(measuring *m, int rank, trainer *t, batch_source *source)
{
    const gpu_row *row = m->row;
    int64_t *forward = calloc((size_t)row->steps * 2, sizeof *forward), *backward = forward + row->steps;
    if (!forward) return fail(STATUS_SYSTEM, "no memory for times");
    status rc = STATUS_OK;
    for (int64_t s = 0; s < row->warmup + row->steps && rc == STATUS_OK; s++) {
        step_result r;
        rc = trainer_step(t, source, s, s, &r);
        if (rc != STATUS_OK || s < row->warmup) continue;
        int64_t reduced = r.reduced_ns > r.backward_end_ns ? r.reduced_ns : r.backward_end_ns;
        forward[s - row->warmup] = r.forward_end_ns - r.forward_begin_ns;
        backward[s - row->warmup] = reduced - r.backward_begin_ns;
    }
    if (rc == STATUS_OK) rc = sync_flush(trainer_engine(t));
    m->forward_ms[rank] = statistics_of(forward, row->steps).median / NS_PER_MS;
    m->backward_ms[rank] = statistics_of(backward, row->steps).median / NS_PER_MS;
    free(forward);
    return rc;
}

static status run_rank(local_ranks *group, int rank, void *context)
{
    measuring *m = context;
    const gpu_row *row = m->row;
    trainer_config config = {.sync.rank = rank,
                             .sync.world = row->gpus,
                             .local_rank = rank,
                             .sync.job_token = m->token,
                             .device = "cuda",
                             .threads = 1,
                             .model = m->model,
                             .engine = m->engine,
                             .sync.options = m->options,
                             .sync.policy = row->policy,
                             .optimizer = &row->optimizer,
                             .batch = row->batch,
                             .total_steps = row->warmup + row->steps,
                             .sync.slot = status_table_slot(m->table, rank),
                             .sync.stall_timeout_ns = 60 * NS_PER_S,
                             .separate_phases = true};
    data_form form = data_form_of_model(m->model);
    fixed_batch batch = {row->batch * data_form_input_elements(&form),
                         row->batch * data_form_target_elements(&form)};
    trainer *t = NULL;
    batch_source *source = NULL;
    status rc;
    TRY_GOTO(rc, trainer_open(&config, &t), out);
    TRY_GOTO(rc, param_set_initialize(trainer_params(t), trainer_stream(t), 1), out);
    TRY_GOTO(rc, batch_source_open_filled(&form, row->batch, fill, &batch, sizeof batch, &source), out);
    TRY_GOTO(rc, local_ranks_connect(group, rank, t), out);
    TRY_GOTO(rc, run_steps(m, rank, t, source), out);
    rc = local_ranks_barrier(group); /* A peer may still use this rank's memory. */
out:
    if (source) batch_source_close(&source);
    trainer_close(&t);
    return rc;
}

status gpu_row_measure(const gpu_row *row, double *forward_ms, double *backward_ms)
{
    _Alignas(16) char options[ENGINE_OPTIONS_SIZE];
    int engine = row->gpus > 1 ? ENGINE_RING : ENGINE_NONE;
    option_binding binding = {.table = engine_table[engine]->options, .storage = options};
    gpu_row named = *row;
    nn_model *model = NULL;
    measuring m = {
        .row = &named, .engine = engine_table[engine], .options = options, .token = random_token()};
    if (row->gpus > MOST_GPUS)
        return fail(STATUS_INTERNAL, "expected at most %d GPUs, got %d", MOST_GPUS, row->gpus);
    if (engine == ENGINE_NONE) named.policy = engine_table[engine]->policies[0].name;
    if (binding.table) TRY(options_defaults(&binding, 1));
    status rc = model_build(&row->model, &model);
    m.model = model;
    if (rc == STATUS_OK) rc = status_table_create(m.token, row->gpus, &m.table);
    if (rc == STATUS_OK) rc = local_ranks_run(row->gpus, run_rank, &m);
    *forward_ms = *backward_ms = 0;
    for (int r = 0; r < row->gpus && rc == STATUS_OK; r++) {
        if (m.forward_ms[r] > *forward_ms) *forward_ms = m.forward_ms[r];
        if (m.backward_ms[r] > *backward_ms) *backward_ms = m.backward_ms[r];
    }
    status_table_close(&m.table);
    nn_model_free(&model);
    return rc;
}
