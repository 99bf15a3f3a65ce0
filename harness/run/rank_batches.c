#include "harness/run/rank_batches.h"

#include "common/data/batches.h"
#include "harness/run/engines.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 };

static status allocate(void *context, size_t bytes, void **out)
{
    rank_batches *m = context;
    size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    *out = aligned_alloc(PAGE, whole);
    if (!*out) return fail(STATUS_SYSTEM, "loader: no memory for a buffer of %zu bytes", whole);
    memset(*out, 0, whole); /* what is pinned has its pages */
    if (m->buffer_count < TRAINER_MAX_BUFFERS) {
        m->buffers[m->buffer_count].data = *out;
        m->buffers[m->buffer_count++].bytes = whole;
    }
    return STATUS_OK;
}

static void release(void *context, void *data)
{
    (void)context;
    free(data);
}

status rank_batches_open(const run_config *c, const rank_place *place, const dataset *set, const nn_model *model,
                         rank_batches *out)
{
    int engine = place->engine;
    *out = (rank_batches){.loaders = {.context = out, .allocate = allocate, .release = release}};
    sync_requirements needs = {0};
    TRY(engine_table[engine]->requirements(c->engine_options[engine], c->policies[engine], place->world, &needs));
    bool elsewhere = needs.whole_batch && place->rank != 0; /* rank 0 loads this rank's batches */
    batches_config b = {.set = set,
                        .part = DATA_TRAIN,
                        .purpose = BATCHES_TRAIN,
                        .model = data_form_of_model(model),
                        .seed = c->run.seed,
                        .rank = place->rank,
                        .world = place->world,
                        .batch = c->data.batch,
                        .sampler = (sampler_mode)c->data.sampler,
                        .drop_last = c->data.drop_last,
                        .whole = needs.whole_batch && !elsewhere,
                        .threads = elsewhere ? 0 : (int)c->data.loader_threads,
                        .memory = &out->loaders};
    TRY(data_augment_parse(c->data.augment, &b.augment));
    TRY(batches_open(&b, &out->training));
    if (dataset_describe(set)->samples[DATA_TEST] < place->world) return STATUS_OK; /* nothing to evaluate */
    b.part = DATA_TEST;
    b.whole = false;
    b.threads = (int)c->data.loader_threads;
    b.purpose = BATCHES_EVALUATE;
    b.sampler = SAMPLER_DISTRIBUTED;
    b.drop_last = false;
    b.augment = 0;
    return batches_open(&b, &out->evaluation);
}

void rank_batches_pin(const rank_batches *b, trainer *t)
{
    for (int i = 0; i < b->buffer_count; i++) trainer_pin(t, b->buffers[i].data, b->buffers[i].bytes);
}

void rank_batches_close(rank_batches *b)
{
    if (b->training) batch_source_close(&b->training);
    if (b->evaluation) batch_source_close(&b->evaluation);
}
