#include "harness/verify/golden_source.h"

#include <stdlib.h>

enum { ELEMENT = 4 }; /* bytes: float32 or int32 */

typedef struct golden_source {
    batch_source base;
    const golden_file *file;
    const nn_model *model;
    int first, ranks;
    void *inputs, *targets;
} golden_source;

static status source_next(batch_source *base, int64_t step, batch_view *out)
{
    golden_source *s = (golden_source *)base;
    size_t inputs = (size_t)(s->file->batch * data_form_input_elements(&base->form)) * ELEMENT;
    size_t targets = (size_t)(s->file->batch * data_form_target_elements(&base->form)) * ELEMENT;
    int64_t counted = 0;
    for (int i = 0; i < s->ranks; i++)
        counted += golden_fill_batch(s->file, s->model, step, s->first + i, (char *)s->inputs + (size_t)i * inputs,
                                     (char *)s->targets + (size_t)i * targets);
    *out = (batch_view){.inputs = s->inputs,
                   .targets = s->targets,
                   .count = s->file->batch * s->ranks,
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

static const batch_source_type golden_source_type = {"golden", source_next, batch_source_always_ready, source_give_back,
                                                     source_close};

status golden_source_open(const golden_file *file, const nn_model *model, int first, int ranks, batch_source **out)
{
    *out = NULL;
    golden_source *s = calloc(1, sizeof *s);
    if (!s) return fail(STATUS_SYSTEM, "no memory for the batches of %s", file->path);
    s->base = (batch_source){
        .type = &golden_source_type, .form = data_form_of_model(model), .largest_batch = file->batch * ranks};
    s->file = file;
    s->model = model;
    s->first = first;
    s->ranks = ranks;
    size_t samples = (size_t)(file->batch * ranks);
    s->inputs = malloc(samples * (size_t)data_form_input_elements(&s->base.form) * ELEMENT);
    s->targets = malloc(samples * (size_t)data_form_target_elements(&s->base.form) * ELEMENT);
    if (!s->inputs || !s->targets) {
        source_close(&s->base);
        return fail(STATUS_SYSTEM, "no memory for the batches of %s", file->path);
    }
    *out = &s->base;
    return STATUS_OK;
}
