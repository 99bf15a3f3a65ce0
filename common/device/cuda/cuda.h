/* The CUDA device, as the program sees it: a back end whose open loads the module (cuda_module.h). */
#ifndef COMMON_DEVICE_CUDA_CUDA_H
#define COMMON_DEVICE_CUDA_CUDA_H

#include "common/device/device_impl.h"

extern const device_backend device_cuda;

#endif
