#include "harness/run/batch_memory.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 };

static status allocate(void *context, size_t bytes, void **out)
{
    batch_memory *m = context;
    size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    *out = aligned_alloc(PAGE, whole);
    if (!*out) return fail(STATUS_SYSTEM, "loader: no memory for a buffer of %zu bytes", whole);
    memset(*out, 0, whole); /* what is pinned has its pages */
    if (m->count < TRAINER_MAX_BUFFERS) {
        m->buffers[m->count].data = *out;
        m->buffers[m->count++].bytes = whole;
    }
    return STATUS_OK;
}

static void release(void *context, void *data)
{
    (void)context;
    free(data);
}

loader_memory batch_memory_for(batch_memory *m)
{
    return (loader_memory){.context = m, .allocate = allocate, .release = release};
}

void batch_memory_pin(const batch_memory *m, trainer *t)
{
    for (int i = 0; i < m->count; i++) trainer_pin(t, m->buffers[i].data, m->buffers[i].bytes);
}
