/* The end of a product that was computed as its transpose: squares of c^T are transposed, and their biases and
 * activations follow while they are in the L1 cache. */
#include "common/device/cpu/isa/names.h"
#include "common/device/cpu/isa/transpose.h"
#include "common/device/cpu/isa/vector_math.h"

enum { SIDE = 16 };

/* square [columns][SIDE] = x^T */
ALWAYS_INLINE void turn_square(const float *x, int64_t stride, int64_t rows, int64_t columns, float *square)
{
    if (rows < SIDE || columns < SIDE) {
        for (int64_t j = 0; j < columns; j++)
            for (int64_t i = 0; i < SIDE; i++) square[j * SIDE + i] = i < rows ? x[i * stride + j] : 0;
        return;
    }
#if VF == 16
    transpose_16x16(x, stride, false, square, SIDE);
#else
    for (int64_t i = 0; i < SIDE; i += 4)
        for (int64_t j = 0; j < SIDE; j += 4)
            transpose_4x4(x + i * stride + j, stride, false, square + j * SIDE + i, SIDE);
#endif
}

ALWAYS_INLINE void store_some(float *to, vf a, int64_t count, bool past)
{
    if (past && count >= VF)
        vf_store_past(to, a);
    else
        vf_store_some(to, a, count);
}

/* Up to VF elements of a row of c; slope and bias may be NULL. */
ALWAYS_INLINE void finish_some(activation act, const cpu_gemm_turn *t, vf sum, const float *bias, float *c, float *slope,
                               int64_t count)
{
    if (t->add) sum += vf_load_some(c, count);
    if (bias) sum += vf_load_some(bias, count);
    if (slope) {
        vf_pair both = vf_activate_with_slope(act, sum);
        store_some(c, both.a, count, t->past);
        store_some(slope, both.b, count, true);
    } else
        store_some(c, vf_activate(act, sum), count, t->past);
}

ALWAYS_INLINE void turn(activation act, const cpu_gemm_turn *t)
{
    _Alignas(64) float square[SIDE * SIDE];
    for (int64_t j = 0; j < t->columns; j += SIDE) {
        int64_t columns = t->columns - j < SIDE ? t->columns - j : SIDE;
        for (int64_t i = 0; i < t->rows; i += SIDE) {
            int64_t rows = t->rows - i < SIDE ? t->rows - i : SIDE;
            turn_square(t->x + i * t->x_stride + j, t->x_stride, rows, columns, square);
            for (int64_t k = 0; k < columns; k++)
                for (int64_t v = 0; v < rows; v += VF) {
                    int64_t at = (j + k) * t->c_stride + i + v;
                    finish_some(act, t, vf_load(square + k * SIDE + v), t->bias ? t->bias + i + v : NULL,
                                t->c + at, t->slope ? t->slope + at : NULL, rows - v);
                }
        }
    }
    vf_settle();
}

#define DEFINE_TURN(name, text)                      \
    static void turn_##name(const cpu_gemm_turn *t)  \
    {                                                \
        turn(ACTIVATION_##name, t);                  \
    }
ACTIVATION_LIST(DEFINE_TURN)

#define TURN(name, text) [ACTIVATION_##name] = turn_##name,
const cpu_gemm_turns KERNEL(cpu_gemm_turns) = {.turn = {ACTIVATION_LIST(TURN)}};
