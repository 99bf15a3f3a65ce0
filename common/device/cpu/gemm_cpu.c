/* Matrix products: oneDNN's sgemm, except where a kernel without packing is faster. */
#include "common/device/cpu/gemm.h"

#include "common/device/cpu/parallel.h"

#include <assert.h>

/* Bounds found by measurement: docs/kernels-cpu.md. */
enum {
    TINY_PRODUCT = 1 << 12,  /* multiply-adds below which a call of sgemm itself is what takes the time */
    SMALL_PRODUCT = 1 << 18, /* below which packing costs more than it gains, */
    WHOLE_PRODUCT = 1 << 20, /* and the same where all columns make whole register tiles */
    TILE_COLUMNS = 64,
    FEW_ROWS =
        48, /* sgemm mostly transposes b for so few rows, and for so few columns; c^T = b a^T does not */
    FEW_COLUMNS = 12,
    TURNED_DEPTH = 512,      /* transposing what is more than the L2 cache holds, or for a short product, */
    TURNED_RESULT = 1 << 18, /* takes longer than it gains */
};

typedef enum gemm_way { WAY_SGEMM, WAY_OWN, WAY_TRANSPOSED } gemm_way;

static gemm_way choose_way(const cpu_gemm_shape *s)
{
    int64_t work = s->m * s->n * s->k;
    bool by_rows = s->transpose_b && !s->transpose_a;
    if (work <= TINY_PRODUCT) return WAY_OWN;
    if (by_rows && s->n <= FEW_COLUMNS) return WAY_TRANSPOSED;
    if (work <= SMALL_PRODUCT) return WAY_OWN;
    if (by_rows && s->m <= FEW_ROWS) return WAY_TRANSPOSED;
    return work <= WHOLE_PRODUCT && s->n % TILE_COLUMNS == 0 ? WAY_OWN : WAY_SGEMM;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

size_t cpu_gemm_scratch(const cpu_gemm_shape *s)
{
    if (!s->transpose_b) return 0;
    int64_t transposed_b = smaller(s->n * s->k, WHOLE_PRODUCT);
    int64_t transposed_c = (s->n <= FEW_COLUMNS ? s->m : smaller(s->m, FEW_ROWS)) * s->n;
    return (size_t)(transposed_b > transposed_c ? transposed_b : transposed_c) * sizeof(float);
}

static void own_product(const cpu_isa *isa, const cpu_gemm_shape *s, const float *a, const float *b, bool add,
                        float *c, float *scratch)
{
    int64_t row_stride = s->transpose_a ? 1 : s->a_stride, column_stride = s->transpose_a ? s->a_stride : 1;
    int64_t b_stride = s->b_stride;
    if (s->transpose_b) {
        isa->matrix->transpose(b, s->b_stride, s->n, s->k, false, scratch, s->n);
        b = scratch;
        b_stride = s->n;
    }
    isa->matrix->multiply(s->m, s->n, s->k, a, row_stride, column_stride, b, b_stride, add, c, s->c_stride);
}

static void sgemm(char transpose_a, char transpose_b, int64_t m, int64_t n, int64_t k, const float *a,
                  int64_t a_stride, const float *b, int64_t b_stride, bool add, float *c, int64_t c_stride)
{
    dnnl_status_t rc = dnnl_sgemm(transpose_a, transpose_b, m, n, k, 1.0f, a, a_stride, b, b_stride,
                                  add ? 1.0f : 0.0f, c, c_stride);
    assert(rc == dnnl_success);
    (void)rc;
}

void cpu_gemm(const cpu_isa *isa, const cpu_gemm_shape *s, const float *a, const float *b, bool add, float *c,
              float *scratch)
{
    switch (choose_way(s)) {
    case WAY_OWN:
        own_product(isa, s, a, b, add, c, scratch);
        break;
    case WAY_TRANSPOSED:
        sgemm('N', 'T', s->n, s->m, s->k, b, s->b_stride, a, s->a_stride, false, scratch, s->m);
        isa->matrix->transpose(scratch, s->m, s->n, s->m, add, c, s->c_stride);
        break;
    case WAY_SGEMM:
        sgemm(s->transpose_a ? 'T' : 'N', s->transpose_b ? 'T' : 'N', s->m, s->n, s->k, a, s->a_stride, b,
              s->b_stride, add, c, s->c_stride);
        break;
    }
}

/* ---- gradients of weights --------------------------------------------------------------------- */

bool cpu_turned_pays(const cpu_gemm_shape *s)
{
    return s->transpose_a && !s->transpose_b && s->m >= 2 * s->n && s->n >= TILE_COLUMNS && s->k >= TURNED_DEPTH &&
           s->m * s->n <= TURNED_RESULT;
}

size_t cpu_turned_scratch(const cpu_gemm_shape *s)
{
    return (size_t)(s->m * s->n) * sizeof(float);
}

typedef struct turn_job {
    const cpu_isa *isa;
    const cpu_gemm_shape *shape;
    const float *turned; /* [n, m] */
    float *c;
    bool add;
} turn_job;

/* Rows [first, end) of c. */
static void turn_part(const void *context, int part, int64_t first, int64_t end)
{
    (void)part;
    const turn_job *job = context;
    const cpu_gemm_shape *s = job->shape;
    job->isa->matrix->transpose(job->turned + first, s->m, s->n, end - first, job->add, job->c + first * s->c_stride,
                                s->c_stride);
}

void cpu_turned_product(const host_kernel *kernel, const cpu_gemm_shape *s, const float *a, const float *b, bool add,
                        float *c, float *scratch)
{
    sgemm('T', 'N', s->n, s->m, s->k, b, s->b_stride, a, s->a_stride, false, scratch, s->m);
    turn_job job = {cpu_isa_of(kernel), s, scratch, c, add};
    cpu_parallel(kernel->threads, s->m, cpu_row_grain(s->n), turn_part, &job);
}
