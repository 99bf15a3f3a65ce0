/* The loops of all reductions. They are written once and compiled for each instruction set, and the compiler
 * vectorizes them. Below, one block of macros per element type gives the storage type, the type of the
 * computation, and the conversions. */
#include "common/reduce/half.h"
#include "common/reduce/reduce_impl.h"

#include <string.h>

/* Number of half-type elements that reduce_many() processes at a time. The running values of a block stay
 * in the L1 cache. */
enum { BLOCK = 1024 };

#define SAME(x) (x)
#define ADD(a, b) ((a) + (b))
#define ADD_I32(a, b) (int32_t)((uint32_t)(a) + (uint32_t)(b))
#define ADD_I64(a, b) (int64_t)((uint64_t)(a) + (uint64_t)(b))
#define MULTIPLY(a, b) ((a) * (b))
#define MULTIPLY_I32(a, b) (int32_t)((uint32_t)(a) * (uint32_t)(b))
#define MULTIPLY_I64(a, b) (int64_t)((uint64_t)(a) * (uint64_t)(b))
#define LESSER(a, b) ((b) < (a) || (b) != (b) ? (b) : (a))
#define GREATER(a, b) ((b) > (a) || (b) != (b) ? (b) : (a))

/* A vector that fills one register of the instruction set: __BIGGEST_ALIGNMENT__ bytes. */
#define VECTOR(element)                                                                                      \
    __attribute__((vector_size(__BIGGEST_ALIGNMENT__), aligned(sizeof(element)), may_alias))
typedef double f64_vector VECTOR(double);
typedef float f32_vector VECTOR(float);
typedef int64_t i64_vector VECTOR(int64_t);
typedef int32_t i32_vector VECTOR(int32_t);
typedef uint64_t u64_vector VECTOR(uint64_t);
typedef uint32_t u32_vector VECTOR(uint32_t);

#define PLAIN_ADD(vector, a, b) ((a) + (b))
#define PLAIN_MULTIPLY(vector, a, b) ((a) * (b))
#define U64_ADD(vector, a, b) (vector)((u64_vector)(a) + (u64_vector)(b))
#define U64_MULTIPLY(vector, a, b) (vector)((u64_vector)(a) * (u64_vector)(b))
#define U32_ADD(vector, a, b) (vector)((u32_vector)(a) + (u32_vector)(b))
#define U32_MULTIPLY(vector, a, b) (vector)((u32_vector)(a) * (u32_vector)(b))
/* Selects each lane from b if the lane's mask is all ones, else from a. */
#define CHOOSE(vector, bits, mask, a, b) (vector)(((bits)(mask) & (bits)(b)) | (~(bits)(mask) & (bits)(a)))
#define I64_LESSER(vector, a, b) CHOOSE(vector, i64_vector, ((b) < (a)) | ((b) != (b)), a, b)
#define I64_GREATER(vector, a, b) CHOOSE(vector, i64_vector, ((b) > (a)) | ((b) != (b)), a, b)
#define I32_LESSER(vector, a, b) CHOOSE(vector, i32_vector, ((b) < (a)) | ((b) != (b)), a, b)
#define I32_GREATER(vector, a, b) CHOOSE(vector, i32_vector, ((b) > (a)) | ((b) != (b)), a, b)

/* Returns true if the divisor is a power of two. A multiplication by the inverse of the divisor is then
 * bit-identical to the division, and cheaper. */
#define IS_FLOATING(type) ((type)0.5 != 0)
static inline bool has_exact_inverse(double divisor)
{
    union {
        double f;
        uint64_t u;
    } pun = {.f = divisor};
    uint64_t exponent = pun.u >> 52; /* includes the sign bit, so the result is false for negative divisors */
    return (pun.u & UINT64_C(0xfffffffffffff)) == 0 && exponent > 1023 - 64 && exponent < 1023 + 64;
}

/* Iterations are independent although `out` may be an operand. GCC learns this from a pragma. The only
 * equivalent pragma of Clang would force vectorization, so Clang's code tests the pointers at run time
 * instead. */
