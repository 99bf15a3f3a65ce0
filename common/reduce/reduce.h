/* Element-wise reductions in memory, for the ring's collectives and the parameter server's sum. The code is
 * compiled once per instruction set, and every call uses the best instruction set that the processor has. The
 * result is bit-identical on all instruction sets: it depends only on the operands and their order.
 *
 * Types are float64, float32, float16, bfloat16, int64 and int32. The two half types are computed in
 * float32. reduce_pair() rounds its result to the half type (to nearest, ties to even), so a chain of
 * calls rounds after every call. reduce_many() keeps the running value in float32 and rounds once.
 * Integers wrap around. If an operand of min or max is NaN, the result is NaN. */
#ifndef COMMON_REDUCE_REDUCE_H
#define COMMON_REDUCE_REDUCE_H

#include "common/ops/tensor.h"

#include <stdbool.h>
#include <stdint.h>

/* Columns: name, name in reports. MEAN computes the sum, and finally divides the sum by the number of
 * sources. */
#define REDUCE_OP_LIST(X) X(SUM, "sum") X(MEAN, "mean") X(MIN, "min") X(MAX, "max") X(PRODUCT, "product")

#define REDUCE_OP_ENUM(name, text) REDUCE_##name,
typedef enum reduce_op { REDUCE_OP_LIST(REDUCE_OP_ENUM) REDUCE_OP_COUNT } reduce_op;
#undef REDUCE_OP_ENUM

const char *reduce_op_name(reduce_op op);

/* Returns true if elements of `type` can be reduced (uint8 cannot). */
bool reduce_has_type(dtype type);

/* Computes out[i] = a[i] op b[i]. MEAN adds without dividing. `out` may be `a` or `b`; nothing else may
 * overlap. */
void reduce_pair(dtype type, reduce_op op, void *out, const void *a, const void *b, int64_t count);

/* Computes outs[k][i] = (ins[0][i] op ins[1][i]) op ins[2][i] ... for every k. MEAN then divides by
 * in_count. A destination may be one of the sources; nothing else may overlap. Requires at least one
 * source. */
void reduce_many(dtype type, reduce_op op, void *const *outs, int out_count, const void *const *ins,
                 int in_count, int64_t count);

/* Computes out[i] = in[i] / divisor, a true division in the element's type. Half types divide in float32;
 * integers divide toward zero, by an integer. `out` may be `in`. */
void reduce_divide(dtype type, void *out, const void *in, int64_t count, double divisor);

/* Averages contributions in their order: divides every ins[k][i] by `before`, adds the quotients, and divides
 * the sum by `after`. `out` may be ins[0]; nothing else may overlap. */
void reduce_average(dtype type, void *out, const void *const *ins, int in_count, int64_t count, double before,
                    double after);

/* Computes out[i] = in[i] / divisor. Both types must be floating-point types. Divides in the wider of the two
 * types (at least float32), then rounds to `to`. Between float64 and a half type the value passes through
 * float32. Nothing may overlap. */
void reduce_convert(dtype to, void *out, dtype from, const void *in, int64_t count, double divisor);
/* Returns true if reduce_convert() supports the pair of types. */
bool reduce_converts(dtype to, dtype from);

/* Returns the instruction set in use: "baseline", "avx2" or "avx512". */
const char *reduce_instruction_set(void);

#endif
