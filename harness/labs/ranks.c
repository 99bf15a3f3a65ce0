#include "harness/labs/ranks.h"

#include "common/data/batches.h"
#include "common/net/status_table.h"
#include "harness/train/trainer.h"
#include "models/models.h"

#include <stdlib.h>

const int64_t lab_ranks_tensors[LAB_RANKS_TENSORS] = {13 * 64, 64, 64 * 3, 3};

enum { MOST_RANKS = 8 };

/* Batch source that returns only the first `samples` samples of each batch of the source `whole`. */
typedef struct cut_source {
    batch_source base;
    batch_source *whole;
    int64_t samples;
} cut_source;

typedef struct lab_rank {
    trainer *trainer;
    cut_source source;
    int64_t steps;
} lab_rank;

struct lab_ranks {
    int count;
    lab_rank ranks[MOST_RANKS];
    dataset *set;
    nn_model *model;
    status_table *table;
    optimizer_options optimizer;
};

/* ---- batches ---- */

static status cut_next(batch_source *base, int64_t step, batch_view *out)
{
    cut_source *s = (cut_source *)base;
    TRY(batch_source_next(s->whole, step, out));
    out->count = out->targets_counted = s->samples;
    return STATUS_OK;
}

static void cut_give_back(batch_source *base, const batch_view *b)
{
    batch_source_return(((cut_source *)base)->whole, b);
}

static void cut_close(batch_source *base)
{
    (void)base;
}

static const batch_source_type cut_type = {cut_next, batch_source_always_ready, cut_give_back, cut_close};

/* ---- ranks ---- */

static status open_rank(struct lab_ranks *l, int rank, uint64_t seed)
{
    lab_rank *r = &l->ranks[rank];
    trainer_config config = {.sync.world = 1,
                             .device = "cpu",
                             .threads = 1,
                             .model = l->model,
                             .engine = &sync_none,
                             .sync.policy = "none",
                             .optimizer = &l->optimizer,
                             .batch = LAB_RANKS_BATCH,
                             .sizes = {1, 3, 6},
                             .sync.slot = status_table_slot(l->table, rank),
                             .sync.stall_timeout_ns = 60 * NS_PER_S};
    batches_config batches = {.set = l->set,
                              .part = DATA_TRAIN,
                              .purpose = BATCHES_TRAIN,
                              .model = data_form_of_model(l->model),
                              .seed = seed,
                              .rank = rank,
                              .world = l->count,
                              .batch = LAB_RANKS_BATCH,
                              .drop_last = true};
    TRY(batches_open(&batches, &r->source.whole));
    r->source.base = *r->source.whole;
    r->source.base.type = &cut_type;
    TRY(trainer_open(&config, &r->trainer));
    TRY(sync_connect(trainer_engine(r->trainer), NULL));
    return param_set_initialize(trainer_params(r->trainer), trainer_stream(r->trainer), seed);
}

/* Exports all parameters or gradients one after another, in PyTorch's order. */
static status export(const lab_rank *r, const void *arena, float *out)
{
    const param_set *set = trainer_params(r->trainer);
    for (int p = 0; p < LAB_RANKS_TENSORS; out += lab_ranks_tensors[p++])
        TRY(param_set_export(set, trainer_stream(r->trainer), arena, p, DTYPE_F32, out));
    return STATUS_OK;
}

status lab_ranks_open(grader *g, int ranks, float *initial)
{
    lab_ranks_close(g);
    struct lab_ranks *l = g->ranks = calloc(1, sizeof *l);
    if (!l) return fail(STATUS_SYSTEM, "lab: no memory for the ranks");
    l->count = ranks;
    l->optimizer = optimizer_defaults(OPTIMIZER_SGD);
    TRY(dataset_open(&(dataset_config){.spec = "wine"}, &l->set));
    TRY(model_build(&(model_options){.name = "wine_mlp"}, &l->model));
    TRY(status_table_create(0, ranks, &l->table));
    for (int r = 0; r < ranks; r++) TRY(open_rank(l, r, g->seed));
    return export(&l->ranks[0], trainer_params(l->ranks[0].trainer)->params.data, initial);
}

void lab_ranks_close(grader *g)
{
    struct lab_ranks *l = g->ranks;
    if (!l) return;
    for (int r = 0; r < l->count; r++) {
        trainer_close(&l->ranks[r].trainer);
        if (l->ranks[r].source.whole) batch_source_close(&l->ranks[r].source.whole);
    }
    status_table_close(&l->table);
    nn_model_free(&l->model);
    dataset_close(&l->set);
    free(l);
    g->ranks = NULL;
}

status lab_ranks_compute(const grader *g, int rank, int64_t step, int64_t samples, const float *param,
                         float *grad, double *loss)
{
    lab_rank *r = &g->ranks->ranks[rank];
    param_set *set = trainer_params(r->trainer);
    step_result result;
    piece_list owned;
    for (int p = 0; p < LAB_RANKS_TENSORS; param += lab_ranks_tensors[p++])
        TRY(param_set_import(set, trainer_stream(r->trainer), set->params.data, p, DTYPE_F32, param));
    r->source.samples = samples;
    TRY(trainer_step(r->trainer, &r->source.base, r->steps++, step, &result));
    *loss = result.loss;
    return export(r, sync_reduced_gradients(trainer_engine(r->trainer), &owned), grad);
}

status lab_ranks_compute_all(const grader *g, int64_t step, const float *param,
                             float grad[][LAB_RANKS_ELEMENTS], double *loss)
{
    *loss = 0;
    for (int r = 0; r < g->ranks->count; r++) {
        double own;
        TRY(lab_ranks_compute(g, r, step, LAB_RANKS_BATCH, param, grad[r], &own));
        *loss += own / g->ranks->count;
    }
    return STATUS_OK;
}
