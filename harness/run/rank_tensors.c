#include "harness/run/rank_tensors.h"

#include "common/base/clock.h"

#include <stdlib.h>
#include <string.h>

/* Bytes per broadcast. */
enum { CHUNK = 32 << 20 };
_Static_assert((int)CHUNK <= (int)RENDEZVOUS_BLOB_MAX, "a chunk is one contribution");

static checkpoint_arenas arenas_of(trainer *t)
{
    return checkpoint_arenas_of(trainer_params(t), trainer_stream(t), trainer_optimizer(t));
}

rank_tensors rank_tensors_of(const rank_checkpoint *c, const checkpoint_subject *subject)
{
    rank_tensors x = {.checkpoint = c, .subject = subject, .count = 1 + c->device_count};
    x.arenas[0] = arenas_of(c->trainer);
    for (int d = 0; d < c->device_count; d++) x.arenas[1 + d] = arenas_of(c->devices[d]);
    return x;
}

/* Finds the tensor in the model of a device. Returns false if only other stages have the tensor. */
static bool find_own(const rank_tensors *x, int device, const checkpoint_tensor *t, checkpoint_tensor *own)
{
    const nn_model *whole = x->subject->model, *stage = x->arenas[device].set->model;
    *own = *t;
    if (stage == whole) return true;
    own->index = t->kind == CHECKPOINT_BUFFER ? nn_find_buffer(stage, whole->buffers[t->index].name)
                                              : nn_find_param(stage, whole->params[t->index].name);
    return own->index != NN_NONE;
}

/* Writes the tensor to all devices that have it. */
static status write_own(void *context, const checkpoint_tensor *t, dtype type, const void *values)
{
    rank_tensors *x = context;
    for (int d = 0; d < x->count; d++) {
        checkpoint_sink arenas = checkpoint_arenas_sink(&x->arenas[d]);
        checkpoint_tensor own;
        if (find_own(x, d, t, &own)) TRY(arenas.write(arenas.context, &own, type, values));
    }
    return STATUS_OK;
}

static status read_own(void *context, const checkpoint_tensor *t, void *values)
{
    rank_tensors *x = context;
    checkpoint_tensor own;
    int device = 0;
    while (device < x->count && !find_own(x, device, t, &own)) device++;
    if (device == x->count) return fail(STATUS_INTERNAL, "%s is not a tensor of this rank", t->name);
    checkpoint_source arenas = checkpoint_arenas_source(&x->arenas[device]);
    return arenas.read(arenas.context, &own, values);
}

/* Passes a tensor from rank `from`, which is not rank 0, to rank 0. */
static status pass(const rank_checkpoint *c, int from, int64_t bytes, char *values)
{
    for (int64_t at = 0; at < bytes; at += CHUNK) {
        size_t size = bytes - at < CHUNK ? (size_t)(bytes - at) : CHUNK;
        int64_t deadline_ns = clock_now_ns() + c->config->shared.stall_timeout_ns;
        rendezvous_blob blob;
        TRY(rendezvous_broadcast(c->rendezvous, "tensors of stages", from, values ? values + at : NULL, size,
                                 deadline_ns, &blob));
        if (blob.bytes != size)
            return fail(STATUS_PROTOCOL, "rank %d sent %zu bytes of a tensor, not %zu", from, blob.bytes,
                        size);
        if (c->rank == 0) memcpy(values + at, blob.data, size);
    }
    return STATUS_OK;
}

static status gather(void *context, const checkpoint_tensor *t, void *values)
{
    rank_tensors *x = context;
    const rank_checkpoint *c = x->checkpoint;
    const nn_cut *cut = x->subject->cut;
    int from = cut ? checkpoint_stage_of(x->subject, t) * (c->world / cut->count) : 0;
    if (from == 0) return c->rank == 0 ? read_own(x, t, values) : STATUS_OK;
    if (c->rank != from) return pass(c, from, t->bytes, values);
    void *own = malloc((size_t)t->bytes);
    status rc = own ? read_own(x, t, own) : fail(STATUS_SYSTEM, "no memory to send %s", t->name);
    if (rc == STATUS_OK) rc = pass(c, from, t->bytes, own);
    free(own);
    return rc;
}

status rank_tensors_gather(rank_tensors *x, const checkpoint_tensor *t, void *values)
{
    return gather(x, t, values);
}

checkpoint_sink rank_tensors_sink(rank_tensors *x)
{
    return (checkpoint_sink){x, write_own};
}

checkpoint_source rank_tensors_source(rank_tensors *x)
{
    return (checkpoint_source){x, gather};
}

/* Sends the tensors in the order in which rank 0 reads them. */
status rank_tensors_send(rank_tensors *x)
{
    const checkpoint_subject *s = x->subject;
    checkpoint_contents contents;
    TRY(checkpoint_contents_make(s->model, s->type, s->optimizer, &contents));
    status rc = STATUS_OK;
    for (int i = 0; i < contents.count && rc == STATUS_OK; i++)
        if (contents.tensors[i].kind != CHECKPOINT_BATCHES) rc = gather(x, &contents.tensors[i], NULL);
    checkpoint_contents_free(&contents);
    return rc;
}
