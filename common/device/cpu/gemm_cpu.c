/* Matrix products: oneDNN's sgemm, except where a kernel without packing is faster. */
#include "common/device/cpu/cpu_impl.h"

#include <assert.h>

/* Below so many multiply-adds packing costs more than it gains (docs/kernels-cpu.md). */
enum { SMALL_PRODUCT = 1 << 16 };

/* With so few rows sgemm spends its time on transposing b; the transposed product c^T = b^T a^T takes b as
 * it lies. */
enum { FEW_ROWS = 96 };

static bool is_small(const cpu_gemm_shape *s)
{
    return s->m * s->n * s->k <= SMALL_PRODUCT;
}

static bool has_few_rows(const cpu_gemm_shape *s)
{
    return s->transpose_b && !s->transpose_a && s->m <= FEW_ROWS && s->n > 2 * s->m;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

size_t cpu_gemm_scratch(const cpu_gemm_shape *s)
{
    if (!s->transpose_b) return 0;
    int64_t transposed_b = smaller(s->n * s->k, SMALL_PRODUCT), transposed_c = smaller(s->m, FEW_ROWS) * s->n;
    return (size_t)(transposed_b > transposed_c ? transposed_b : transposed_c) * sizeof(float);
}

static void small_product(const cpu_isa *isa, const cpu_gemm_shape *s, const float *a, const float *b,
                          bool add, float *c, float *scratch)
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
    if (is_small(s)) {
        small_product(isa, s, a, b, add, c, scratch);
    } else if (has_few_rows(s)) {
        sgemm('N', 'T', s->n, s->m, s->k, b, s->b_stride, a, s->a_stride, false, scratch, s->m);
        isa->matrix->transpose(scratch, s->m, s->n, s->m, add, c, s->c_stride);
    } else {
        sgemm(s->transpose_a ? 'T' : 'N', s->transpose_b ? 'T' : 'N', s->m, s->n, s->k, a, s->a_stride, b,
              s->b_stride, add, c, s->c_stride);
    }
}
