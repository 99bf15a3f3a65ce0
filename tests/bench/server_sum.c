/* bench_server_sum [MiB]: measures how fast a parameter server adds gradients with its threads and kernels.
 * The gradients of n ranks lie in memory that no cache holds. They are added by 1 thread, and then by as many
 * threads as there are processors. For each byte of the result, n + 1 bytes count, as in sim_price_sum(). The
 * rate per thread follows from the processor time of the process. The total rate follows from the wall clock,
 * so it needs a quiet machine. Prints the best of all repetitions. */
#include "common/base/clock.h"
#include "common/reduce/reduce.h"
#include "common/sync/average.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RANKS = 8, REPEATS = 7 };

typedef struct job {
    float *out, *in[MOST_RANKS];
    int ranks;
} job;

static status sum_range(void *context, int thread, int first, piece_list ranges)
{
    const job *j = context;
    const void *ins[MOST_RANKS];
    piece range = ranges.pieces[0];
    (void)thread, (void)first;
    for (int r = 0; r < j->ranks; r++) ins[r] = j->in[r] + range.offset;
    reduce_average(DTYPE_F32, j->out + range.offset, ins, j->ranks, range.count, 1, j->ranks);
    return STATUS_OK;
}

static int64_t process_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

static status measure(job *j, int ranks, int threads, int64_t count)
{
    piece whole = {0, count};
    double bytes = 4.0 * (double)count * (ranks + 1), each = 0, total = 0;
    j->ranks = ranks;
    for (int i = 0; i < REPEATS; i++) {
        int64_t cpu = process_ns(), wall = clock_now_ns();
        status rc =
            sync_run_ranges(&(sync_staging){.on_host = true}, threads, (piece_list){&whole, 1}, sum_range, j);
        cpu = process_ns() - cpu;
        wall = clock_now_ns() - wall;
        if (rc != STATUS_OK) return rc;
        if (bytes / (double)cpu > each) each = bytes / (double)cpu;
        if (bytes / (double)wall > total) total = bytes / (double)wall;
    }
    printf("%8d %8d %16.2f %16.2f\n", ranks, threads, each, total);
    return STATUS_OK;
}

int main(int argc, char **argv)
{
    job j = {0};
    int64_t count = (argc > 1 ? atoll(argv[1]) : 100) << 18;
    int processors = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (count <= 0) return fprintf(stderr, "usage: bench_server_sum [MiB]\n"), 64;
    for (int i = 0; i <= MOST_RANKS; i++) {
        float **memory = i < MOST_RANKS ? &j.in[i] : &j.out;
        if (!(*memory = malloc((size_t)count * sizeof **memory))) return fprintf(stderr, "no memory\n"), 70;
        memset(*memory, i, (size_t)count * sizeof **memory);
    }
    printf("%s, %lld MiB per rank\n%8s %8s %16s %16s\n", reduce_instruction_set(), (long long)count >> 18,
           "ranks", "threads", "GB/s per thread", "GB/s total");
    for (int ranks = 2; ranks <= MOST_RANKS; ranks *= 2)
        for (int threads = 1; threads <= processors; threads *= 2)
            if (measure(&j, ranks, threads, count) != STATUS_OK) return 70;
    printf("a single measurement\n");
    return 0;
}
