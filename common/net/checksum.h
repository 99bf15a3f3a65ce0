/* The checksum of tensor frames: XXH3, 64 bit, seeded. */
#ifndef COMMON_NET_CHECKSUM_H
#define COMMON_NET_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

uint64_t checksum_xxh3(const void *data, size_t bytes, uint64_t seed);

/* One instance an instruction set, for checksum.c. */
uint64_t checksum_xxh3_baseline(const void *data, size_t bytes, uint64_t seed);
uint64_t checksum_xxh3_avx2(const void *data, size_t bytes, uint64_t seed);
uint64_t checksum_xxh3_avx512(const void *data, size_t bytes, uint64_t seed);

#endif
