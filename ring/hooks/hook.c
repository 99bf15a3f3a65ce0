#include "ring/hooks/hook.h"

const ring_hook_info ring_hooks[RING_HOOKS] = {
#define HOOK(NAME, name, wire, compress) {name, wire, compress},
#include "ring/hooks/hooks.h"
#undef HOOK
};

void ring_send_as_packed(dtype type, void *values, int64_t count)
{
    (void)type, (void)values, (void)count;
}
