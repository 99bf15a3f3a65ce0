#include "common/device/cpu/isa/names.h"

#if defined(__AVX512F__)
#define ISA_NAME "AVX-512"
#elif defined(__AVX2__)
#define ISA_NAME "AVX2"
#else
#define ISA_NAME "baseline"
#endif

const cpu_isa KERNEL(cpu_isa) = {
    .name = ISA_NAME,
    .elementwise = &KERNEL(cpu_elementwise),
    .batchnorm = &KERNEL(cpu_batchnorm),
    .layernorm = &KERNEL(cpu_layernorm),
    .pool = &KERNEL(cpu_pool),
    .softmax = &KERNEL(cpu_softmax),
    .optimizer = &KERNEL(cpu_optimizer),
    .matrix = &KERNEL(cpu_matrix),
    .winograd = &KERNEL(cpu_winograd),
    .gemm = &KERNEL(cpu_gemm_kernels),
    .turns = &KERNEL(cpu_gemm_turns),
};
