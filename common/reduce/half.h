/* Converts float16 (IEEE 754 binary16) and bfloat16, stored as 16-bit integers, to and from float32. The
 * functions have no branches, so loops over them become vector code on every instruction set.
 *
 * Conversion to float32 is exact. Conversion from float32 rounds to nearest, ties to even. Values that are
 * too large become infinity; values that are too small become a subnormal or zero of the same sign. Every NaN
 * becomes the quiet NaN of its sign. */
#ifndef COMMON_REDUCE_HALF_H
#define COMMON_REDUCE_HALF_H

#include <stdint.h>

static inline float half_bits_as_float(uint32_t bits)
{
    union {
        uint32_t u;
        float f;
    } pun = {.u = bits};
    return pun.f;
}

static inline uint32_t half_float_as_bits(float value)
{
    union {
        float f;
        uint32_t u;
    } pun = {.f = value};
    return pun.u;
}

static inline float bf16_to_float(uint16_t h)
{
    return half_bits_as_float((uint32_t)h << 16);
}

static inline uint16_t bf16_from_float(float value)
{
    uint32_t bits = half_float_as_bits(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    uint32_t quiet = (bits >> 16 & 0x8000) | 0x7fc0;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

static inline float f16_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13; /* exponent and mantissa at their float32 positions */
    uint32_t normal = magnitude + ((127u - 15u) << 23);
    uint32_t special = magnitude + ((255u - 31u) << 23);
    /* A subnormal is mantissa * 2^-24. Adding the mantissa to the bits of 2^-14 gives the subnormal plus
     * 2^-14; then 2^-14 is subtracted. */
    float subnormal = half_bits_as_float(magnitude + (113u << 23)) - 0x1p-14f;
    uint32_t bits = magnitude >= 0x0f800000u ? special : normal;
    bits = magnitude < 0x00800000u ? half_float_as_bits(subnormal) : bits;
    return half_bits_as_float(bits | sign);
}

static inline uint16_t f16_from_float(float value)
{
    uint32_t bits = half_float_as_bits(value);
    uint32_t sign = bits >> 16 & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    /* Rounds to nearest, ties to even, with integers: adds half of the value of the last kept bit, minus 1 if
     * the last kept bit is 0. */
    uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    /* Below 2^-14, adding 0.5 rounds to a multiple of 2^-24, as float16 does. */
    float shifted = half_bits_as_float(magnitude) + 0.5f;
    uint32_t subnormal = half_float_as_bits(shifted) - half_float_as_bits(0.5f);
    uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude >= 0x47800000u ? large : half; /* 65536 and above become infinity; 65520 to 65535 have
                                                     * been rounded up to infinity */
    return (uint16_t)(half | sign);
}

#endif
