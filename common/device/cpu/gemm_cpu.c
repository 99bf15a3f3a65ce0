/* Chooses the algorithm of a matrix multiplication, and contains the algorithms that call oneDNN's gemm. */
#include "common/base/least.h"
#include "common/device/cpu/gemm.h"
#include "common/device/cpu/onednn.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

/* Measured bounds for the choice of an algorithm (docs/kernels-cpu.md). */
enum {
    TINY_WORK = 1 << 12,  /* multiply-adds below which calling sgemm takes longer than the arithmetic */
    SMALL_WORK = 1 << 18, /* multiply-adds below which packing costs more than it gains */
    WHOLE_WORK = 1 << 20, /* used in place of SMALL_WORK if the columns fill whole register tiles */
    TILE_COLUMNS = 64,
    FEW_ROWS = 48, /* largest m for which c^T = b a^T is faster than c = a b^T, because sgemm would transpose
                      b; FEW_COLUMNS is the largest n */
    FEW_COLUMNS = 12,
    TRANSPOSED_DEPTH = 512,      /* k below which the transposition costs more than it gains */
    TRANSPOSED_RESULT = 1 << 18, /* largest result that fits the L2 cache */
};

/* ---- on one thread ---------------------------------------------------------------------------- */

typedef enum gemm_algorithm { GEMM_ONEDNN, GEMM_SMALL, GEMM_TRANSPOSED } gemm_algorithm;

static gemm_algorithm choose_algorithm(const cpu_gemm_shape *s)
{
    int64_t work = s->m * s->n * s->k;
    bool b_transposed = s->transpose_b && !s->transpose_a;
    if (work <= TINY_WORK) return GEMM_SMALL;
    if (b_transposed && s->n <= FEW_COLUMNS) return GEMM_TRANSPOSED;
    if (work <= SMALL_WORK) return GEMM_SMALL;
    if (b_transposed && s->m <= FEW_ROWS) return GEMM_TRANSPOSED;
    return work <= WHOLE_WORK && s->n % TILE_COLUMNS == 0 ? GEMM_SMALL : GEMM_ONEDNN;
}

static void small_gemm(const cpu_isa *isa, const cpu_gemm_shape *s, const float *a, const float *b, bool add,
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
    onednn_expect(dnnl_sgemm(transpose_a, transpose_b, m, n, k, 1.0f, a, a_stride, b, b_stride,
                             add ? 1.0f : 0.0f, c, c_stride));
}

/* Number of rows and columns of a matrix for which oneDNN generates the same code as for larger matrices. */
enum { FULL = 64 };

static void write_sgemm(void)
{
    static float a[FULL * FULL], b[FULL * FULL], c[FULL * FULL];
    sgemm('N', 'N', FULL, FULL, FULL, a, FULL, b, FULL, false, c, FULL);
}

size_t cpu_gemm_prepare(const cpu_gemm_shape *s)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (choose_algorithm(s) != GEMM_SMALL) pthread_once(&once, write_sgemm);
    if (!s->transpose_b) return 0;
    int64_t transposed_b = least(s->n * s->k, WHOLE_WORK);
    int64_t transposed_c = (s->n <= FEW_COLUMNS ? s->m : least(s->m, FEW_ROWS)) * s->n;
    return (size_t)(transposed_b > transposed_c ? transposed_b : transposed_c) * sizeof(float);
}

void cpu_gemm(const cpu_isa *isa, const cpu_gemm_shape *s, const float *a, const float *b, bool add, float *c,
              float *scratch)
{
    switch (choose_algorithm(s)) {
    case GEMM_SMALL:
        small_gemm(isa, s, a, b, add, c, scratch);
        break;
    case GEMM_TRANSPOSED:
        sgemm('N', 'T', s->n, s->m, s->k, b, s->b_stride, a, s->a_stride, false, scratch, s->m);
        isa->matrix->transpose(scratch, s->m, s->n, s->m, add, c, s->c_stride);
        break;
    case GEMM_ONEDNN:
        sgemm(s->transpose_a ? 'T' : 'N', s->transpose_b ? 'T' : 'N', s->m, s->n, s->k, a, s->a_stride, b,
              s->b_stride, add, c, s->c_stride);
        break;
    }
}

/* ---- c = a^T b as the transpose of b^T a ------------------------------------------------------- */

/* Returns true for gradients of weights that have many more rows than columns. oneDNN computes c^T faster
 * than c for these shapes. */
static bool transposed_gemm_pays(const cpu_gemm_shape *s)
{
    return s->transpose_a && !s->transpose_b && s->m >= 2 * s->n && s->n >= TILE_COLUMNS &&
           s->k >= TRANSPOSED_DEPTH && s->m * s->n <= TRANSPOSED_RESULT;
}

