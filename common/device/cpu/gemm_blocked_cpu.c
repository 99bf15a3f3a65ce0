/* Matrix products by the kernels of isa/gemm.c: a block of rows of a stays in the L2 cache while strips of b, of
 * at most DEPTH rows, pass through the L1 cache. An element of c is the same sum in the same order however rows
 * are shared among threads. */
#include "common/device/cpu/gemm_blocked.h"

#include "common/device/cpu/parallel.h"

enum { DEPTH = 320, ROWS = 240, COLUMNS = 512 };

/* Bounds found by measurement: docs/kernels-cpu.md. Every thread packs b for itself, which its rows must make up
 * for. */
enum { ENOUGH_ROWS = 768, NARROW = 64 };

bool cpu_blocked_pays(const host_kernel *kernel, const cpu_gemm_shape *s)
{
    if (!cpu_isa_of(kernel)->gemm->many_registers || s->transpose_a) return false;
    return s->m >= ENOUGH_ROWS * (int64_t)kernel->threads && s->n <= s->k && s->k > NARROW &&
           (s->transpose_b || s->n <= NARROW);
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The size of equal blocks of at most `most`, a multiple of `unit`. */
static int64_t block_of(int64_t count, int64_t most, int64_t unit)
{
    int64_t blocks = (count + most - 1) / most;
    return ((count + blocks - 1) / blocks + unit - 1) / unit * unit;
}

/* Strips of b that one thread packs at a time. */
static size_t packed_floats(const cpu_gemm_shape *s)
{
    return (size_t)(smaller(s->k, DEPTH) * block_of(s->n, COLUMNS, 64));
}

size_t cpu_blocked_scratch(int threads, const cpu_gemm_shape *s)
{
    return (size_t)threads * packed_floats(s) * sizeof(float);
}

typedef struct blocked_job {
    const cpu_isa *isa;
    const cpu_gemm_shape *shape;
    const float *a, *b;
    float *c, *scratch;
    bool add;
    const cpu_epilogue *epilogue;
} blocked_job;

/* Of c rows [i, i + rows), columns [j, j + n). */
static void end_block(const blocked_job *job, int64_t i, int64_t rows, int64_t j, int64_t n)
{
    const cpu_epilogue *e = job->epilogue;
    int64_t stride = job->shape->c_stride, at = i * stride + j;
    job->isa->elementwise->bias_activate[e->act](job->c + at, e->slope ? e->slope + at : NULL,
                                                 e->bias ? e->bias + j : NULL, stride, rows, n);
}

/* Rows [first, end) of columns [j, j + n), depth [p, p + k). */
static void multiply_rows(const blocked_job *job, const float *packed, int64_t first, int64_t end, int64_t j,
                          int64_t n, int64_t p, int64_t k)
{
    const cpu_gemm_shape *s = job->shape;
    bool last = p + k == s->k;
    int64_t height = block_of(end - first, ROWS, 12), ahead = last ? p : p + k;
    for (int64_t i = first; i < end; i += height) {
        int64_t rows = smaller(height, end - i);
        bool turns = i + rows == end;
        int64_t next = turns ? first : i + rows;
        cpu_gemm_block block = {.m = rows,
                                .n = n,
                                .k = k,
                                .a = job->a + i * s->a_stride + p,
                                .b = packed,
                                .c = job->c + i * s->c_stride + j,
                                .a_stride = s->a_stride,
                                .c_stride = s->c_stride,
                                .add = job->add || p > 0,
                                .next = job->a + next * s->a_stride + (turns ? ahead : p),
                                .next_rows = turns && last ? 0 : smaller(height, end - next),
                                .next_columns = turns ? smaller(k, s->k - ahead) : k,
                                .next_stride = s->a_stride};
        job->isa->gemm->multiply(&block);
        if (last && cpu_epilogue_works(job->epilogue)) end_block(job, i, rows, j, n);
    }
}

static void blocked_part(const void *context, int part, int64_t first, int64_t end)
{
    const blocked_job *job = context;
    const cpu_gemm_shape *s = job->shape;
    float *packed = job->scratch + (size_t)part * packed_floats(s);
    int64_t width = block_of(s->n, COLUMNS, job->isa->gemm->tile_columns), depth = block_of(s->k, DEPTH, 1);
    for (int64_t j = 0; j < s->n; j += width)
        for (int64_t p = 0; p < s->k; p += depth) {
            int64_t n = smaller(width, s->n - j), k = smaller(depth, s->k - p);
            const float *b = s->transpose_b ? job->b + j * s->b_stride + p : job->b + p * s->b_stride + j;
            job->isa->gemm->pack(b, s->b_stride, s->transpose_b, n, k, packed);
            multiply_rows(job, packed, first, end, j, n, p, k);
        }
}

void cpu_blocked_product(const host_kernel *kernel, const cpu_gemm_shape *s, const float *a, const float *b, bool add,
                         float *c, const cpu_epilogue *epilogue, float *scratch)
{
    blocked_job job = {cpu_isa_of(kernel), s, a, b, c, scratch, add, epilogue};
    cpu_parallel(kernel->threads, s->m, 12, blocked_part, &job);
}
