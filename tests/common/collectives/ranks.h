/* Ranks as threads of the test's process. A rank reports errors through its status: cmocka's assertions
 * belong to the main thread. */
#ifndef TESTS_COMMON_COLLECTIVES_RANKS_H
#define TESTS_COMMON_COLLECTIVES_RANKS_H

#include "common/base/status.h"
#include "common/collectives/collective.h"

enum { RANKS_MAX = 16 };

typedef struct rank_context {
    int rank, world;
    uint64_t token; /* of this run of ranks */
    const void *shared;
    error_record error; /* out */
} rank_context;

typedef status (*rank_function)(rank_context *context);

/* Runs `function` as ranks 0 .. world - 1; results[rank].error says how each ended. */
void ranks_run(int world, rank_function function, const void *shared, rank_context *results);

/* The same; the test fails with the first error of a rank. */
void ranks_run_well(int world, rank_function function, const void *shared);

/* A world in shared memory with the algorithm of that name. */
status ranks_open_world(const char *algorithm, const collective_config *config, collective_world **out);

/* The same with a stall timeout of 20 s and the windows given. */
status ranks_open(const rank_context *context, const char *algorithm, const collective_window *windows,
                  int window_count, collective_world **out);
collective_config ranks_config(const rank_context *context);

/* A group of all ranks. */
status ranks_group(const rank_context *context, collective_world *world, collective_group **out);

/* Opens a world and a group of all, runs the body, closes both. */
typedef status (*ranks_body)(rank_context *context, collective_world *world, collective_group *group);
status ranks_in_world(rank_context *context, const char *algorithm, const collective_config *config,
                      ranks_body run);

/* As fail(), whose name cmocka.h takes. */
status rank_error(status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Progresses until the call is done. */
status ranks_wait(collective_group *group, collective_ticket ticket);

#endif
