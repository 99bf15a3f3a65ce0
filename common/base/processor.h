/* What differs between processors: the instruction sets that kernels are compiled for, and the pause of a
 * loop that waits for another thread. Everything else is C11, whose atomics order memory alike on all of
 * them.
 *
 * Macros, because each stands for one built-in function or instruction. */
#ifndef COMMON_BASE_PROCESSOR_H
#define COMMON_BASE_PROCESSOR_H

#include <stdbool.h>

#if defined(__x86_64__)

/* As in PSRING_ISAS (common/build/Psring.cmake), from the least to the most capable; processor_has_NAME() is
 * whether this machine has one: x86-64-v3 and x86-64-v4, as far as our kernels use them. */
#define PROCESSOR_ISA_LIST(X) X(baseline) X(avx2) X(avx512)
#define processor_has_baseline() true
#define processor_has_avx2()                                                                                 \
    (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
#define processor_has_avx512()                                                                               \
    (processor_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&      \
     __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&                             \
     __builtin_cpu_supports("avx512vl"))

/* Whether it multiplies bfloat16, by instructions that oneDNN uses. */
#define processor_has_bf16() (__builtin_cpu_supports("avx512bf16") != 0)
#define processor_pause() __builtin_ia32_pause()

#elif defined(__aarch64__)

/* NEON belongs to every AArch64. */
#define PROCESSOR_ISA_LIST(X) X(baseline)
#define processor_has_baseline() true
#define processor_has_bf16() false
#define processor_pause() __asm__ volatile("yield" ::: "memory")

#else
#error "expected x86-64 or AArch64"
#endif

#endif