typedef struct transpose_job {
    const cpu_isa *isa;
    const cpu_gemm_shape *shape;
    const float *transposed; /* [n, m] */
    float *c;
    bool add;
} transpose_job;

static void transpose_part(const void *context, int part, int64_t first, int64_t end)
{
    const transpose_job *job = context;
    const cpu_gemm_shape *s = job->shape;
    job->isa->matrix->transpose(job->transposed + first, s->m, s->n, end - first, job->add,
                                job->c + first * s->c_stride, s->c_stride);
}

static void transposed_gemm(const host_kernel *kernel, const cpu_gemm_shape *s, const float *a,
                            const float *b, bool add, float *c, float *scratch)
{
    sgemm('T', 'N', s->n, s->m, s->k, b, s->b_stride, a, s->a_stride, false, scratch, s->m);
    transpose_job job = {cpu_isa_of(kernel), s, scratch, c, add};
    cpu_parallel(kernel->threads, s->m, cpu_row_grain(s->n), transpose_part, &job);
}

/* ---- c = op(a) b by copies of rows ---------------------------------------------------------------- */

/* If a result is small, oneDNN's kernels for AVX2 read the operands without packing them. Rows that are a
 * multiple of 1 KiB apart compete for few sets of the cache. Therefore the copies have PADDING floats between
 * rows. */
enum { COPIED_ROWS = 256, PADDING = 16 };
/* For c = a b, the smallest m and n, and the largest m * n. */
enum { COPIED_SIDE = 128, COPIED_RESULT = 1 << 20 };
enum { COPIED_GRADIENT = 1 << 15 }; /* For c = a^T b, the smallest m * n. */

static bool copied_gemm_pays(const cpu_isa *isa, const cpu_gemm_shape *s)
{
    int64_t result = s->m * s->n;
    if (!cpu_is_avx2(isa) || s->transpose_b) return false;
    if (s->transpose_a) return result >= COPIED_GRADIENT && result <= COPIED_RESULT;
    return s->m >= COPIED_SIDE && s->n >= COPIED_SIDE && result <= COPIED_RESULT;
}

/* Returns the bytes of scratch memory, which suffice for fewer rows of a, too. */
static size_t copied_gemm_scratch(const cpu_isa *isa, const cpu_gemm_shape *s)
{
    cpu_gemm_shape fewest = *s;
    if (!s->transpose_a) fewest.m = least(s->m, COPIED_SIDE);
    if (!copied_gemm_pays(isa, &fewest)) return 0;
    int64_t columns = s->n + PADDING + (s->transpose_a ? s->m + PADDING : 0);
    return (size_t)(COPIED_ROWS * columns) * sizeof(float);
}

typedef struct copy_job {
    const float *from;
    float *to;
    int64_t columns, stride;
} copy_job;

static void copy_part(const void *context, int part, int64_t first, int64_t end)
{
    const copy_job *job = context;
    for (int64_t row = first; row < end; row++)
        memcpy(job->to + row * (job->columns + PADDING), job->from + row * job->stride,
               (size_t)job->columns * sizeof(float));
}

static void copy_rows(const host_kernel *kernel, const float *from, int64_t rows, int64_t columns,
                      int64_t stride, float *to)
{
    copy_job job = {from, to, columns, stride};
    cpu_parallel(kernel->threads, rows, cpu_row_grain(columns), copy_part, &job);
}

static void copied_gemm(const host_kernel *kernel, const cpu_gemm_shape *s, const float *a, const float *b,
                        bool add, float *c, float *scratch)
{
    float *b_copy = scratch, *a_copy = b_copy + COPIED_ROWS * (s->n + PADDING);
    int64_t at = 0;
    do {
        int64_t rows = least(s->k - at, COPIED_ROWS);
        const float *left = a + at;
        copy_rows(kernel, b + at * s->b_stride, rows, s->n, s->b_stride, b_copy);
        if (s->transpose_a) {
            copy_rows(kernel, a + at * s->a_stride, rows, s->m, s->a_stride, a_copy);
            left = a_copy;
        }
        sgemm(s->transpose_a ? 'T' : 'N', 'N', s->m, s->n, rows, left,
              s->transpose_a ? s->m + PADDING : s->a_stride, b_copy, s->n + PADDING, add || at > 0, c,
              s->c_stride);
        at += COPIED_ROWS;
    } while (at < s->k);
}

/* ---- bfloat16 --------------------------------------------------------------------------------- */

/* libdnnl exports this function, but its headers do not declare it. Matrices are row-major, as in
 * dnnl_sgemm. */
dnnl_status_t dnnl_gemm_bf16bf16f32(char transa, char transb, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k,
                                    float alpha, const uint16_t *a, dnnl_dim_t lda, const uint16_t *b,
                                    dnnl_dim_t ldb, float beta, float *c, dnnl_dim_t ldc);

