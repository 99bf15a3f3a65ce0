#include "common/device/cuda/cuda.h"

#include "common/device/cuda/cuda_module.h"

/* A device that the module opened has the module's back end: nothing but open comes here. */
static status open_through_module(const device_config *config, device **out)
{
    const cuda_module *module;
    TRY(cuda_module_open(&module, NULL));
    return module->backend->open(config, out);
}

const device_backend device_cuda = {.name = "cuda", .open = open_through_module};
