/* Counter-based random numbers. A random number is a pure function of (seed, name, index), so every rank and
 * every device draws the same tensors without communication.
 *
 * The generator is SplitMix64's finalizer over a Weyl sequence (Steele, Lea, Flood: "Fast Splittable
 * Pseudorandom Number Generators", OOPSLA 2014). Names are hashed with FNV-1a. */
#ifndef COMMON_BASE_RANDOM_H
#define COMMON_BASE_RANDOM_H

#include <stdint.h>

#define RANDOM_GOLDEN UINT64_C(0x9E3779B97F4A7C15)

static inline uint64_t random_mix(uint64_t z)
{
    z ^= z >> 30;
    z *= UINT64_C(0xBF58476D1CE4E5B9);
    z ^= z >> 27;
    z *= UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

uint64_t random_fnv1a64(const char *name);

/* Returns the start of the random stream for a seed and a name. */
static inline uint64_t random_start(uint64_t seed, uint64_t name_hash)
{
    return random_mix(seed + RANDOM_GOLDEN) ^ name_hash;
}

/* Returns 64 random bits at `index` of a stream. */
static inline uint64_t random_bits(uint64_t start, uint64_t index)
{
    return random_mix(start + (index + 1) * RANDOM_GOLDEN);
}

/* Returns u(index) in [0, 1) with 24 significant bits, exact in float32. */
static inline double random_uniform(uint64_t start, uint64_t index)
{
    return (double)(random_bits(start, index) >> 40) * 0x1p-24;
}

/* Returns r(index) in [-1, 1), exact in float32. */
static inline double random_signed(uint64_t start, uint64_t index)
{
    return 2.0 * random_uniform(start, index) - 1.0;
}

/* Returns a number with standard normal distribution (Box and Muller, 1958). It is computed from the 53-bit
 * uniform numbers at 2i and 2i + 1, where i is `index`. */
double random_normal(uint64_t start, uint64_t index);

/* Returns 64 unpredictable bits from the system, never 0. Serves as the token of a job. */
uint64_t random_token(void);

/* Returns a uniform integer in [0, bound), bound > 0, by multiply-high; the bias is negligible. */
static inline uint64_t random_below(uint64_t start, uint64_t index, uint64_t bound)
{
    return (uint64_t)(((unsigned __int128)random_bits(start, index) * bound) >> 64);
}

#endif
