#include "common/device/registry.h"

#include "common/base/text.h"
#include "common/device/cpu/cpu.h"
#include "common/device/cuda/cuda.h"
#include "common/device/plan/plan.h"
#include "common/device/reference/reference.h"
#include "common/device/sim/sim.h"

#include <stdio.h>
#include <string.h>

static const device_backend *const backends[] = {&device_cpu, &device_reference, &device_cuda, &device_sim,
                                                 &device_plan};
enum { BACKEND_COUNT = sizeof backends / sizeof backends[0] };

status device_find_backend(const char *name, const device_backend **out)
{
    size_t length = strcspn(name, ":");
    const char *names[BACKEND_COUNT];
    for (int i = 0; i < BACKEND_COUNT; i++) {
        names[i] = backends[i]->name;
        if (strlen(names[i]) != length || memcmp(name, names[i], length) != 0) continue;
        *out = backends[i];
        return STATUS_OK;
    }
    char allowed[128];
    return fail(STATUS_USAGE, "device: found '%s', allowed is one of %s", name,
                text_join(allowed, sizeof allowed, names, BACKEND_COUNT));
}
