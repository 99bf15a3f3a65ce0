/* Declares the struct of the CPU device, and the functions that its kernels share: functions that run work on
 * several threads, and sums in double precision.
 *
 * The files in the order in which a training step uses them:
 *
 *   cpu.c                     opens the device, picks the instruction set, holds the table of kernels
 *   conv2d_cpu.c              convolutions: picks one of conv2d_{gemm,per_pixel,winograd,direct}_cpu.c
 *   batchnorm_cpu.c, activation_cpu.c, pool_cpu.c, embedding_cpu.c, layernorm_cpu.c, attention_cpu.c
 *   linear_cpu.c              fully connected layers
 *   gemm_cpu.c                matrix multiplication for all files above
 *   loss_cpu.c, optimizer_cpu.c
 *   parallel.c                splits the work of a kernel among OpenMP's threads
 *   onednn.c                  oneDNN's C interface with this project's error codes
 *   isa/                      arithmetic without threads, compiled for each instruction set (isa/isa.h) */
#ifndef COMMON_DEVICE_CPU_KERNEL_H
#define COMMON_DEVICE_CPU_KERNEL_H

#include "common/device/cpu/isa/isa.h"
#include "common/device/cpu/parallel.h"
#include "common/device/host/host.h"
#include "common/memory/piece.h"

#include <oneapi/dnnl/dnnl.h>

typedef struct cpu_device {
    device base;
    const cpu_isa *isa;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    bool bf16; /* --bf16 is set (gemm.h) */
} cpu_device;

static inline cpu_device *cpu_device_of(const host_kernel *kernel)
{
    return (cpu_device *)kernel->base.device;
}

static inline const cpu_isa *cpu_isa_of(const host_kernel *kernel)
{
    return cpu_device_of(kernel)->isa;
}

/* Returns true if the kernels are for AVX2. Matrix multiplications and convolutions choose different
 * algorithms for AVX2 and for AVX-512. */
static inline bool cpu_is_avx2(const cpu_isa *isa)
{
    return isa->vector_floats == 8;
}

static inline float *cpu_at(const host_call *call, int slot, int64_t offset)
{
    return (float *)call->operands[slot] + offset;
}

/* ---- threads ---------------------------------------------------------------------------------- */

/* Number of elements below which a second thread costs more time than it saves. */
enum { CPU_GRAIN = 16384 };

static inline int64_t cpu_row_grain(int64_t columns)
{
    return columns >= CPU_GRAIN ? 1 : CPU_GRAIN / columns;
}

/* Processes `count` elements of the arena from `offset` on. One thread makes all calls for one part. */
typedef void (*cpu_piece_function)(const void *job, int part, int64_t offset, int64_t count);

/* Splits the launch's list of pieces into parts, and runs the parts. Returns the number of parts. */
int cpu_parallel_pieces(const host_call *call, cpu_piece_function run, const void *job);

/* ---- sums in double precision, one array per part of a job --------------------------------------- */

/* Returns the bytes of sums [threads][count]. */
static inline size_t cpu_sums_bytes(int threads, int64_t count)
{
    return (size_t)threads * (size_t)count * sizeof(double);
}

/* Adds parts 1, 2, ... of sums [parts][count] to part 0, in this order. */
void cpu_sums_reduce(double *sums, int parts, int64_t count);

/* Stores `sums` in `gradient` [count], or adds `sums` to `gradient` if `add`. Each result is rounded once. */
void cpu_sums_store(const double *sums, int64_t count, bool add, float *gradient);

/* Computes the column sums of x [rows, columns]. `sums` has cpu_sums_bytes(threads, columns) bytes. */
void cpu_column_sums(const host_kernel *kernel, const float *x, int64_t rows, int64_t columns, double *sums);

#endif
