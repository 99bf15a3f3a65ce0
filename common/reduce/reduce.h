/* Element-wise reductions over plain memory, for the ring's collectives and the parameter server's sum.
 * Compiled once per instruction set; every call runs the best set that the processor has. All sets round
 * alike: an element's result depends only on its operands and their order.
 *
 * Types: float64, float32, float16, bfloat16, int64, int32. The two half types are computed in float32,
 * element by element: reduce_pair() rounds its result to the half type (to nearest, ties to even), so a
 * chain of pairs rounds at every link; reduce_many() keeps the running value in float32 and rounds once.
 * Integers wrap around. A NaN in either operand of min and max is the result. */
#ifndef COMMON_REDUCE_REDUCE_H
#define COMMON_REDUCE_REDUCE_H

#include "common/ops/tensor.h"

#include <stdbool.h>
#include <stdint.h>

/* name, name in reports; MEAN is the sum, divided at the end by the number of sources */
#define REDUCE_OP_LIST(X) X(SUM, "sum") X(MEAN, "mean") X(MIN, "min") X(MAX, "max") X(PRODUCT, "product")

#define REDUCE_OP_ENUM(name, text) REDUCE_##name,
typedef enum reduce_op { REDUCE_OP_LIST(REDUCE_OP_ENUM) REDUCE_OP_COUNT } reduce_op;
#undef REDUCE_OP_ENUM

const char *reduce_op_name(reduce_op op);

/* Whether elements of `type` can be reduced (uint8 cannot). */
bool reduce_has_type(dtype type);

/* out[i] = a[i] op b[i]; MEAN adds. `out` may be `a` or `b`; otherwise nothing overlaps. */
void reduce_pair(dtype type, reduce_op op, void *out, const void *a, const void *b, int64_t count);

/* outs[k][i] = (ins[0][i] op ins[1][i]) op ins[2][i] ... for every k, for MEAN divided by in_count. An
 * out may be one of the ins; otherwise nothing overlaps. At least one source. */
void reduce_many(dtype type, reduce_op op, void *const *outs, int out_count, const void *const *ins,
                 int in_count, int64_t count);

/* out[i] = in[i] / divisor: a true division, computed in the element's type (half types: in float32;
 * integers: toward zero, by an integer). `out` may be `in`. */
void reduce_divide(dtype type, void *out, const void *in, int64_t count, double divisor);

/* out[i] = (ins[0][i] + ins[1][i] + ...), every ins[k][i] divided by `before` first, the sum by `after`: the
 * average over contributions in their order. `out` may be ins[0]; otherwise nothing overlaps. */
void reduce_average(dtype type, void *out, const void *const *ins, int in_count, int64_t count, double before,
                    double after);

/* out[i] = in[i] / divisor, between floating-point types; the quotient is taken in the wider of the two
 * (at least float32), then rounded to `to`. Between float64 and a half type the value passes through
 * float32. A divisor of 1 converts. Nothing overlaps. */
void reduce_convert(dtype to, void *out, dtype from, const void *in, int64_t count, double divisor);

/* The instruction set in use: "baseline", "avx2" or "avx512". */
const char *reduce_instruction_set(void);

#endif