#ifdef __clang__
#define INDEPENDENT
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

#define DEFINE_PAIR(name, element, compute, load, store, combine)                                            \
    static void name(void *out_, const void *a_, const void *b_, int64_t count)                              \
    {                                                                                                        \
        element *out = out_;                                                                                 \
        const element *a = a_, *b = b_;                                                                      \
        INDEPENDENT                                                                                          \
        for (int64_t i = 0; i < count; i++) {                                                                \
            compute x = load(a[i]), y = load(b[i]);                                                          \
            out[i] = (element)store((compute)combine(x, y));                                                 \
        }                                                                                                    \
    }

/* Defines reduce_many() for a type that is not a half type. Four vectors of running values stay in registers
 * while all sources are added, so every source is read once and every destination is written once. */
#define DEFINE_MANY(name, element, vector, scalar_combine, combine)                                          \
    static void name(void *const *outs, int out_count, const void *const *ins, int in_count, int64_t count,  \
                     int64_t divisor)                                                                        \
    {                                                                                                        \
        enum { STRIP = 4 * sizeof(vector) / sizeof(element) };                                               \
        bool multiplies = IS_FLOATING(element) && has_exact_inverse((double)divisor);                        \
        element by = multiplies ? (element)1 / (element)divisor : (element)divisor;                          \
        int64_t at = 0;                                                                                      \
        for (; at + STRIP <= count; at += STRIP) {                                                           \
            const vector *first = (const vector *)((const element *)ins[0] + at);                            \
            vector a = first[0], b = first[1], c = first[2], d = first[3];                                   \
            for (int s = 1; s < in_count; s++) {                                                             \
                const vector *in = (const vector *)((const element *)ins[s] + at);                           \
                a = combine(vector, a, in[0]);                                                               \
                b = combine(vector, b, in[1]);                                                               \
                c = combine(vector, c, in[2]);                                                               \
                d = combine(vector, d, in[3]);                                                               \
            }                                                                                                \
            if (divisor != 1 && multiplies)                                                                  \
                a *= by, b *= by, c *= by, d *= by;                                                          \
            else if (divisor != 1)                                                                           \
                a /= by, b /= by, c /= by, d /= by;                                                          \
            for (int k = 0; k < out_count; k++) {                                                            \
                vector *out = (vector *)((element *)outs[k] + at);                                           \
                out[0] = a;                                                                                  \
                out[1] = b;                                                                                  \
                out[2] = c;                                                                                  \
                out[3] = d;                                                                                  \
            }                                                                                                \
        }                                                                                                    \
        for (; at < count; at++) {                                                                           \
            element sum = ((const element *)ins[0])[at];                                                     \
            for (int s = 1; s < in_count; s++) {                                                             \
                element x = sum, y = ((const element *)ins[s])[at];                                          \
                sum = scalar_combine(x, y);                                                                  \
            }                                                                                                \
            if (divisor != 1) sum = multiplies ? sum * by : sum / by;                                        \
            for (int k = 0; k < out_count; k++) ((element *)outs[k])[at] = sum;                              \
        }                                                                                                    \
    }

/* Defines reduce_many() for a half type. A block holds running values in float32. The function is not
 * inlined, because the compiler would merge two sources into one loop that it cannot vectorize. */
