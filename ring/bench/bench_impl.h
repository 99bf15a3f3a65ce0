/* Internals of the benchmark. Only files in ring/bench include this header. */
#ifndef RING_BENCH_BENCH_IMPL_H
#define RING_BENCH_BENCH_IMPL_H

#include "common/net/shm.h"
#include "ring/bench/bench.h"

enum { BENCH_MOST_SYSTEMS = 6, BENCH_MOST_ITERATIONS = 2000, BENCH_TURNS = 4 };

/* One measurement: one operation at one size. */
typedef struct bench_case {
    collective_kind kind;
    dtype type;
    reduce_op op;
    int root;
    int64_t count;
    bool in_place;
} bench_case;

/* A library with one of its algorithms. The benchmark compares systems. */
typedef struct bench_system {
    const char *library;
    collective_algorithm algorithm;
} bench_system;

/* The worlds that a rank has opened. All worlds use the same memory, which contains two buffers of the
 * largest size. */
typedef struct bench_rank {
    const ring_bench_config *config;
    shm_segment memory;
    int64_t half_bytes;
    bench_system systems[BENCH_MOST_SYSTEMS];
    collective_tuning tuning;
    collective_world *worlds[BENCH_MOST_SYSTEMS];
    collective_group *groups[BENCH_MOST_SYSTEMS];
    int count;
    double *times; /* [BENCH_MOST_ITERATIONS] */
} bench_rank;

/* Lists the systems that the options name. `out` has room for BENCH_MOST_SYSTEMS systems. */
status bench_parse_systems(const ring_bench_options *o, bench_system *out, int *count);

status bench_rank_open(const ring_bench_config *config, const bench_system *systems, int count,
                       int64_t most_bytes, bench_rank *out);
void bench_rank_close(bench_rank *b);

/* Returns a call whose buffers are this rank's buffers in `b->memory`. */
collective_call bench_call(const bench_rank *b, const bench_case *c, int rank, int ranks);
/* bench_fill() writes the operands. bench_count_wrong() counts wrong elements of the results. */
void bench_fill(const bench_rank *b, const bench_case *c, int rank, int ranks);
int64_t bench_count_wrong(const bench_rank *b, const bench_case *c, int rank, int ranks);

/* Returns STATUS_STOPPED on all ranks of the group if one of them knows of a stop request. */
status bench_agree_to_go_on(const bench_rank *b, collective_group *group);
/* Runs `iterations` calls on a group. Appends the time of each call on the slowest rank, in us, to the *used
 * elements of `times`. */
status bench_time(const bench_rank *b, collective_group *group, const bench_case *c, int iterations,
                  double *times, int *used);
status bench_check(const bench_rank *b, collective_group *group, const bench_case *c, int64_t *wrong);

#endif
