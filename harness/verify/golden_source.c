#include "harness/verify/golden_source.h"

#include <stdlib.h>

typedef struct golden_source {
    batch_source base;
    const golden_file *file;
    const nn_model *model;
    int rank;
    void *inputs, *targets;
} golden_source;

static status source_next(batch_source *base, int64_t step, batch_view *out)
{
    golden_source *s = (golden_source *)base;
    int64_t counted = golden_fill_batch(s->file, s->model, step, s->rank, s->inputs, s->targets);
    *out = (batch_view){.inputs = s->inputs,
                   .targets = s->targets,
                   .count = s->file->batch,
                   .targets_counted = counted,
                   .step = step,
                   .epoch_step = step};
    return STATUS_OK;
}

static void source_give_back(batch_source *base, const batch_view *b)
{
    (void)base;
    (void)b;
}

static void source_close(batch_source *base)
{
    golden_source *s = (golden_source *)base;
    free(s->inputs);
    free(s->targets);
    free(s);
}

static const batch_source_type golden_source_type = {"golden", source_next, source_give_back, source_close};

status golden_source_open(const golden_file *file, const nn_model *model, int rank, batch_source **out)
{
    *out = NULL;
    golden_source *s = calloc(1, sizeof *s);
    if (!s) return fail(STATUS_SYSTEM, "no memory for the batches of %s", file->path);
    s->base = (batch_source){
        .type = &golden_source_type, .form = data_form_of_model(model), .largest_batch = file->batch};
    s->file = file;
    s->model = model;
    s->rank = rank;
    size_t samples = (size_t)file->batch; /* inputs and targets have 4 bytes an element */
    s->inputs = malloc(samples * (size_t)data_form_input_elements(&s->base.form) * 4);
    s->targets = malloc(samples * (size_t)data_form_target_elements(&s->base.form) * 4);
    if (!s->inputs || !s->targets) {
        source_close(&s->base);
        return fail(STATUS_SYSTEM, "no memory for the batches of %s", file->path);
    }
    *out = &s->base;
    return STATUS_OK;
}