#define DEFINE_MANY_HALF(name, load, store, combine)                                                         \
    __attribute__((noinline)) static void name##_into(float *restrict sum, const uint16_t *in, int64_t n)    \
    {                                                                                                        \
        for (int64_t i = 0; i < n; i++) {                                                                    \
            float x = sum[i], y = load(in[i]);                                                               \
            sum[i] = combine(x, y);                                                                          \
        }                                                                                                    \
    }                                                                                                        \
    static void name(void *const *outs, int out_count, const void *const *ins, int in_count, int64_t count,  \
                     int64_t divisor)                                                                        \
    {                                                                                                        \
        float sum[BLOCK];                                                                                    \
        for (int64_t at = 0; at < count; at += BLOCK) {                                                      \
            int64_t n = count - at < BLOCK ? count - at : BLOCK;                                             \
            const uint16_t *first = (const uint16_t *)ins[0] + at;                                           \
            for (int64_t i = 0; i < n; i++) sum[i] = load(first[i]);                                         \
            for (int s = 1; s < in_count; s++) name##_into(sum, (const uint16_t *)ins[s] + at, n);           \
            if (divisor != 1)                                                                                \
                for (int64_t i = 0; i < n; i++) sum[i] = sum[i] / (float)divisor;                            \
            uint16_t *out = (uint16_t *)outs[0] + at;                                                        \
            for (int64_t i = 0; i < n; i++) out[i] = store(sum[i]);                                          \
            for (int k = 1; k < out_count; k++)                                                              \
                memcpy((uint16_t *)outs[k] + at, out, (size_t)n * sizeof out[0]);                            \
        }                                                                                                    \
    }

#define DEFINE_DIVIDE(name, to, from, compute, load, store)                                                  \
    static void name(void *out_, const void *in_, int64_t count, double divisor_)                            \
    {                                                                                                        \
        to *out = out_;                                                                                      \
        const from *in = in_;                                                                                \
        compute divisor = (compute)divisor_, inverse = (compute)(1 / divisor_);                              \
        if (IS_FLOATING(compute) && has_exact_inverse(divisor_)) {                                           \
            INDEPENDENT                                                                                      \
            for (int64_t i = 0; i < count; i++) out[i] = (to)store((compute)load(in[i]) * inverse);          \
        } else {                                                                                             \
            INDEPENDENT                                                                                      \
            for (int64_t i = 0; i < count; i++) out[i] = (to)store((compute)load(in[i]) / divisor);          \
        }                                                                                                    \
    }

