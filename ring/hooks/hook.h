/* Communication hooks, which compress gradients before they are sent, as
 * torch.distributed.algorithms.ddp_comm_hooks of PyTorch does. A hook is a row of hooks.h. */
#ifndef RING_HOOKS_HOOK_H
#define RING_HOOKS_HOOK_H

#include "common/ops/tensor.h"

#include <stdbool.h>

/* Changes the `count` values of a bucket before they are summed over the ranks. The values are in host
 * memory and have the hook's type. If the policy divides before the sum, they have been divided. The
 * communication thread calls the function once per bucket. */
typedef void ring_hook_function(dtype type, void *values, int64_t count);

#define HOOK(NAME, name, wire, compress) ring_hook_function compress;
#include "ring/hooks/hooks.h"
#undef HOOK

typedef enum ring_hook {
#define HOOK(NAME, name, wire, compress) RING_HOOK_##NAME,
#include "ring/hooks/hooks.h"
#undef HOOK
    RING_HOOKS
} ring_hook;

typedef struct ring_hook_info {
    const char *name;
    dtype wire; /* Type that is sent, or DTYPE_COUNT for the gradients' type. */
    /* Function of the hook, or ring_send_as_packed if the hook does not change values. */
    ring_hook_function *compress;
} ring_hook_info;

extern const ring_hook_info ring_hooks[RING_HOOKS];

static inline bool ring_hook_has_function(ring_hook hook)
{
    return ring_hooks[hook].compress != ring_send_as_packed;
}

#endif
