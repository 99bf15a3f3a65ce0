#ifndef TESTS_GPU_EMULATOR_CUDA_BF16_H
#define TESTS_GPU_EMULATOR_CUDA_BF16_H

#include "common/reduce/half.h"

struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float value) : bits(bf16_from_float(value))
    {
    }
    explicit operator float() const
    {
        return bf16_to_float(bits);
    }
};

#endif
