/* Matrix multiplication through cuBLASLt. Without the library, cublaslt_prepare() sets *out to NULL, and its
 * callers use kernels of this module. */
#ifndef COMMON_DEVICE_CUDA_MODULE_CUBLASLT_H
#define COMMON_DEVICE_CUDA_MODULE_CUBLASLT_H

#include "common/device/cuda/module/cuda_impl.h"

/* The dimension that op_scalars.rows sets. */
typedef enum cublaslt_varying { CUBLASLT_N, CUBLASLT_K } cublaslt_varying;

/* The shape of d (m, n) = op(a) (m, k) * op(b) (k, n). All matrices are column-major without gaps between
 * columns, except that columns of b are pitch_b elements apart if pitch_b is not 0. */
typedef struct cublaslt_shape {
    int64_t m, n, k;
    bool transpose_a, transpose_b;
    cublaslt_varying varying;
    /* `bias` adds a vector [m] of d's type to each column. `relu` then takes max(0, x) of each element x. */
    bool bias, relu;
    /* If true, the call also writes the sums of op(b) over k, [n] in d's type. Must not be set together
     * with `bias`. */
    bool sums;
    /* Type of a and b, and type of d: float32 or bfloat16. Products are summed in float32. */
    dtype in, out;
    int64_t pitch_b; /* 0 if there are no gaps */
} cublaslt_shape;

typedef struct cublaslt_operands {
    const void *a, *b;
    const void *bias; /* read only if the shape has a bias */
    void *d, *sums;   /* all operands are aligned to 16 bytes */
} cublaslt_operands;

typedef struct cublaslt_matmul cublaslt_matmul;

#if PSRING_HAVE_CUBLASLT

status cublaslt_open(cuda_device *d);
void cublaslt_close(cuda_device *d);

/* Prepares a multiplication with the first algorithm of cuBLASLt's heuristics, or with the fastest of the
 * first eight if device_config.benchmark is set. *out is NULL if cuBLASLt is missing or has no algorithm. A
 * missing algorithm counts as a fallback of operation `kind` (cuda_fall_back()). */
status cublaslt_prepare(cuda_device *d, op_kind kind, const cublaslt_shape *shape, cublaslt_matmul **out);
void cublaslt_release(cublaslt_matmul **product);
size_t cublaslt_workspace(const cublaslt_matmul *product);
/* Returns the time of the algorithm in milliseconds, or -1 if it was not timed. */
float cublaslt_ms(const cublaslt_matmul *product);

/* Sets the varying dimension to `rows`. Sets *fits to true if cuBLASLt has an algorithm for this size. */
status cublaslt_set_rows(cublaslt_matmul *product, int64_t rows, bool *fits);

/* Computes d = product, or d = d + product if `add`. The sums of cublaslt_shape.sums are always stored, never
 * added. *refused is true if cuBLASLt does not support the multiplication although its search found an
 * algorithm. A refused multiplication writes no result and counts as a fallback. */
status cublaslt_run(cublaslt_matmul *product, cudaStream_t s, const cublaslt_operands *operands, int64_t rows,
                    bool add, void *workspace, bool *refused);

#else /* built without cuBLASLt */

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
