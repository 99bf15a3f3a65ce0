/* The table of one instruction set. Every file of this folder is compiled once per instruction set. */
#include "common/device/cpu/isa/vector.h"

extern const cpu_elementwise KERNEL(cpu_elementwise);
extern const cpu_batchnorm KERNEL(cpu_batchnorm);
extern const cpu_layernorm KERNEL(cpu_layernorm);
extern const cpu_pool KERNEL(cpu_pool);
extern const cpu_softmax KERNEL(cpu_softmax);
extern const cpu_optimizer KERNEL(cpu_optimizer);
extern const cpu_matrix KERNEL(cpu_matrix);
extern const cpu_winograd KERNEL(cpu_winograd);
extern const cpu_isa KERNEL(cpu_isa);

#if defined(__AVX512F__)
#define ISA_NAME "AVX-512"
#elif defined(__AVX2__)
#define ISA_NAME "AVX2"
#elif defined(__ARM_NEON)
#define ISA_NAME "NEON"
#else
#define ISA_NAME "baseline"
#endif

const cpu_isa KERNEL(cpu_isa) = {
    .name = ISA_NAME,
    .vector_floats = VF,
    .elementwise = &KERNEL(cpu_elementwise),
    .batchnorm = &KERNEL(cpu_batchnorm),
    .layernorm = &KERNEL(cpu_layernorm),
    .pool = &KERNEL(cpu_pool),
    .softmax = &KERNEL(cpu_softmax),
    .optimizer = &KERNEL(cpu_optimizer),
    .matrix = &KERNEL(cpu_matrix),
    .winograd = &KERNEL(cpu_winograd),
};
