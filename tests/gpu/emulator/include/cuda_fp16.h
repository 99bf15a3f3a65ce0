#ifndef TESTS_GPU_EMULATOR_CUDA_FP16_H
#define TESTS_GPU_EMULATOR_CUDA_FP16_H

#include "common/reduce/half.h"

struct __half {
    uint16_t bits;
    explicit __half(float value) : bits(f16_from_float(value))
    {
    }
    explicit operator float() const
    {
        return f16_to_float(bits);
    }
};

#endif
