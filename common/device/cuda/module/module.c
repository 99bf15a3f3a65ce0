/* What the program finds in the module. */
#include "common/device/cuda/module/cuda_impl.h"
#include "common/device/cuda/module/services.h"

extern const device_backend cuda_backend;
extern const cuda_module psring_cuda_module;

const cuda_module psring_cuda_module = {.version = CUDA_MODULE_VERSION,
                                        .layout = CUDA_MODULE_LAYOUT,
                                        .attach = cuda_services_attach,
                                        .count_gpus = cuda_count,
                                        .probe = cuda_probe_machine,
                                        .backend = &cuda_backend};
