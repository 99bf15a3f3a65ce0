/* Matrix products of a warp: the first lane of each has the whole fragment and does all the work, the others
 * nothing. So what one lane stores and another reads must stand on two sides of a barrier, as on a GPU.
 * Blocks have one dimension. */
#ifndef TESTS_GPU_EMULATOR_MMA_H
#define TESTS_GPU_EMULATOR_MMA_H

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <stdlib.h>
#include <string.h>

namespace nvcuda
{
namespace wmma
{

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision
{
struct tf32;
}

/* Rows and columns of a part: K counts across a's and down b's. */
template <typename Use, int K> struct sides {
    static constexpr int ROWS = 16, COLUMNS = 16;
};
template <int K> struct sides<matrix_a, K> {
    static constexpr int ROWS = 16, COLUMNS = K;
};
template <int K> struct sides<matrix_b, K> {
    static constexpr int ROWS = K, COLUMNS = 16;
};

template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment : sides<Use, K> {
    static_assert(M == 16 && N == 16 && (K == 16 || K == 8), "products are of 16 by 16");
    float at[sides<Use, K>::ROWS][sides<Use, K>::COLUMNS];
};

/* To ten bits of mantissa, to nearest, halves away from zero (PTX ISA, cvt.rna.tf32). */
inline float __float_to_tf32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x1000u) & ~0x1fffu;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* What is loaded as TF32 must have been rounded to it: hardware would cut it off. */
template <typename T> float taken_as(float value)
{
    if (__is_same(T, precision::tf32) && __float_to_tf32(value) != value && value == value) abort();
    return value;
}

inline bool does_the_work()
{
    return threadIdx.x % 32 == 0;
}

/* As the manual asks: 256 bits. */
inline void check_fragment_address(const void *data, size_t row_bytes)
{
    if ((uintptr_t)data % 32 || row_bytes % 16) abort();
}

template <typename Use, int K, typename Kind, typename T>
void load_matrix_sync(fragment<Use, 16, 16, K, Kind, row_major> &f, const T *data, unsigned ldm)
{
    check_fragment_address(data, ldm * sizeof(T));
    for (int i = 0; i < f.ROWS && does_the_work(); i++)
        for (int j = 0; j < f.COLUMNS; j++) f.at[i][j] = taken_as<Kind>((float)data[i * ldm + j]);
}

template <typename Use, int K, typename Kind, typename T>
void load_matrix_sync(fragment<Use, 16, 16, K, Kind, col_major> &f, const T *data, unsigned ldm)
{
    check_fragment_address(data, ldm * sizeof(T));
    for (int i = 0; i < f.ROWS && does_the_work(); i++)
        for (int j = 0; j < f.COLUMNS; j++) f.at[i][j] = taken_as<Kind>((float)data[j * ldm + i]);
}

template <int K> void fill_fragment(fragment<accumulator, 16, 16, K, float> &f, float value)
{
    for (int i = 0; i < 16 && does_the_work(); i++)
        for (int j = 0; j < 16; j++) f.at[i][j] = value;
}

template <typename A, typename B, int K>
void mma_sync(fragment<accumulator, 16, 16, K, float> &d, const A &a, const B &b,
              const fragment<accumulator, 16, 16, K, float> &c)
{
    static_assert(A::COLUMNS == K && B::ROWS == K, "fragments of one product");
    for (int i = 0; i < 16 && does_the_work(); i++)
        for (int j = 0; j < 16; j++) {
            float sum = c.at[i][j];
            for (int k = 0; k < K; k++) sum += a.at[i][k] * b.at[k][j];
            d.at[i][j] = sum;
        }
}

template <int K>
void store_matrix_sync(float *data, const fragment<accumulator, 16, 16, K, float> &f, unsigned ldm,
                       layout_t layout)
{
    check_fragment_address(data, ldm * sizeof(float));
    for (int i = 0; i < 16 && does_the_work(); i++)
        for (int j = 0; j < 16; j++) data[layout == mem_row_major ? i * ldm + j : j * ldm + i] = f.at[i][j];
}

} // namespace wmma
} // namespace nvcuda

#endif
