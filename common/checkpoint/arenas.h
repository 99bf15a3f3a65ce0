/* The arenas of one rank as source or sink of a checkpoint. */
#ifndef COMMON_CHECKPOINT_ARENAS_H
#define COMMON_CHECKPOINT_ARENAS_H

#include "common/checkpoint/checkpoint.h"
#include "common/nn/params.h"

/* Where state arenas are shards of several ranks, whoever saves gathers them into host memory, laid out like
 * the parameters (all of it, or one tensor before it is read), and names that here. */
typedef struct checkpoint_arenas {
    param_set *set;
    device_stream *stream;
    void *states[2];     /* device memory, or host memory if states_on_host; NULL where there is none */
    bool states_on_host; /* for a source only */
} checkpoint_arenas;

/* `o` may be NULL. */
checkpoint_arenas checkpoint_arenas_of(param_set *set, device_stream *s, optimizer *o);

/* `arenas` is borrowed as the context. */
checkpoint_source checkpoint_arenas_source(checkpoint_arenas *arenas);
checkpoint_sink checkpoint_arenas_sink(checkpoint_arenas *arenas);

#endif
