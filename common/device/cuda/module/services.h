/* Ties the module to the program's error record and log. */
#ifndef COMMON_DEVICE_CUDA_MODULE_SERVICES_H
#define COMMON_DEVICE_CUDA_MODULE_SERVICES_H

#include "common/device/cuda/cuda_module.h"

void cuda_services_attach(const cuda_host *host);

#endif
