/* Declarations for the files of this folder: addresses of elements, and functions that another file calls.
 *
 * Sums and updates use the type of the master weights. Elements are sent in the same type or, under mixed
 * precision, as bfloat16. */
#ifndef RING_ZERO_SHARDS_H
#define RING_ZERO_SHARDS_H

#include "ring/engine_impl.h"

static inline param_set *set_of(const ring_engine *e)
{
    return e->base.context.params;
}

static inline const param_shards *shards_of(const ring_engine *e)
{
    return set_of(e)->shards;
}

/* sent_size() returns the size in bytes of an element that is sent. type_size() returns the size of an
 * element of sums and updates. */
static inline int sent_size(const ring_engine *e)
{
    return dtype_size(set_of(e)->sent);
}

static inline int type_size(const ring_engine *e)
{
    return dtype_size(set_of(e)->type);
}

/* Returns true if the gradients of micro-batches are added up in float32. */
static inline bool adds_f32_shards(const ring_engine *e)
{
    return set_of(e)->f32_shards.bytes > 0;
}

static inline char *sent_element(const ring_engine *e, const device_memory *memory, int64_t offset)
{
    return (char *)memory->data + offset * sent_size(e);
}

static inline char *type_element(const ring_engine *e, const device_memory *memory, int64_t offset)
{
    return (char *)memory->data + offset * type_size(e);
}

/* shards.c */

/* Destination of a GATHER job. The index of the job is the unit plus the destination times the number of
 * units. */
enum { TO_FORWARD, TO_BACKWARD, TO_WHOLE };
/* Returns true if gradients are reduced directly into the shard of gradients, as in the first micro-batch of
 * a step. Gradients of later micro-batches are added to the shard. */
bool ring_scatters_to_shard(const ring_engine *e);
/* Returns the address at which this rank's part of a unit's gradients is reduced. */
char *ring_reduced_shard(const ring_engine *e, int unit);

/* units.c */

/* Copies elements, and converts them to `to_type`, in stream order. */
status ring_copy_elements(ring_engine *e, void *to, dtype to_type, const void *from, dtype from_type,
                          int64_t count);
/* For mixed precision, rounds the masters of a unit to bfloat16. */
status ring_round_unit(ring_engine *e, int unit);
/* Posts the gathers of updated parameters, in the order in which the next forward pass uses the units. Does
 * nothing if parameters are sharded. */
status ring_gather_updated(ring_engine *e);

#endif
