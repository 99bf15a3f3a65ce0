/* A protobuf-c allocator over a fixed block: what a hostile packet makes of memory is bounded by it. */
#ifndef COMMON_NET_ARENA_H
#define COMMON_NET_ARENA_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

typedef struct arena {
    unsigned char *bytes; /* aligned to 16 */
    size_t size, used;
} arena;

static inline void *arena_take(void *context, size_t bytes)
{
    arena *a = context;
    size_t rounded = (bytes + 15) / 16 * 16;
    if (rounded < bytes || rounded > a->size - a->used) return NULL;
    void *out = a->bytes + a->used;
    a->used += rounded;
    return out;
}

static inline void arena_keep(void *context, void *pointer)
{
    (void)context;
    (void)pointer;
}

/* The allocator's frees do nothing; the block is forgotten as a whole. */
static inline ProtobufCAllocator arena_allocator(arena *a)
{
    return (ProtobufCAllocator){.alloc = arena_take, .free = arena_keep, .allocator_data = a};
}

#endif
