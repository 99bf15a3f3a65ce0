/* Element types and shapes. Inside the program images are NHWC, matrices are row-major, and tokens are
 * [batch, sequence]. Files and checkpoints use PyTorch's NCHW. */
#ifndef COMMON_OPS_TENSOR_H
#define COMMON_OPS_TENSOR_H

#include <stdint.h>

/* Columns: name, size of an element in bytes, name in reports and checkpoints. */
#define DTYPE_LIST(X)                                                                                        \
    X(F64, 8, "float64")                                                                                     \
    X(F32, 4, "float32")                                                                                     \
    X(F16, 2, "float16")                                                                                     \
    X(BF16, 2, "bfloat16")                                                                                   \
    X(I64, 8, "int64")                                                                                       \
    X(I32, 4, "int32")                                                                                       \
    X(U8, 1, "uint8")

#define DTYPE_ENUM(name, size, text) DTYPE_##name,
typedef enum dtype { DTYPE_LIST(DTYPE_ENUM) DTYPE_COUNT } dtype;
#undef DTYPE_ENUM

static inline int dtype_size(dtype type)
{
#define DTYPE_SIZE(name, size, text) size,
    static const int sizes[] = {DTYPE_LIST(DTYPE_SIZE)};
#undef DTYPE_SIZE
    return sizes[type];
}

const char *dtype_name(dtype type);

enum { SHAPE_MAX_RANK = 4 };

typedef struct shape {
    int rank; /* 0 for a scalar */
    int64_t dims[SHAPE_MAX_RANK];
} shape;

/* Largest number of elements of a tensor, and of all parameters of a model. No machine can hold so many
 * elements. The limit also keeps sums of sizes in bytes from overflowing 64 bits. */
#define SHAPE_MOST_ELEMENTS (INT64_C(1) << 44)

/* Returns the number of elements, or SHAPE_MOST_ELEMENTS + 1 if there are more than the limit. */
int64_t shape_elements(shape s);
int shape_equal(shape a, shape b);

/* Formats "64x3x7x7". Returns `buffer`. */
char *shape_format(char *buffer, int size, shape s);

static inline shape shape_1d(int64_t a)
{
    return (shape){1, {a}};
}

static inline shape shape_2d(int64_t a, int64_t b)
{
    return (shape){2, {a, b}};
}

static inline shape shape_4d(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (shape){4, {a, b, c, d}};
}

#endif
