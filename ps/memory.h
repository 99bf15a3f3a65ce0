/* Zeroed arrays of one owner, which are freed together. */
#ifndef PS_MEMORY_H
#define PS_MEMORY_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct ps_memory {
    struct ps_block *last; /* The latest array. Every array has a link to the one before. */
    bool refused;          /* An allocation has failed. */
} ps_memory;

/* Allocates an array of `count` elements. Returns NULL if there is no memory, which ps_memory_check() then
 * reports. */
void *ps_allocate(ps_memory *m, int64_t count, size_t element_bytes);
/* Fails if any allocation has failed: "no memory for OWNER". */
status ps_memory_check(const ps_memory *m, const char *owner);
void ps_memory_free(ps_memory *m);

#endif
