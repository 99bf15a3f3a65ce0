/* Matrix multiplication through cuBLASLt. Without the library cublaslt_prepare() gives NULL: callers use
 * their own. */
#ifndef COMMON_DEVICE_CUDA_MODULE_CUBLASLT_H
#define COMMON_DEVICE_CUDA_MODULE_CUBLASLT_H

#include "common/device/cuda/module/cuda_impl.h"

/* The dimension that follows op_scalars.rows. */
typedef enum cublaslt_varying { CUBLASLT_N, CUBLASLT_K } cublaslt_varying;

/* d (m, n) = op(a) (m, k) * op(b) (k, n), all running down columns, which lie without gaps unless b's
 * begin pitch_b elements apart. */
typedef struct cublaslt_shape {
    int64_t m, n, k;
    bool transpose_a, transpose_b;
    cublaslt_varying varying;
    bool bias, relu; /* added to each column, [m], of d's type; then max(0, x) */
    bool sums;       /* without bias: the sums over k of op(b), [n], of d's type, are also written */
    dtype in, out;   /* of a and b, of d: float32, or bfloat16; sums are of float32 */
    int64_t pitch_b; /* 0: without gaps */
} cublaslt_shape;

typedef struct cublaslt_operands {
    const void *a, *b;
    const void *bias; /* where the shape has one */
    void *d, *sums;   /* at multiples of 16 bytes, all of them */
} cublaslt_operands;

typedef struct cublaslt_matmul cublaslt_matmul;

#if PSRING_HAVE_CUBLASLT

status cublaslt_open(cuda_device *d);
void cublaslt_close(cuda_device *d);

/* *out is NULL where cuBLASLt is missing or has no algorithm, which counts as a fallback of operation `kind`
 * (cuda_fall_back). Its heuristics' first algorithm, or with device_config.benchmark the fastest of their
 * first eight. */
status cublaslt_prepare(cuda_device *d, op_kind kind, const cublaslt_shape *shape, cublaslt_matmul **out);
void cublaslt_release(cublaslt_matmul **product);
size_t cublaslt_workspace(const cublaslt_matmul *product);
/* That the algorithm took when it was timed; -1 where none was. */
float cublaslt_ms(const cublaslt_matmul *product);

/* Sets the varying dimension to `rows`; *fits: whether there is an algorithm for that many. */
status cublaslt_set_rows(cublaslt_matmul *product, int64_t rows, bool *fits);

/* `add`: d = d + product; sums are written, never added to. *refused: cuBLASLt does not do what its search
 * found, nothing was written, and it counts as a fallback. */
status cublaslt_run(cublaslt_matmul *product, cudaStream_t s, const cublaslt_operands *operands, int64_t rows,
                    bool add, void *workspace, bool *refused);

#else /* no product is ever made */

#define cublaslt_open(d) STATUS_OK
#define cublaslt_close(d)
#define cublaslt_prepare(d, kind, shape, out) ((void)(shape), *(out) = NULL, STATUS_OK)
#define cublaslt_release(product)
#define cublaslt_workspace(product) 0
#define cublaslt_ms(product) -1
#define cublaslt_set_rows(product, rows, fits) (*(fits) = false, STATUS_OK)
#define cublaslt_run(product, s, operands, rows, add, workspace, refused)                                    \
    ((void)(operands), *(refused) = false, fail(STATUS_INTERNAL, "this module was built without cuBLASLt"))

#endif
#endif
