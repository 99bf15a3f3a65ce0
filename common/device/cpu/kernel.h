/* The CPU device, and what its kernels share: threads, and sums in double precision.
 *
 * The files in the order in which a training step uses them:
 *   cpu.c                     opens the device, picks the instruction set, holds the table of kernels
 *   conv2d_cpu.c              convolutions: picks one of conv2d_{gemm,per_pixel,winograd,direct}_cpu.c
 *   batchnorm_cpu.c, activation_cpu.c, pool_cpu.c, embedding_cpu.c, layernorm_cpu.c, attention_cpu.c
 *   linear_cpu.c              fully connected layers
 *   gemm_cpu.c                matrix multiplication for all of these
 *   loss_cpu.c, optimizer_cpu.c
 *   parallel.c                cuts the work of a kernel into parts for OpenMP's threads
 *   onednn.c                  oneDNN's C interface with our errors
 *   isa/                      the arithmetic: functions over ranges of memory, without threads, compiled once
 * for each instruction set (isa/isa.h) */
#ifndef COMMON_DEVICE_CPU_KERNEL_H
#define COMMON_DEVICE_CPU_KERNEL_H

#include "common/device/cpu/isa/isa.h"
#include "common/device/host/host.h"
#include "common/memory/piece.h"

#include <oneapi/dnnl/dnnl.h>

typedef struct cpu_device {
    device base;
    const cpu_isa *isa;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    bool bf16; /* --bf16: gemm.h */
} cpu_device;

static inline cpu_device *cpu_device_of(const host_kernel *kernel)
{
    return (cpu_device *)kernel->base.device;
}

static inline const cpu_isa *cpu_isa_of(const host_kernel *kernel)
{
    return cpu_device_of(kernel)->isa;
}

/* The kernels for AVX2, whose products and convolutions need other choices than those for AVX-512. */
static inline bool cpu_is_avx2(const cpu_isa *isa)
{
    return isa->vector_floats == 8;
}

/* Element `offset` of an operand. */
static inline float *cpu_at(const host_call *call, int slot, int64_t offset)
{
    return (float *)call->operands[slot] + offset;
}

/* ---- threads ---------------------------------------------------------------------------------- */

/* Part `part` of a job: its items [first, end). */
typedef void (*cpu_part_function)(const void *job, int part, int64_t first, int64_t end);

/* Cuts `count` items into contiguous parts, at most one per thread, at multiples of `grain`, and runs them; a
 * single part is a plain call. Returns the number of parts, which depends only on the arguments. */
int cpu_parallel(int threads, int64_t count, int64_t grain, cpu_part_function run, const void *job);

/* Below this many elements a second thread does not pay. */
enum { CPU_GRAIN = 16384 };

/* The grain of rows with `columns` elements. */
static inline int64_t cpu_row_grain(int64_t columns)
{
    return columns >= CPU_GRAIN ? 1 : CPU_GRAIN / columns;
}

/* `count` elements of the arena from `offset`; all calls for one part come from one thread. */
typedef void (*cpu_piece_function)(const void *job, int part, int64_t offset, int64_t count);

/* The same over the pieces of an arena that a launch names. */
int cpu_parallel_pieces(const host_call *call, cpu_piece_function run, const void *job);

/* ---- sums in double precision, one array for each part of a job ---------------------------------- */

/* [threads][count] doubles. */
static inline size_t cpu_sums_bytes(int threads, int64_t count)
{
    return (size_t)threads * (size_t)count * sizeof(double);
}

/* Adds the other parts of sums [parts][count] to part 0, in order. */
void cpu_sums_reduce(double *sums, int parts, int64_t count);

/* gradient [count] = or += sums, rounded once. */
void cpu_sums_store(const double *sums, int64_t count, bool add, float *gradient);

/* sums [columns] = columns of x [rows, columns]; `sums` has cpu_sums_bytes(threads, columns). */
void cpu_column_sums(const host_kernel *kernel, const float *x, int64_t rows, int64_t columns, double *sums);

#endif