bool cpu_has_bf16(void)
{
    return processor_has_bf16() &&
           (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}

typedef struct convert_job {
    const cpu_elementwise *kernels;
    const float *from;
    uint16_t *to;
} convert_job;

static void convert_part(const void *context, int part, int64_t first, int64_t end)
{
    const convert_job *job = context;
    job->kernels->to_bf16(job->from + first, job->to + first, end - first);
}

void cpu_to_bf16(const host_kernel *kernel, const float *from, uint16_t *to, int64_t count)
{
    convert_job job = {cpu_isa_of(kernel)->elementwise, from, to};
    cpu_parallel(kernel->threads, count, CPU_GRAIN, convert_part, &job);
}

size_t cpu_bf16_bytes(int64_t count)
{
    return ((size_t)count * sizeof(uint16_t) + 63) / 64 * 64;
}

static void onednn_bf16_gemm(const cpu_gemm_shape *s, const uint16_t *a, const uint16_t *b, bool add,
                             float *c)
{
    onednn_expect(dnnl_gemm_bf16bf16f32(s->transpose_a ? 'T' : 'N', s->transpose_b ? 'T' : 'N', s->m, s->n,
                                        s->k, 1.0f, a, s->a_stride, b, s->b_stride, add ? 1.0f : 0.0f, c,
                                        s->c_stride));
}

static void write_bf16_gemm(void)
{
    static uint16_t a[FULL * FULL], b[FULL * FULL];
    static float c[FULL * FULL];
    cpu_gemm_shape shape = cpu_gemm_dense(false, false, FULL, FULL, FULL);
    onednn_bf16_gemm(&shape, a, b, false, c);
}

static size_t bf16_gemm_prepare(const cpu_gemm_shape *s)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, write_bf16_gemm);
    return cpu_bf16_bytes(s->m * s->k) + cpu_bf16_bytes(s->k * s->n);
}

static void bf16_gemm(const host_kernel *kernel, const cpu_gemm_shape *s, const float *a, const float *b,
                      bool add, float *c, void *scratch)
{
    assert(s->a_stride == (s->transpose_a ? s->m : s->k) && s->b_stride == (s->transpose_b ? s->k : s->n));
    uint16_t *bf16_a = scratch, *bf16_b = (uint16_t *)((char *)scratch + cpu_bf16_bytes(s->m * s->k));
    cpu_to_bf16(kernel, a, bf16_a, s->m * s->k);
    cpu_to_bf16(kernel, b, bf16_b, s->k * s->n);
    onednn_bf16_gemm(s, bf16_a, bf16_b, add, c);
}

/* ---- the choice -------------------------------------------------------------------------------- */

size_t cpu_matmul_prepare(const host_kernel *kernel, const cpu_gemm_shape *s)
{
    if (cpu_device_of(kernel)->bf16) return bf16_gemm_prepare(s);
    size_t bytes = cpu_gemm_prepare(s), copied = copied_gemm_scratch(cpu_isa_of(kernel), s),
           transposed = transposed_gemm_pays(s) ? (size_t)(s->m * s->n) * sizeof(float) : 0;
    if (bytes < transposed) bytes = transposed;
    return bytes > copied ? bytes : copied;
}

typedef struct epilogue_job {
    const cpu_elementwise *kernels;
    const cpu_gemm_shape *shape;
    const cpu_epilogue *epilogue;
    float *c;
} epilogue_job;

static void epilogue_part(const void *context, int part, int64_t first, int64_t end)
{
    const epilogue_job *job = context;
    const cpu_epilogue *e = job->epilogue;
    int64_t at = first * job->shape->c_stride;
    job->kernels->bias_activate[e->act](job->c + at, e->slope ? e->slope + at : NULL, e->bias,
                                        job->shape->c_stride, end - first, job->shape->n);
}

void cpu_matmul(const host_kernel *kernel, const cpu_gemm_shape *s, const float *a, const float *b, bool add,
                float *c, const cpu_epilogue *epilogue, void *scratch)
{
    if (cpu_device_of(kernel)->bf16)
        bf16_gemm(kernel, s, a, b, add, c, scratch);
    else if (copied_gemm_pays(cpu_isa_of(kernel), s))
        copied_gemm(kernel, s, a, b, add, c, scratch);
    else if (transposed_gemm_pays(s))
        transposed_gemm(kernel, s, a, b, add, c, scratch);
    else
        cpu_gemm(cpu_isa_of(kernel), s, a, b, add, c, scratch);
    if (!epilogue || (!epilogue->bias && epilogue->act == ACTIVATION_NONE)) return;
    epilogue_job job = {cpu_isa_of(kernel)->elementwise, s, epilogue, c};
    cpu_parallel(kernel->threads, s->m, cpu_row_grain(s->n), epilogue_part, &job);
}
