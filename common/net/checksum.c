#include "common/net/checksum.h"

/* __builtin_cpu_supports() reads words that the C runtime fills in before main: no state of ours. */
uint64_t checksum_xxh3(const void *data, size_t bytes, uint64_t seed)
{
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd"))
        return checksum_xxh3_avx512(data, bytes, seed);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma"))
        return checksum_xxh3_avx2(data, bytes, seed);
    return checksum_xxh3_baseline(data, bytes, seed);
}
