#include "common/checkpoint/convert.h"

#include <math.h>
#include <string.h>

dtype convert_host_type(dtype type)
{
    switch (type) {
    case DTYPE_F64:
        return DTYPE_F64;
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
        return DTYPE_F32;
    default:
        return DTYPE_COUNT;
    }
}

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 fraction. */
static float float_of_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits >> 15) << 31, exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31) return float_of_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return copysignf(ldexpf((float)fraction, -24), float_of_bits(sign));
    return float_of_bits(sign | (exponent + 127 - 15) << 23 | fraction << 13);
}

void convert_to_host(void *to, const void *from, dtype type, int64_t count)
{
    const uint16_t *halves = from;
    float *floats = to;
    switch (type) {
    case DTYPE_F16:
        for (int64_t i = 0; i < count; i++) floats[i] = float_of_f16(halves[i]);
        break;
    case DTYPE_BF16:
        for (int64_t i = 0; i < count; i++) floats[i] = float_of_bits((uint32_t)halves[i] << 16);
        break;
    default:
        memcpy(to, from, (size_t)(count * dtype_size(type)));
    }
}

void convert_transpose(void *to, const void *from, int64_t rows, int64_t columns, int bytes)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            memcpy((char *)to + (c * rows + r) * bytes, (const char *)from + (r * columns + c) * bytes,
                   (size_t)bytes);
}
