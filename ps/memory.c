#include "ps/memory.h"

#include <stdlib.h>

/* Header of an allocated array. The array follows the header in memory. */
typedef struct ps_block {
    _Alignas(16) struct ps_block *before;
} ps_block;

void *ps_allocate(ps_memory *m, int64_t count, size_t element_bytes)
{
    ps_block *block = calloc(1, sizeof *block + (size_t)count * element_bytes);
    if (!block) {
        m->refused = true;
        return NULL;
    }
    block->before = m->last;
    m->last = block;
    return block + 1;
}

status ps_memory_check(const ps_memory *m, const char *owner)
{
    return m->refused ? fail(STATUS_SYSTEM, "no memory for %s", owner) : STATUS_OK;
}

void ps_memory_free(ps_memory *m)
{
    while (m->last) {
        ps_block *block = m->last;
        m->last = block->before;
        free(block);
    }
}
