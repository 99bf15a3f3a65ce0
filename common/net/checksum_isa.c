/* XXH3 (Yann Collet, xxHash 0.8) compiled once per instruction set: the shared library's build knows
 * SSE2 only, at half the speed of AVX2. The value is the same in all. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/net/checksum.h"

#define PASTE(a, b) a##_##b
#define NAMED(a, b) PASTE(a, b)

uint64_t NAMED(checksum_xxh3, KERNEL_ISA)(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}
