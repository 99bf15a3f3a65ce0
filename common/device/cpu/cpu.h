/* The CPU back end: float32, oneDNN's convolutions and matrix products, own kernels for the rest. */
#ifndef COMMON_DEVICE_CPU_CPU_H
#define COMMON_DEVICE_CPU_CPU_H

#include "common/device/device_impl.h"

extern const device_backend device_cpu;

#endif
