#include "harness/run/rank_tensors.h"

#include <stdlib.h>
#include <string.h>

/* Bytes per broadcast. */
enum { CHUNK = 32 << 20 };
_Static_assert((int)CHUNK <= (int)RENDEZVOUS_BLOB_MAX, "a chunk is one contribution");

rank_tensors rank_tensors_of(const rank_state *s)
{
    rank_tensors x = {.rank = s,
                      .subject = {.model = s->model,
                                  .type = trainer_params(s->devices[0].trainer)->type,
                                  .model_options = &s->checkpoint.model_binding,
                                  .optimizer = &s->config->optimizer,
                                  .cut = s->checkpoint.cut}};
    for (int d = 0; d < s->device_count; d++) {
        trainer *t = s->devices[d].trainer;
        x.arenas[d] = checkpoint_arenas_of(trainer_params(t), trainer_stream(t), trainer_optimizer(t));
    }
    return x;
}

/* Finds the tensor in the model of a device. Returns false if only other stages have the tensor. */
static bool find_own(const rank_tensors *x, int device, const checkpoint_tensor *t, checkpoint_tensor *own)
{
    const nn_model *whole = x->subject.model, *stage = x->arenas[device].set->model;
    *own = *t;
    if (stage == whole) return true;
    own->index = t->kind == CHECKPOINT_BUFFER ? nn_find_buffer(stage, whole->buffers[t->index].name)
                                              : nn_find_param(stage, whole->params[t->index].name);
    return own->index != NN_NONE;
}

status rank_tensors_write(void *context, const checkpoint_tensor *t, dtype type, const void *values)
{
    rank_tensors *x = context;
    for (int d = 0; d < x->rank->device_count; d++) {
        checkpoint_sink arenas = checkpoint_arenas_sink(&x->arenas[d]);
        checkpoint_tensor own;
        if (find_own(x, d, t, &own)) TRY(arenas.write(arenas.context, &own, type, values));
    }
    return STATUS_OK;
}

static status read_own(rank_tensors *x, const checkpoint_tensor *t, void *values)
{
    checkpoint_tensor own;
    int device = 0;
    while (device < x->rank->device_count && !find_own(x, device, t, &own)) device++;
    if (device == x->rank->device_count)
        return fail(STATUS_INTERNAL, "%s is not a tensor of this rank", t->name);
    checkpoint_source arenas = checkpoint_arenas_source(&x->arenas[device]);
    return arenas.read(arenas.context, &own, values);
}

/* Passes a tensor from rank `from`, which is not rank 0, to rank 0. */
static status pass(const rank_state *s, int from, int64_t bytes, char *values)
{
    for (int64_t at = 0; at < bytes; at += CHUNK) {
        size_t size = bytes - at < CHUNK ? (size_t)(bytes - at) : CHUNK;
        rendezvous_blob blob;
        TRY(rendezvous_broadcast(s->rendezvous, "tensors of stages", from, values ? values + at : NULL, size,
                                 rank_deadline(s), &blob));
        if (blob.bytes != size)
            return fail(STATUS_PROTOCOL, "rank %d sent %zu bytes of a tensor, not %zu", from, blob.bytes,
                        size);
        if (s->place->rank == 0) memcpy(values + at, blob.data, size);
    }
    return STATUS_OK;
}

status rank_tensors_gather(void *context, const checkpoint_tensor *t, void *values)
{
    rank_tensors *x = context;
    const rank_place *p = x->rank->place;
    const nn_cut *cut = x->subject.cut;
    int from = cut ? checkpoint_stage_of(&x->subject, t) * (p->world / cut->count) : 0;
    if (from == 0) return p->rank == 0 ? read_own(x, t, values) : STATUS_OK;
    if (p->rank != from) return pass(x->rank, from, t->bytes, values);
    void *own = malloc((size_t)t->bytes);
    status rc = own ? read_own(x, t, own) : fail(STATUS_SYSTEM, "no memory to send %s", t->name);
    if (rc == STATUS_OK) rc = pass(x->rank, from, t->bytes, own);
    free(own);
    return rc;
}

/* Sends the tensors in the order in which rank 0 reads them. */
status rank_tensors_send(rank_tensors *x)
{
    const checkpoint_subject *s = &x->subject;
    checkpoint_contents contents;
    TRY(checkpoint_contents_make(s->model, s->type, s->optimizer, &contents));
    status rc = STATUS_OK;
    for (int i = 0; i < contents.count && rc == STATUS_OK; i++)
        if (contents.tensors[i].kind != CHECKPOINT_BATCHES)
            rc = rank_tensors_gather(x, &contents.tensors[i], NULL);
    checkpoint_contents_free(&contents);
    return rc;
}
