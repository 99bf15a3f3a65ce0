#include "common/checkpoint/arenas.h"

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
        return fail(STATUS_CONFIG,
                    "a checkpoint: found the device %s, which keeps no values, allowed is one that does",
                    device->name);
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
    if (!a->states[t->state]) return STATUS_OK; /* of a rank that never updates */
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
