#include "common/net/arena.h"

static void *take(void *context, size_t bytes)
{
    arena *a = context;
    size_t rounded = (bytes + 15) / 16 * 16;
    if (rounded < bytes || rounded > a->size - a->used) return NULL;
    void *out = a->bytes + a->used;
    a->used += rounded;
    return out;
}

static void keep(void *context, void *pointer)
{
    (void)context;
    (void)pointer;
}

ProtobufCAllocator arena_allocator(arena *a)
{
    return (ProtobufCAllocator){.alloc = take, .free = keep, .allocator_data = a};
}
