/* Products c = a b^T where b, mostly weights, has at least as many rows as a, by the kernels of isa/gemm.c and as
 * their transpose, c^T = b a^T: b is read once, where it lies and ahead of its use, and only a is packed. A block of
 * c^T stays in the L2 cache until its sums are whole; then it is transposed into c, with
 * bias and activation. An element of c is the same sum in the same order however b's rows are shared among threads. */
#include "common/device/cpu/gemm_wide.h"

#include "common/device/cpu/parallel.h"

enum { DEPTH = 256, ROWS = 192, COLUMNS = 512, PADDING = 16 };

/* Bounds found by measurement: docs/kernels-cpu.md. */
enum { ENOUGH_ROWS = 128, ENOUGH_COLUMNS = 256, ENOUGH_DEPTH = 128, LARGE_RESULT = 1 << 23 /* no cache keeps it */ };

bool cpu_wide_pays(const host_kernel *kernel, const cpu_gemm_shape *s)
{
    return cpu_isa_of(kernel)->gemm->many_registers && s->transpose_b && !s->transpose_a && s->n >= s->m &&
           s->m >= ENOUGH_ROWS && s->m <= COLUMNS && s->n >= ENOUGH_COLUMNS && s->k >= ENOUGH_DEPTH;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t count, int64_t unit)
{
    return (count + unit - 1) / unit * unit;
}

/* Rows of a thread's block of c^T end with a line of padding, lest those of equal place push each other out of the
 * cache. */
static int64_t block_stride(const cpu_gemm_shape *s)
{
    return round_up(s->m, 64) + PADDING;
}

size_t cpu_wide_scratch(const host_kernel *kernel, const cpu_gemm_shape *s)
{
    cpu_gemm_shape most = *s;
    most.m = smaller(s->m, smaller(s->n, COLUMNS));
    if (!cpu_wide_pays(kernel, &most)) return 0;
    int64_t packed = round_up(most.m, 64) * s->k, block = ROWS * block_stride(&most);
    return (size_t)(packed + kernel->threads * block) * sizeof(float);
}

typedef struct wide_job {
    const cpu_isa *isa;
    const cpu_gemm_shape *shape;
    const float *a, *b;
    float *c, *packed, *blocks;
    bool add;
    const cpu_epilogue *epilogue;
    int64_t depth;
} wide_job;

/* Where a's columns from p on, of its rows from j on, are packed. Those of equal depth lie together. */
static float *packed_at(const wide_job *job, int64_t j, int64_t p)
{
    const cpu_gemm_shape *s = job->shape;
    int64_t width = round_up(s->m, job->isa->gemm->tile_columns);
    return job->packed + p * width + j * smaller(job->depth, s->k - p);
}

/* Strips [first, end) of a's rows. */
static void pack_part(const void *context, int part, int64_t first, int64_t end)
{
    (void)part;
    const wide_job *job = context;
    const cpu_gemm_shape *s = job->shape;
    for (int64_t p = 0; p < s->k; p += job->depth)
        job->isa->gemm->pack(job->a + first * s->a_stride + p, s->a_stride, true, end - first,
                             smaller(job->depth, s->k - p), packed_at(job, first, p));
}

/* c's columns [i, i + rows) from a block of c^T. */
static void turn_block(const wide_job *job, const float *block, int64_t i, int64_t rows)
{
    const cpu_gemm_shape *s = job->shape;
    const cpu_epilogue none = {.act = ACTIVATION_NONE}, *end = job->epilogue ? job->epilogue : &none;
    cpu_gemm_turn turn = {.rows = rows,
                          .columns = s->m,
                          .x_stride = block_stride(s),
                          .c_stride = s->c_stride,
                          .x = block,
                          .bias = end->bias ? end->bias + i : NULL,
                          .c = job->c + i,
                          .slope = end->slope ? end->slope + i : NULL,
                          .add = job->add,
                          .past = s->m * s->n >= LARGE_RESULT};
    job->isa->turns->turn[end->act](&turn);
}

/* Rows [i, i + rows) of b with all of a; `next` rows of b follow, or none. */
static void multiply_block(const wide_job *job, float *c, int64_t i, int64_t rows, int64_t next)
{
    const cpu_gemm_shape *s = job->shape;
    for (int64_t p = 0; p < s->k; p += job->depth) {
        int64_t k = smaller(job->depth, s->k - p);
        bool last = p + k == s->k;
        int64_t row = last ? i + rows : i, column = last ? 0 : p + k;
        cpu_gemm_block block = {.m = rows,
                                .n = s->m,
                                .k = k,
                                .a = job->b + i * s->b_stride + p,
                                .b = packed_at(job, 0, p),
                                .c = c,
                                .a_stride = s->b_stride,
                                .c_stride = block_stride(s),
                                .add = p > 0,
                                .next = job->b + row * s->b_stride + column,
                                .next_rows = last ? next : rows,
                                .next_columns = smaller(job->depth, s->k - column),
                                .next_stride = s->b_stride};
        job->isa->gemm->multiply(&block);
    }
    turn_block(job, c, i, rows);
}

/* Rows [first, end) of b. */
static void wide_part(const void *context, int part, int64_t first, int64_t end)
{
    const wide_job *job = context;
    float *c = job->blocks + part * ROWS * block_stride(job->shape);
    for (int64_t i = first; i < end; i += ROWS) {
        int64_t rows = smaller(ROWS, end - i);
        multiply_block(job, c, i, rows, smaller(ROWS, end - i - rows));
    }
}

void cpu_wide_product(const host_kernel *kernel, const cpu_gemm_shape *s, const float *a, const float *b, bool add,
                      float *c, const cpu_epilogue *epilogue, float *scratch)
{
    int64_t blocks = (s->k + DEPTH - 1) / DEPTH, width = round_up(s->m, 64);
    wide_job job = {cpu_isa_of(kernel), s, a, b, c, scratch, scratch + width * s->k, add, epilogue,
                    round_up((s->k + blocks - 1) / blocks, 16)};
    cpu_parallel(kernel->threads, s->m, job.isa->gemm->tile_columns, pack_part, &job);
    cpu_parallel(kernel->threads, s->n, 16, wide_part, &job);
}
