/* Zeroed arrays of one owner, which are freed together. */
#ifndef PS_MEMORY_H
#define PS_MEMORY_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct ps_memory {
    /* The array that was allocated last. Every array has a pointer to the array that was allocated before
     * it. */
    struct ps_block *last;
    bool refused; /* True if an allocation has failed. */
} ps_memory;

/* Allocates an array of `count` elements. If there is no memory, returns NULL, and ps_memory_check() will
 * fail. */
void *ps_allocate(ps_memory *m, int64_t count, size_t element_bytes);
/* Fails with "no memory for OWNER" if any allocation has failed. */
status ps_memory_check(const ps_memory *m, const char *owner);
void ps_memory_free(ps_memory *m);

#endif
