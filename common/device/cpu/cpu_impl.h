/* What the CPU device's files share. */
#ifndef COMMON_DEVICE_CPU_CPU_IMPL_H
#define COMMON_DEVICE_CPU_CPU_IMPL_H

#include "common/device/cpu/isa/isa.h"
#include "common/device/host/host.h"

#include <oneapi/dnnl/dnnl.h>

typedef struct cpu_device {
    device base;
    const cpu_isa *isa;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    bool bf16; /* products round their factors: bf16.h */
    host_kernel_entry table[OP_COUNT];
} cpu_device;

/* One entry for every operation: a missing one is a link error. */
#define CPU_ENTRY(name, class) extern const host_kernel_entry cpu_##name;
OP_LIST(CPU_ENTRY)
#undef CPU_ENTRY

static inline cpu_device *cpu_device_of(const host_kernel *kernel)
{
    return (cpu_device *)kernel->base.device;
}

static inline const cpu_isa *cpu_isa_of(const host_kernel *kernel)
{
    return cpu_device_of(kernel)->isa;
}

/* Are a parameter's gradients added to what is there? */
static inline bool cpu_accumulates(const host_kernel *kernel, const op_scalars *scalars)
{
    return kernel->base.op.accumulate || (scalars && scalars->accumulate);
}

/* The rows in use of `all`. */
static inline int64_t cpu_rows_used(int64_t all, const op_scalars *scalars)
{
    return scalars && scalars->rows > 0 ? scalars->rows : all;
}

/* ---- work on several threads ------------------------------------------------------------------ */

/* Part `part` of a job: its items [first, end). */
typedef void (*cpu_part_function)(const void *job, int part, int64_t first, int64_t end);

/* Cuts `count` items into contiguous parts, at most one a thread, at multiples of `grain`, and runs them;
 * with one part it is a plain call. Returns the number of parts, which depends on the arguments alone. */
int cpu_parallel(int threads, int64_t count, int64_t grain, cpu_part_function run, const void *job);

/* Elements of an elementwise operation below which a second thread does not pay. */
enum { CPU_GRAIN = 16384 };

/* A grain of rows of `columns` elements. */
static inline int64_t cpu_row_grain(int64_t columns)
{
    return columns >= CPU_GRAIN ? 1 : CPU_GRAIN / columns;
}

/* ---- sums that every part of a job keeps for itself ------------------------------------------- */

/* [threads][count] doubles. */
static inline size_t cpu_sums_bytes(int threads, int64_t count)
{
    return (size_t)threads * (size_t)count * sizeof(double);
}

/* Adds parts 1.. of sums [parts][count] to part 0, in order. */
void cpu_sums_reduce(double *sums, int parts, int64_t count);

/* gradient [count] = or += sums, rounded once. */
void cpu_sums_store(const double *sums, int64_t count, bool add, float *gradient);

/* sums [columns] = columns of x [rows, columns]; `sums` has cpu_sums_bytes(threads, columns). */
void cpu_column_sums(const host_kernel *kernel, const float *x, int64_t rows, int64_t columns, double *sums);

/* ---- matrix products -------------------------------------------------------------------------- */

/* c [m,n] = (or += where `add`) op(a) op(b), row-major; op(a) is [m,k], op(b) [k,n]; the strides are of the
 * rows as they lie in memory. `scratch` has cpu_gemm_scratch() bytes, which also do for fewer rows m. May be
 * called on a part's thread. */
typedef struct cpu_gemm_shape {
    bool transpose_a, transpose_b;
    int64_t m, n, k, a_stride, b_stride, c_stride;
} cpu_gemm_shape;

size_t cpu_gemm_scratch(const cpu_gemm_shape *shape);
void cpu_gemm(const cpu_isa *isa, const cpu_gemm_shape *shape, const float *a, const float *b, bool add,
              float *c, float *scratch);

/* c = a^T b as the transpose of b^T a, on all threads of the kernel, where oneDNN is so much slower at more rows than
 * columns that this pays. `scratch` has cpu_turned_scratch() bytes, which also do for fewer rows k. */
bool cpu_turned_pays(const cpu_gemm_shape *shape);
size_t cpu_turned_scratch(const cpu_gemm_shape *shape);
void cpu_turned_product(const host_kernel *kernel, const cpu_gemm_shape *shape, const float *a, const float *b,
                        bool add, float *c, float *scratch);

/* What is done to each block of a product, [rows, columns] in c's stride, while it is in the L2 cache. */
typedef struct cpu_finish {
    void (*run)(const void *context, float *c, int64_t rows, int64_t columns);
    const void *context;
} cpu_finish;

/* Products of many rows, on all threads of the kernel, for shapes on which they are faster than cpu_gemm(); a is
 * not transposed. `finish` may be NULL. `scratch` has cpu_blocked_scratch() bytes, which also do for fewer rows m. */
bool cpu_blocked_pays(const host_kernel *kernel, const cpu_gemm_shape *shape);
size_t cpu_blocked_scratch(int threads, const cpu_gemm_shape *shape);
void cpu_blocked_product(const host_kernel *kernel, const cpu_gemm_shape *shape, const float *a, const float *b,
                         bool add, float *c, const cpu_finish *finish, float *scratch);

/* What ends a product: y = act(c + bias), slope = act'(the same). bias [n] and slope [m, n] may be NULL. */
typedef struct cpu_ending {
    activation act;
    const float *bias;
    float *slope;
} cpu_ending;

/* c = a b^T with no fewer rows of b than of a, on all threads of the kernel, where that is faster still. `scratch` has
 * cpu_wide_scratch() bytes, which also do for fewer rows m; 0 where it does not pay for them either. */
bool cpu_wide_pays(const host_kernel *kernel, const cpu_gemm_shape *shape);
size_t cpu_wide_scratch(const host_kernel *kernel, const cpu_gemm_shape *shape);
void cpu_wide_product(const host_kernel *kernel, const cpu_gemm_shape *shape, const float *a, const float *b, bool add,
                      float *c, const cpu_ending *ending, float *scratch);

/* ---- parameter layouts ------------------------------------------------------------------------ */

typedef enum cpu_layout_kind {
    CPU_LAYOUT_PLAIN,
    CPU_LAYOUT_HWIO,    /* convolution weights [r, s, c, k] */
    CPU_LAYOUT_BLOCKED, /* convolution weights [k/b, c/b, r, s, b of c, b of k], b dividing both */
    CPU_LAYOUT_FLAT     /* linear weights [out, h, w, c] behind an image; PyTorch's are [out, c, h, w] */
} cpu_layout_kind;

typedef struct cpu_layout {
    cpu_layout_kind kind;
    int64_t k, c, r, s, block; /* FLAT: out, c, h, w */
} cpu_layout;

/* What choose_layout wrote; CPU_LAYOUT_PLAIN for NULL. */
cpu_layout cpu_layout_of(const device_layout *layout);

status cpu_choose_layout(device *d, const op_desc *op, int slot, shape parameter, device_layout *out);
status cpu_layout_pack(device *d, const device_layout *layout, const void *plain, void *packed);
status cpu_layout_unpack(device *d, const device_layout *layout, const void *packed, void *plain);

#endif
