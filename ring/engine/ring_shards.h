/* What the files of sharded state share: where elements are, and what one file calls of another. */
#ifndef RING_ENGINE_RING_SHARDS_H
#define RING_ENGINE_RING_SHARDS_H

#include "ring/engine/engine_impl.h"

static inline param_set *set_of(const ring_engine *e)
{
    return e->base.context.params;
}

static inline const param_shards *shards_of(const ring_engine *e)
{
    return set_of(e)->shards;
}

/* Of an element that is sent: with mixed precision not of those that are updated, which are `wide`. */
static inline int size_of(const ring_engine *e)
{
    return dtype_size(set_of(e)->sent);
}

static inline int wide_size(const ring_engine *e)
{
    return dtype_size(set_of(e)->type);
}

static inline bool is_mixed(const ring_engine *e)
{
    return e->settings.mixed;
}

/* Shards of gradients are added up as `wide` elements. */
static inline bool adds_wide_shards(const ring_engine *e)
{
    return set_of(e)->wide_shards.bytes > 0;
}

static inline char *element(const ring_engine *e, const device_memory *memory, int64_t offset)
{
    return (char *)memory->data + offset * size_of(e);
}

static inline char *wide_element(const ring_engine *e, const device_memory *memory, int64_t offset)
{
    return (char *)memory->data + offset * wide_size(e);
}

/* ring_shards.c */

/* Where a job of kind GATHER puts a unit: its index is that of the unit plus one of these times the number of
 * units. */
enum { TO_FORWARD, TO_BACKWARD, TO_WHOLE };
int ring_unit_of_bucket(const ring_engine *e, int bucket);
/* The first micro-batch of a step writes the shard; later ones are added to it. */
bool ring_scatters_to_shard(const ring_engine *e);
/* Where this rank's part of a unit's gradients is reduced to: the shard, or a part of their place. */
char *ring_reduced_shard(const ring_engine *e, int unit);

/* ring_units.c */

/* Elements of any two types, in stream order. */
status ring_copy_elements(ring_engine *e, void *to, dtype to_type, const void *from, dtype from_type,
                          int64_t count);
/* Mixed precision: masters to bfloat16. */
status ring_round_unit(ring_engine *e, int unit);
/* Every rank has the whole parameters again: gathered in the order of the next forward pass, which waits unit
 * by unit. */
status ring_gather_updated(ring_engine *e);
status ring_await_gathers(ring_engine *e);

#endif
