#include "common/checkpoint/checkpoint_impl.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const state_names[][2] = {
    [OPTIMIZER_SGD] = {"momentum_buffer"},
    [OPTIMIZER_ADAM] = {"exp_avg", "exp_avg_sq"},
    [OPTIMIZER_ADAMW] = {"exp_avg", "exp_avg_sq"},
};

static checkpoint_tensor *add(checkpoint_contents *c, checkpoint_kind kind, int index, dtype type, shape s)
{
    checkpoint_tensor *t = &c->tensors[c->count++];
    *t = (checkpoint_tensor){
        .kind = kind, .index = index, .type = type, .shape = s, .elements = shape_elements(s)};
    t->bytes = t->elements * dtype_size(type);
    if (t->elements > c->largest_elements) c->largest_elements = t->elements;
    return t;
}

static void add_buffers(checkpoint_contents *c, const nn_model *m, int layer, dtype type)
{
    const nn_layer *l = &m->layers[layer];
    for (int i = 0; i < 2; i++) {
        const nn_buffer *b = &m->buffers[l->buffer[i]];
        checkpoint_tensor *t = add(c, CHECKPOINT_BUFFER, l->buffer[i], type, shape_1d(b->elements));
        snprintf(t->name, sizeof t->name, "%s", b->name);
    }
    checkpoint_tensor *t = add(c, CHECKPOINT_BATCHES, layer, DTYPE_I64, (shape){0});
    snprintf(t->name, sizeof t->name, "%s.num_batches_tracked", l->name);
}

/* Returns true if `param` is the last parameter of a BatchNorm. The buffers of the BatchNorm follow this
 * parameter in the list of tensors. */
static bool ends_batchnorm(const nn_model *m, int param)
{
    int layer = m->params[param].layer;
    return layer != NN_NONE && m->layers[layer].kind == NN_BATCHNORM && m->layers[layer].param[1] == param;
}

static void add_model(checkpoint_contents *c, const nn_model *m, dtype type)
{
    for (int i = 0; i < m->param_count; i++) {
        checkpoint_tensor *t = add(c, CHECKPOINT_PARAM, i, type, m->params[i].shape);
        snprintf(t->name, sizeof t->name, "%s", m->params[i].name);
        if (ends_batchnorm(m, i)) add_buffers(c, m, m->params[i].layer, type);
    }
}

static void add_states(checkpoint_contents *c, const nn_model *m, dtype type, const optimizer_options *o)
{
    for (int s = 0; s < optimizer_state_count(o); s++) {
        for (int i = 0; i < m->param_count; i++) {
            checkpoint_tensor *t = add(c, CHECKPOINT_STATE, i, type, m->params[i].shape);
            t->state = s;
            snprintf(t->name, sizeof t->name, "optimizer.%s.%s", state_names[o->kind][s], m->params[i].name);
        }
    }
}

static void place(checkpoint_contents *c)
{
    for (int integers = 1; integers >= 0; integers--) {
        for (int i = 0; i < c->count; i++) {
            checkpoint_tensor *t = &c->tensors[i];
            if ((t->kind == CHECKPOINT_BATCHES) != (integers == 1)) continue;
            t->begin = c->data_bytes;
            c->data_bytes += t->bytes;
        }
    }
}

status checkpoint_contents_make(const nn_model *model, dtype type, const optimizer_options *optimizer,
                                checkpoint_contents *out)
{
    int states = optimizer ? optimizer_state_count(optimizer) : 0;
    int most = model->param_count * (1 + states) + 2 * model->buffer_count;
    *out = (checkpoint_contents){.tensors = calloc((size_t)most + 1, sizeof *out->tensors)};
    if (!out->tensors) return fail(STATUS_SYSTEM, "no memory for a checkpoint of model %s", model->name);
    add_model(out, model, type);
    if (optimizer) add_states(out, model, type, optimizer);
    place(out);
    return STATUS_OK;
}

int checkpoint_stage_of(const checkpoint_subject *subject, const checkpoint_tensor *t)
{
    const nn_model *m = subject->model;
    if (t->kind == CHECKPOINT_BUFFER) return nn_stage_of_buffer(m, subject->cut, t->index);
    if (t->kind == CHECKPOINT_BATCHES)
        return nn_stage_of_buffer(m, subject->cut, m->layers[t->index].buffer[0]);
    return nn_stage_of_param(m, subject->cut, t->index);
}

void checkpoint_contents_free(checkpoint_contents *contents)
{
    free(contents->tensors);
    *contents = (checkpoint_contents){0};
}

/* ---- a rank's arenas ----------------------------------------------------------------------------- */

checkpoint_arenas checkpoint_arenas_of(param_set *set, device_stream *s, optimizer *o)
{
    checkpoint_arenas arenas = {.set = set, .stream = s};
    int count = o ? optimizer_state_count(optimizer_get_options(o)) : 0;
    for (int i = 0; i < count; i++) arenas.states[i] = optimizer_state(o, i)->data;
    return arenas;
}

static status read_tensor(void *context, const checkpoint_tensor *t, void *values)
{
    const checkpoint_arenas *a = context;
    const param_set *set = a->set;
    const device_info *device = device_get_info(set->device);
    if (!device->real)
        return fail(STATUS_CONFIG, "--save: expected a device with real tensors, got %s", device->name);
    if (t->kind == CHECKPOINT_PARAM)
        return param_set_export(set, a->stream, set->params.data, t->index, t->type, values);
    if (t->kind == CHECKPOINT_BUFFER)
        return param_set_export_buffer(set, a->stream, t->index, t->type, values);
    return param_set_export(set, a->states_on_host ? NULL : a->stream, a->states[t->state], t->index, t->type,
                            values);
}

static status write_tensor(void *context, const checkpoint_tensor *t, dtype type, const void *values)
{
    checkpoint_arenas *a = context;
    param_set *set = a->set;
    if (t->kind == CHECKPOINT_PARAM)
        return param_set_import(set, a->stream, set->params.data, t->index, type, values);
    if (t->kind == CHECKPOINT_BUFFER) return param_set_import_buffer(set, a->stream, t->index, type, values);
    /* A rank that never updates parameters has no optimizer state. */
    if (!a->states[t->state]) return STATUS_OK;
    return param_set_import(set, a->stream, a->states[t->state], t->index, type, values);
}

checkpoint_source checkpoint_arenas_source(checkpoint_arenas *arenas)
{
    return (checkpoint_source){arenas, read_tensor};
}

checkpoint_sink checkpoint_arenas_sink(checkpoint_arenas *arenas)
{
    return (checkpoint_sink){arenas, write_tensor};
}
