/* This header has the code that differs between processors: the instruction sets for which kernels are
 * compiled, and the pause instruction of loops that wait for another thread. All other code is C11. */
#ifndef COMMON_BASE_PROCESSOR_H
#define COMMON_BASE_PROCESSOR_H

#include <stdbool.h>

#if defined(__x86_64__)

/* The instruction sets of PSRING_ISAS (common/build/Psring.cmake), from the least to the most capable.
 * processor_has_NAME() is true if this machine supports the instruction set NAME. avx2 has the instructions
 * of x86-64-v3 that the kernels use. avx512 has the instructions of x86-64-v4 that the kernels use. */
#define PROCESSOR_ISA_LIST(X) X(baseline) X(avx2) X(avx512)
#define processor_has_baseline() true
#define processor_has_avx2()                                                                                 \
    (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
#define processor_has_avx512()                                                                               \
    (processor_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&      \
     __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&                             \
     __builtin_cpu_supports("avx512vl"))

/* True if the processor has the bfloat16 instructions that oneDNN uses. */
#define processor_has_bf16() (__builtin_cpu_supports("avx512bf16") != 0)
#define processor_pause() __builtin_ia32_pause()

#elif defined(__aarch64__)

/* Every AArch64 processor has NEON. */
#define PROCESSOR_ISA_LIST(X) X(baseline)
#define processor_has_baseline() true
#define processor_has_bf16() false
#define processor_pause() __asm__ volatile("yield" ::: "memory")

#else
#error "expected x86-64 or AArch64"
#endif

#endif