#define DEFINE_PAIRS(name, element, compute, load, store, add, multiply)                                     \
    DEFINE_PAIR(name##_pair_sum, element, compute, load, store, add)                                         \
    DEFINE_PAIR(name##_pair_min, element, compute, load, store, LESSER)                                      \
    DEFINE_PAIR(name##_pair_max, element, compute, load, store, GREATER)                                     \
    DEFINE_PAIR(name##_pair_product, element, compute, load, store, multiply)                                \
    DEFINE_DIVIDE(name##_divide, element, element, compute, load, store)

/* Integers add and multiply as unsigned vectors, so they wrap around. */
#define DEFINE_FULL(name, element, add, multiply, vector, wrapping, mask)                                    \
    DEFINE_PAIRS(name, element, element, SAME, SAME, add, multiply)                                          \
    DEFINE_MANY(name##_many_sum, element, vector, add, wrapping##_ADD)                                       \
    DEFINE_MANY(name##_many_min, element, vector, LESSER, mask##_LESSER)                                     \
    DEFINE_MANY(name##_many_max, element, vector, GREATER, mask##_GREATER)                                   \
    DEFINE_MANY(name##_many_product, element, vector, multiply, wrapping##_MULTIPLY)

#define DEFINE_HALF(name, load, store)                                                                       \
    DEFINE_PAIRS(name, uint16_t, float, load, store, ADD, MULTIPLY)                                          \
    DEFINE_MANY_HALF(name##_many_sum, load, store, ADD)                                                      \
    DEFINE_MANY_HALF(name##_many_min, load, store, LESSER)                                                   \
    DEFINE_MANY_HALF(name##_many_max, load, store, GREATER)                                                  \
    DEFINE_MANY_HALF(name##_many_product, load, store, MULTIPLY)

DEFINE_FULL(f64, double, ADD, MULTIPLY, f64_vector, PLAIN, I64)
DEFINE_FULL(f32, float, ADD, MULTIPLY, f32_vector, PLAIN, I32)
DEFINE_FULL(i64, int64_t, ADD_I64, MULTIPLY_I64, i64_vector, U64, I64)
DEFINE_FULL(i32, int32_t, ADD_I32, MULTIPLY_I32, i32_vector, U32, I32)
DEFINE_HALF(f16, f16_to_float, f16_from_float)
DEFINE_HALF(bf16, bf16_to_float, bf16_from_float)

DEFINE_DIVIDE(f64_from_f32, double, float, double, SAME, SAME)
DEFINE_DIVIDE(f64_from_f16, double, uint16_t, double, f16_to_float, SAME)
DEFINE_DIVIDE(f64_from_bf16, double, uint16_t, double, bf16_to_float, SAME)
DEFINE_DIVIDE(f32_from_f64, float, double, double, SAME, SAME)
DEFINE_DIVIDE(f32_from_f16, float, uint16_t, float, f16_to_float, SAME)
DEFINE_DIVIDE(f32_from_bf16, float, uint16_t, float, bf16_to_float, SAME)
DEFINE_DIVIDE(f16_from_f64, uint16_t, double, double, SAME, f16_from_float)
DEFINE_DIVIDE(f16_from_f32, uint16_t, float, float, SAME, f16_from_float)
DEFINE_DIVIDE(f16_from_bf16, uint16_t, uint16_t, float, bf16_to_float, f16_from_float)
DEFINE_DIVIDE(bf16_from_f64, uint16_t, double, double, SAME, bf16_from_float)
DEFINE_DIVIDE(bf16_from_f32, uint16_t, float, float, SAME, bf16_from_float)
DEFINE_DIVIDE(bf16_from_f16, uint16_t, uint16_t, float, f16_to_float, bf16_from_float)

#define OPS(name, form)                                                                                      \
    {                                                                                                        \
        [REDUCE_SUM] = name##_##form##_sum, [REDUCE_MEAN] = name##_##form##_sum,                             \
        [REDUCE_MIN] = name##_##form##_min, [REDUCE_MAX] = name##_##form##_max,                              \
        [REDUCE_PRODUCT] = name##_##form##_product                                                           \
    }
#define TYPES(form)                                                                                          \
    {                                                                                                        \
        [DTYPE_F64] = OPS(f64, form), [DTYPE_F32] = OPS(f32, form), [DTYPE_F16] = OPS(f16, form),            \
        [DTYPE_BF16] = OPS(bf16, form), [DTYPE_I64] = OPS(i64, form), [DTYPE_I32] = OPS(i32, form)           \
    }

#define TEXT_OF(a) #a
#define TEXT(a) TEXT_OF(a)
#define PASTE(a, b) a##_##b
#define NAMED(a, b) PASTE(a, b)

const reduce_kernels NAMED(reduce_kernels, KERNEL_ISA) = {
    .name = TEXT(KERNEL_ISA),
    .pair = TYPES(pair),
    .many = TYPES(many),
    .convert =
        {
            [DTYPE_F64] = {[DTYPE_F64] = f64_divide,
                           [DTYPE_F32] = f64_from_f32,
                           [DTYPE_F16] = f64_from_f16,
                           [DTYPE_BF16] = f64_from_bf16},
            [DTYPE_F32] = {[DTYPE_F64] = f32_from_f64,
                           [DTYPE_F32] = f32_divide,
                           [DTYPE_F16] = f32_from_f16,
                           [DTYPE_BF16] = f32_from_bf16},
            [DTYPE_F16] = {[DTYPE_F64] = f16_from_f64,
                           [DTYPE_F32] = f16_from_f32,
                           [DTYPE_F16] = f16_divide,
                           [DTYPE_BF16] = f16_from_bf16},
            [DTYPE_BF16] = {[DTYPE_F64] = bf16_from_f64,
                            [DTYPE_F32] = bf16_from_f32,
                            [DTYPE_F16] = bf16_from_f16,
                            [DTYPE_BF16] = bf16_divide},
            [DTYPE_I64] = {[DTYPE_I64] = i64_divide},
            [DTYPE_I32] = {[DTYPE_I32] = i32_divide},
        },
};
