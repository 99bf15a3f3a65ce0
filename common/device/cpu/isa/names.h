/* Names of what is compiled once for each instruction set: KERNEL(cpu_pool) is cpu_pool_avx512 where
 * KERNEL_ISA is avx512. */
#ifndef COMMON_DEVICE_CPU_ISA_NAMES_H
#define COMMON_DEVICE_CPU_ISA_NAMES_H

#include "common/device/cpu/isa/isa.h"

#define KERNEL_PASTE(name, isa) name##_##isa
#define KERNEL_EXPAND(name, isa) KERNEL_PASTE(name, isa)
#define KERNEL(name) KERNEL_EXPAND(name, KERNEL_ISA)

extern const cpu_elementwise KERNEL(cpu_elementwise);
extern const cpu_batchnorm KERNEL(cpu_batchnorm);
extern const cpu_layernorm KERNEL(cpu_layernorm);
extern const cpu_pool KERNEL(cpu_pool);
extern const cpu_softmax KERNEL(cpu_softmax);
extern const cpu_optimizer KERNEL(cpu_optimizer);
extern const cpu_matrix KERNEL(cpu_matrix);
extern const cpu_winograd KERNEL(cpu_winograd);
extern const cpu_gemm_kernels KERNEL(cpu_gemm_kernels);
extern const cpu_gemm_turns KERNEL(cpu_gemm_turns);
extern const cpu_isa KERNEL(cpu_isa);

void KERNEL(winograd_product)(cpu_winograd_rows kind, int64_t rows, int64_t depth, const float *v,
                              const float *u, bool add, float *m);

#endif
