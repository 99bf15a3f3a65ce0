/* The CPU back end: float32, oneDNN's convolutions and matrix products, own kernels for the rest, compiled
 * for three instruction sets of which the machine's best is taken (ONEDNN_MAX_CPU_ISA limits both).
 *
 * Same command, same threads, same bits. Where nothing is summed across rows (activations, pooling,
 * embeddings, optimizers, division) the bits do not depend on the number of threads either.
 *
 * A rank's threads are OpenMP's. GNU OpenMP's wait by spinning for some 15 ms unless the environment says
 * otherwise before the program starts; where threads outnumber cores set GOMP_SPINCOUNT=1000 or
 * OMP_WAIT_POLICY=passive. docs/kernels-cpu.md says which kernel is taken when, and why. */
#ifndef COMMON_DEVICE_CPU_CPU_H
#define COMMON_DEVICE_CPU_CPU_H

#include "common/device/device_impl.h"

extern const device_backend device_cpu;

#endif
