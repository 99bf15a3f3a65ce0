/* Times collectives as nccl-tests does, with the same columns and definitions of bandwidth (nccl-tests,
 * doc/PERFORMANCE.md). Algorithm bandwidth is bytes / time. Bus bandwidth is algorithm bandwidth times a
 * factor that depends on the operation. For any number of ranks, bus bandwidth can be compared with the
 * bandwidth of the hardware.
 *
 * A time is measured from a barrier to the end of the slowest rank. Operands have exact sums, so that results
 * can be checked bit for bit. */
#ifndef RING_BENCH_BENCH_H
#define RING_BENCH_BENCH_H

#include "common/base/options.h"
#include "common/collectives/collective.h"
#include "common/collectives/tuning.h"
#include "common/net/status_table.h"

#include <jansson.h>

typedef struct ring_bench_options {
    const char *collectives; /* Libraries, for example "shm,mpi". */
    const char *algorithms;  /* Algorithms, for example "ring,two-shot". */
    const char *table;       /* File of --algorithm tuned, or NULL. */
    const char *operations;  /* Operations, for example "all_reduce". */
    int64_t begin, end;      /* Smallest and largest size in bytes. */
    int64_t factor;
    /* Number of measured calls per size. 0 means that bench chooses a number for each size. */
    int64_t iterations;
    /* Number of calls before the measured calls, or -1 for a fifth of the number of measured calls. */
    int64_t warmups;
    int type, op; /* Indices into the choices of --type and --op (bench.c). */
    int64_t root;
    bool check;
    const char *link; /* Emulated link between the ranks, for example "1Gbit/s,50us", or NULL. */
} ring_bench_options;

extern const option_table ring_bench_option_table;

/* The arguments of ring_bench() on one rank. All ranks call ring_bench() at about the same time. */
typedef struct ring_bench_config {
    int rank, world;
    uint64_t job_token;
    int64_t timeout_ns; /* Time limit of connecting, and of each call. */
    const ring_bench_options *options;
    const status_table *table; /* The benchmark ends if this table has a stop request. May be NULL. */
} ring_bench_config;

/* Times of one algorithm, operation and size, out of place or in place. */
typedef struct ring_bench_times {
    bool run; /* False if the operation has no in-place form (all_to_all). */
    int iterations;
    double median_us, mean_us, best_us, p90_us, p99_us, worst_us;
    double algorithm_gbs, bus_gbs; /* Bandwidths in 1e9 bytes per second, computed from the median time. */
    /* Number of wrong elements on all ranks, or -1 if results were not checked. */
    int64_t wrong;
} ring_bench_times;

typedef struct ring_bench_row {
    const char *collective, *algorithm;
    collective_kind kind;
    dtype type;
    reduce_op op;
    int root, ranks;
    int64_t bytes, count;
    ring_bench_times out_of_place, in_place;
} ring_bench_row;

typedef void (*ring_bench_sink)(void *context, const ring_bench_row *row);

/* Fails with STATUS_USAGE if the options make no sense with `world` ranks. A launcher calls this function
 * before starting the ranks. */
status ring_bench_check(const ring_bench_options *options, int world);

/* Runs the benchmark. `sink` is called on rank 0, once per row. Fails with STATUS_USAGE as ring_bench_check()
 * does, and with STATUS_STOPPED after a stop request, on all ranks after the same call. */
status ring_bench(const ring_bench_config *config, ring_bench_sink sink, void *context);

/* These functions write a report, which has a header of '#' lines, one line per row, and a footer with the
 * average. A line has at most 80 columns. `before` is the previous row, or NULL for the first row. Column
 * heads precede a row if it differs from the previous row in the library, the algorithm, the operation, the
 * type or the root. */
void ring_bench_header(const ring_bench_config *config, text_buffer *out);
void ring_bench_line(const ring_bench_row *row, const ring_bench_row *before, text_buffer *out);
void ring_bench_footer(const ring_bench_row *rows, int count, text_buffer *out);

/* Returns a new JSON object that describes a row, or NULL if there is no memory. */
json_t *ring_bench_json(const ring_bench_row *row);

/* Measures two-shot and ring for 2, 4, ... and `world` ranks at several sizes. Makes a table that names the
 * faster algorithm for each case. All ranks call this function, and rank 0 gets the table. Fails with
 * STATUS_STOPPED as ring_bench() does; the table then has the rows of the numbers of ranks that are finished.
 */
status ring_bench_tune(const ring_bench_config *config, collective_tuning *out);

#endif
