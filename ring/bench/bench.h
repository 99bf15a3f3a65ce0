/* Times collectives the way nccl-tests does, with its columns and its definitions of bandwidth
 * (nccl-tests, doc/PERFORMANCE.md): algorithm bandwidth = bytes / time; bus bandwidth = algorithm bandwidth
 * times a factor of the operation, so that it can be compared with the hardware's whatever the number of
 * ranks. A time is from a barrier to the end of the slowest rank; results are checked bit for bit with
 * operands whose sums are exact. */
#ifndef RING_BENCH_BENCH_H
#define RING_BENCH_BENCH_H

#include "common/base/options.h"
#include "common/collectives/collective.h"
#include "common/collectives/tuning.h"

#include <jansson.h>

typedef struct ring_bench_options {
    const char *collectives; /* "shm,mpi": libraries */
    const char *algorithms;  /* "ring,two-shot": of each library those that it has, measured in turn */
    const char *table;       /* of tuned, or NULL */
    const char *operations;  /* "all_reduce" */
    int64_t begin, end;      /* bytes */
    int64_t factor;          /* from one size to the next */
    int64_t iterations;      /* 0: by size */
    int64_t warmups;         /* before them; -1: a fifth of them */
    int type, op;            /* choices: see ring_bench_type() */
    int64_t root;
    bool check;
    const char *link; /* "1Gbit/s,50us": an emulated one between the ranks; NULL: none */
} ring_bench_options;

extern const option_table ring_bench_option_table;

/* One rank's part; all ranks call ring_bench() at about the same time. */
typedef struct ring_bench_config {
    int rank, world;
    uint64_t job_token;
    int64_t timeout_ns; /* to connect, and of a call */
    const ring_bench_options *options;
} ring_bench_config;

/* Of one algorithm, operation and size, out of place or in place; in microseconds. */
typedef struct ring_bench_times {
    bool run; /* false: there is no such form (all_to_all in place) */
    int iterations;
    double median_us, mean_us, best_us, p90_us, p99_us, worst_us;
    double algorithm_gbs, bus_gbs; /* of the median; 1e9 bytes per second */
    int64_t wrong;                 /* elements, over all ranks; -1: not checked */
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

/* STATUS_USAGE for options that make no sense with `world` ranks. A launcher calls it before it starts the
 * ranks. */
status ring_bench_check(const ring_bench_options *options, int world);

/* `sink` is called on rank 0, row by row. STATUS_USAGE as ring_bench_check(). */
status ring_bench(const ring_bench_config *config, ring_bench_sink sink, void *context);

/* The report as text of at most 80 columns: header with '#' lines; one line per row, of at most 80 columns,
 * after the heads of its group where `before`, the row before it or NULL, is of another; a closing line with
 * the average. */
void ring_bench_header(const ring_bench_config *config, text_buffer *out);
void ring_bench_line(const ring_bench_row *row, const ring_bench_row *before, text_buffer *out);
void ring_bench_footer(const ring_bench_row *rows, int count, text_buffer *out);

/* One object per row: new reference, NULL without memory. */
json_t *ring_bench_json(const ring_bench_row *row);

/* Measures two-shot and ring for 2, 4, ... and `world` ranks at several sizes and makes a table of the faster
 * ones. All ranks call it; the table is rank 0's. */
status ring_bench_tune(const ring_bench_config *config, collective_tuning *out);

#endif
