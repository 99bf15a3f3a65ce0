/* A protobuf-c allocator over a fixed block: what a hostile packet makes of memory is bounded by it. */
#ifndef COMMON_NET_ARENA_H
#define COMMON_NET_ARENA_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

typedef struct arena {
    unsigned char *bytes; /* aligned to 16 */
    size_t size, used;
} arena;

/* The allocator's frees do nothing; the block is forgotten as a whole. */
ProtobufCAllocator arena_allocator(arena *a);

#endif
