#include "common/device/cpu/isa/isa.h"

extern const cpu_isa cpu_isa_baseline, cpu_isa_avx2, cpu_isa_avx512;

const cpu_isa *const cpu_isas[CPU_ISA_COUNT] = {&cpu_isa_baseline, &cpu_isa_avx2, &cpu_isa_avx512};

bool cpu_isa_supported(const cpu_isa *isa)
{
    if (isa == &cpu_isa_avx512) return __builtin_cpu_supports("x86-64-v4");
    if (isa == &cpu_isa_avx2) return __builtin_cpu_supports("x86-64-v3");
    return true;
}
