#include "common/device/cpu/isa/isa.h"

extern const cpu_isa cpu_isa_baseline, cpu_isa_avx2, cpu_isa_avx512;

const cpu_isa *const cpu_isas[CPU_ISA_COUNT] = {&cpu_isa_baseline, &cpu_isa_avx2, &cpu_isa_avx512};

/* The features that tell x86-64-v3 and v4 apart from what came before. */
static bool has_v3(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

static bool has_v4(void)
{
    return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

bool cpu_isa_supported(const cpu_isa *isa)
{
    if (isa == &cpu_isa_avx512) return has_v4();
    return isa == &cpu_isa_avx2 ? has_v3() : true;
}
