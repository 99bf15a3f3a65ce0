/* Matrix products of a warp: the first lane of each has the whole fragment and does all the work, the others nothing. So
 * what one lane stores and another reads must stand on two sides of a barrier, as on a GPU. Blocks have one dimension. */
#ifndef TESTS_GPU_EMULATOR_MMA_H
#define TESTS_GPU_EMULATOR_MMA_H

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <stdlib.h>

namespace nvcuda {
namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

template <typename Use, int M, int N, int K, typename T, typename Layout = void> struct fragment {
    static_assert(M == 16 && N == 16 && K == 16, "fragments are of 16 by 16");
    float at[16][16];
};

inline bool does_the_work()
{
    return threadIdx.x % 32 == 0;
}

/* As the manual asks: 256 bits. */
inline void check_fragment_address(const void *data, size_t row_bytes)
{
    if ((uintptr_t)data % 32 || row_bytes % 16) abort();
}

template <typename Use, typename T>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, row_major> &f, const T *data, unsigned ldm)
{
    check_fragment_address(data, ldm * sizeof(T));
    for (int i = 0; i < 16 && does_the_work(); i++)
        for (int j = 0; j < 16; j++) f.at[i][j] = (float)data[i * ldm + j];
}

template <typename Use, typename T>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, col_major> &f, const T *data, unsigned ldm)
{
    check_fragment_address(data, ldm * sizeof(T));
    for (int i = 0; i < 16 && does_the_work(); i++)
        for (int j = 0; j < 16; j++) f.at[i][j] = (float)data[j * ldm + i];
}

inline void fill_fragment(fragment<accumulator, 16, 16, 16, float> &f, float value)
{
    for (int i = 0; i < 16 && does_the_work(); i++)
        for (int j = 0; j < 16; j++) f.at[i][j] = value;
}

template <typename A, typename B>
void mma_sync(fragment<accumulator, 16, 16, 16, float> &d, const A &a, const B &b,
              const fragment<accumulator, 16, 16, 16, float> &c)
{
    for (int i = 0; i < 16 && does_the_work(); i++)
        for (int j = 0; j < 16; j++) {
            float sum = c.at[i][j];
            for (int k = 0; k < 16; k++) sum += a.at[i][k] * b.at[k][j];
            d.at[i][j] = sum;
        }
}

inline void store_matrix_sync(float *data, const fragment<accumulator, 16, 16, 16, float> &f, unsigned ldm, layout_t layout)
{
    check_fragment_address(data, ldm * sizeof(float));
    for (int i = 0; i < 16 && does_the_work(); i++)
        for (int j = 0; j < 16; j++) data[layout == mem_row_major ? i * ldm + j : j * ldm + i] = f.at[i][j];
}

} // namespace wmma
} // namespace nvcuda

#endif
