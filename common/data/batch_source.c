#include "common/data/batch_source.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

status batch_source_next(batch_source *s, int64_t step, batch_view *out)
{
    assert(step >= 0);
    *out = (batch_view){0};
    return s->type->next(s, step, out);
}

void batch_source_return(batch_source *s, const batch_view *b)
{
    s->type->give_back(s, b);
}

bool batch_source_ready(batch_source *s, int64_t step)
{
    return s->type->ready(s, step);
}

bool batch_source_always_ready(batch_source *s, int64_t step)
{
    (void)s, (void)step;
    return true;
}

void batch_source_ignore_return(batch_source *s, const batch_view *b)
{
    (void)s, (void)b;
}

void batch_source_close(batch_source **s)
{
    if (!*s) return;
    (*s)->type->close(*s);
    *s = NULL;
}

batch_position batch_position_of_step(const batch_source *s, int64_t step)
{
    if (s->steps_per_epoch == 0) return (batch_position){.epoch_step = step};
    return (batch_position){step / s->steps_per_epoch, step % s->steps_per_epoch};
}

int64_t batch_step_of_position(const batch_source *s, batch_position position)
{
    return position.epoch * s->steps_per_epoch + position.epoch_step;
}

/* ---- batches that a function fills ------------------------------------------------------------ */

typedef struct filled_source {
    batch_source base;
    batch_fill fill;
    void *inputs, *targets;
    _Alignas(max_align_t) char context[];
} filled_source;

static status filled_next(batch_source *base, int64_t step, batch_view *out)
{
    filled_source *s = (filled_source *)base;
    *out = (batch_view){.inputs = s->inputs,
                        .targets = s->targets,
                        .count = base->largest_batch,
                        .targets_counted = s->fill(s->context, step, s->inputs, s->targets),
                        .step = step,
                        .epoch_step = step};
    return STATUS_OK;
}

static void filled_close(batch_source *base)
{
    filled_source *s = (filled_source *)base;
    free(s->inputs);
    free(s->targets);
    free(s);
}

static const batch_source_type filled_type = {filled_next, batch_source_always_ready,
                                              batch_source_ignore_return, filled_close};

status batch_source_open_filled(const data_form *form, int64_t samples, batch_fill fill, const void *context,
                                size_t context_bytes, batch_source **out)
{
    enum { ELEMENT = 4 }; /* size of a float32 or an int32 in bytes */
    *out = NULL;
    filled_source *s = calloc(1, sizeof *s + context_bytes);
    if (!s) return fail(STATUS_SYSTEM, "no memory for a batch of %lld samples", (long long)samples);
    s->base = (batch_source){.type = &filled_type, .form = *form, .largest_batch = samples};
    s->fill = fill;
    memcpy(s->context, context, context_bytes);
    s->inputs = malloc((size_t)(samples * data_form_input_elements(form)) * ELEMENT);
    s->targets = calloc((size_t)(samples * data_form_target_elements(form)), ELEMENT);
    if (!s->inputs || !s->targets) {
        filled_close(&s->base);
        return fail(STATUS_SYSTEM, "no memory for a batch of %lld samples", (long long)samples);
    }
    *out = &s->base;
    return STATUS_OK;
}
