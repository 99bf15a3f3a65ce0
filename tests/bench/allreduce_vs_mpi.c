/* Compares our all-reduce (sum of float32, in place) with Open MPI's. Both alternate in the same processes,
 * so that other load on the machine affects both. Compare only the ratio.
 *
 *   mpirun -np 4 allreduce_vs_mpi [bytes ...]     allreduce_vs_mpi.py runs this command
 *
 * A call is timed from a barrier to its end on the slowest rank. Each line of output gives the medians in us,
 * and how many times faster than MPI_Allreduce each implementation is. Every result is checked. */
#include "common/base/clock.h"
#include "common/collectives/collective.h"
#include "common/net/shm.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SYSTEMS = 3, TURNS = 5, MOST_TIMES = 4096, MOST_BYTES = 100 << 20 };
static const char *const names[SYSTEMS] = {"MPI", "two-shot", "ring"};
static const collective_algorithm algorithms[SYSTEMS] = {
    COLLECTIVE_ALGORITHM_LIBRARY, COLLECTIVE_ALGORITHM_TWO_SHOT, COLLECTIVE_ALGORITHM_RING};

typedef struct bench {
    int rank, ranks;
    float *private; /* MPI's operand */
    shm_segment window;
    collective_world *worlds[SYSTEMS];
    collective_group *groups[SYSTEMS];
    double times[SYSTEMS][MOST_TIMES];
    int count[SYSTEMS];
} bench;

static void stop(const char *what)
{
    fprintf(stderr, "allreduce_vs_mpi: %s: %s\n", what, error_message());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void open_collectives(bench *b, int64_t most_bytes)
{
    uint64_t token = (uint64_t)clock_now_ns() ^ (uint64_t)getpid() << 32;
    int all[64];
    MPI_Bcast(&token, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    if (shm_create("bench", most_bytes, &b->window) != STATUS_OK) stop("window");
    collective_window window = {b->window.data, b->window.bytes, b->window.fd};
    for (int r = 0; r < b->ranks; r++) all[r] = r;
    for (int s = 1; s < SYSTEMS; s++) {
        collective_config config = {.rank = b->rank,
                                    .world = b->ranks,
                                    .job_token = token,
                                    .name = names[s],
                                    .windows = &window,
                                    .window_count = 1,
                                    .algorithm = algorithms[s],
                                    .stall_timeout_ns = 60 * NS_PER_S,
                                    .connect_timeout_ns = 60 * NS_PER_S};
        if (collective_open("shm", &config, &b->worlds[s]) != STATUS_OK ||
            collective_group_open(b->worlds[s], "all", all, b->ranks, &b->groups[s]) != STATUS_OK)
            stop(names[s]);
    }
}

static double run_once(bench *b, int system, int64_t count)
{
    float *x = system == 0 ? b->private : b->window.data;
    for (int64_t i = 0; i < count; i++) x[i] = (float)(b->rank + 1);
    collective_buffer buffer = {.base = x};
    collective_call call = {.kind = COLLECTIVE_ALL_REDUCE,
                            .op = REDUCE_SUM,
                            .type = DTYPE_F32,
                            .count = count,
                            .in = buffer,
                            .out = buffer};
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    if (system == 0)
        MPI_Allreduce(MPI_IN_PLACE, x, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (collective_run(b->groups[system], &call) != STATUS_OK)
        stop(names[system]);
    double spent = MPI_Wtime() - begin, slowest;
    /* Collects the times before any rank checks its result. A rank that checks would keep the processor from
     * a rank that has not yet seen the end of the call. */
    MPI_Allreduce(&spent, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    float right = (float)(b->ranks * (b->ranks + 1) / 2);
    for (int64_t i = 0; i < count; i++) {
        if (x[i] == right) continue;
        fprintf(stderr, "%s: element %lld is %g, expected %g\n", names[system], (long long)i, (double)x[i],
                (double)right);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return slowest;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, by_value);
    return times[count / 2];
}

static void run_size(bench *b, int64_t bytes)
{
    int each = bytes <= 1 << 16 ? 200 : bytes <= 1 << 20 ? 50 : bytes <= 25 << 20 ? 5 : 3;
    double mid[SYSTEMS];
    memset(b->count, 0, sizeof b->count);
    for (int turn = 0; turn < TURNS; turn++)
        for (int s = 0; s < SYSTEMS; s++)
            for (int i = -each / 5 - 1; i < each; i++) {
                double t = run_once(b, s, bytes / 4);
                if (i >= 0) b->times[s][b->count[s]++] = t;
            }
    for (int s = 0; s < SYSTEMS; s++) mid[s] = median(b->times[s], b->count[s]);
    if (b->rank != 0) return;
    printf("%5d %10lld", b->ranks, (long long)bytes);
    for (int s = 0; s < SYSTEMS; s++) printf(" %10.1f", mid[s] * 1e6);
    for (int s = 1; s < SYSTEMS; s++) printf(" %7.2fx", mid[0] / mid[s]);
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const int64_t sizes[] = {4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20};
    static bench b;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &b.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &b.ranks);
    b.private = malloc(MOST_BYTES);
    if (!b.private) stop("memory");
    open_collectives(&b, MOST_BYTES);
    if (b.rank == 0) printf("#ranks      bytes   MPI (us)   two-shot       ring two-shot  ring\n");
    for (size_t i = 0; argc == 1 && i < sizeof sizes / sizeof sizes[0]; i++) run_size(&b, sizes[i]);
    for (int i = 1; i < argc; i++) run_size(&b, strtoll(argv[i], NULL, 10));
    for (int s = 1; s < SYSTEMS; s++) {
        collective_group_close(&b.groups[s]);
        collective_close(&b.worlds[s]);
    }
    shm_close(&b.window);
    free(b.private);
    MPI_Finalize();
    return 0;
}
