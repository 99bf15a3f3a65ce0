/* Ranks as threads of the test's process. A rank reports errors through its status: cmocka's assertions
 * belong to the main thread. */
#ifndef TESTS_COMMON_COLLECTIVES_RANKS_H
#define TESTS_COMMON_COLLECTIVES_RANKS_H

#include "common/base/status.h"
#include "common/collectives/collective.h"

enum { RANKS_MAX = 16 };

typedef struct rank_context {
    int rank, world;
    uint64_t token; /* Token that all ranks of this run share. */
    const void *shared;
    error_record error; /* Error with which the rank ended. */
} rank_context;

typedef status (*rank_function)(rank_context *context);

/* Runs `function` as ranks 0 .. world - 1. Writes the error of each rank to results[rank].error. */
void ranks_run(int world, rank_function function, const void *shared, rank_context *results);

/* Runs ranks as ranks_run() does. The test fails with the first error of a rank. */
void ranks_run_well(int world, rank_function function, const void *shared);

/* Opens a world in shared memory that uses the named algorithm. */
status ranks_open_world(const char *algorithm, const collective_config *config, collective_world **out);

/* Opens a world as ranks_open_world() does, with a stall timeout of 20 s and the given windows. */
status ranks_open(const rank_context *context, const char *algorithm, const collective_window *windows,
                  int window_count, collective_world **out);
collective_config ranks_config(const rank_context *context);

/* Opens a group of all ranks. */
status ranks_group(const rank_context *context, collective_world *world, collective_group **out);

/* Opens a world and a group of all ranks, runs the body, and closes both. */
typedef status (*ranks_body)(rank_context *context, collective_world *world, collective_group *group);
status ranks_in_world(rank_context *context, const char *algorithm, const collective_config *config,
                      ranks_body run);

/* Does what fail() of status.h does. The name fail() is a macro of cmocka.h. */
status rank_error(status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Makes progress until the call is done. */
status ranks_wait(collective_group *group, collective_ticket ticket);

#endif
