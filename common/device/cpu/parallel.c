#include "common/device/cpu/kernel.h"

#include <omp.h>

/* OpenMP's library is not instrumented for ThreadSanitizer. publish() and observe() tell ThreadSanitizer that
 * a parallel region begins after the preceding code has ended, and ends before the following code begins. The
 * suppression makes ThreadSanitizer ignore calls from oneDNN. */
#if defined(__SANITIZE_THREAD__)
void __tsan_acquire(void *address);
void __tsan_release(void *address);
const char *__tsan_default_suppressions(void)
    __attribute__((no_instrument_function)); /* called before the sanitizer is ready */

const char *__tsan_default_suppressions(void)
{
    return "called_from_lib:libdnnl\n";
}
#endif

typedef struct parallel_job {
    int parts;
    int64_t count, grain, blocks;
    cpu_part_function run;
    const void *job;
} parallel_job;

/* Make the writes before publish() visible after observe(). */
static void publish(parallel_job *j)
{
#if defined(__SANITIZE_THREAD__)
    __tsan_release(j);
#endif
}

static void observe(parallel_job *j)
{
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(j);
#endif
}

static int64_t boundary(const parallel_job *j, int part)
{
    int64_t at = j->blocks * part / j->parts * j->grain;
    return at < j->count ? at : j->count;
}

static void run_thread(parallel_job *j)
{
    observe(j);
    int threads = omp_get_num_threads();
    for (int part = omp_get_thread_num(); part < j->parts; part += threads)
        j->run(j->job, part, boundary(j, part), boundary(j, part + 1));
    publish(j);
}

/* Excluded from ThreadSanitizer, because the compiler copies variables for the threads outside of
 * publish() and observe(). */
__attribute__((no_sanitize("thread"))) static void run_threads(parallel_job *j)
{
#pragma omp parallel num_threads(j->parts)
    run_thread(j);
}

int cpu_parallel(int threads, int64_t count, int64_t grain, cpu_part_function run, const void *job)
{
    int64_t blocks = (count + grain - 1) / grain;
    parallel_job j = {blocks < threads ? (int)blocks : threads, count, grain, blocks, run, job};
    if (j.parts <= 1) {
        run(job, 0, 0, count);
        return 1;
    }
    publish(&j);
    run_threads(&j);
    observe(&j);
    return j.parts;
}

typedef struct pieces_job {
    piece_list list;
    cpu_piece_function run;
    const void *job;
} pieces_job;

static void run_part(const void *context, int part, int64_t first, int64_t end)
{
    const pieces_job *all = context;
    int64_t position = 0;
    for (int i = 0; i < all->list.count && position < end; i++) {
        piece p = all->list.pieces[i];
        int64_t begin = first > position ? first - position : 0;
        int64_t until = end - position < p.count ? end - position : p.count;
        if (begin < until) all->run(all->job, part, p.offset + begin, until - begin);
        position += p.count;
    }
}

int cpu_parallel_pieces(const host_call *call, cpu_piece_function run, const void *job)
{
    pieces_job all = {{call->scalars->pieces, call->scalars->piece_count}, run, job};
    return cpu_parallel(call->kernel->threads, piece_list_elements(all.list), CPU_GRAIN, run_part, &all);
}

/* ---- sums ------------------------------------------------------------------------------------- */

void cpu_sums_reduce(double *sums, int parts, int64_t count)
{
    for (int part = 1; part < parts; part++)
        for (int64_t i = 0; i < count; i++) sums[i] += sums[part * count + i];
}

void cpu_sums_store(const double *sums, int64_t count, bool add, float *gradient)
{
    for (int64_t i = 0; i < count; i++) gradient[i] = (float)(add ? gradient[i] + sums[i] : sums[i]);
}

typedef struct column_job {
    const cpu_isa *isa;
    const float *x;
    int64_t columns;
    double *sums;
} column_job;

static void column_part(const void *context, int part, int64_t first, int64_t end)
{
    const column_job *job = context;
    double *sums = job->sums + part * job->columns;
    for (int64_t i = 0; i < job->columns; i++) sums[i] = 0;
    job->isa->elementwise->column_sums(job->x + first * job->columns, job->columns, end - first, job->columns,
                                       sums);
}

void cpu_column_sums(const host_kernel *kernel, const float *x, int64_t rows, int64_t columns, double *sums)
{
    column_job job = {cpu_isa_of(kernel), x, columns, sums};
    int parts = cpu_parallel(kernel->threads, rows, cpu_row_grain(columns), column_part, &job);
    cpu_sums_reduce(sums, parts, columns);
}
