/* --trace in virtual time: the tracks of a real run, and a row for every GPU stream and every link.
 *
 * A rank is a process in the trace, and its kernels are on the rows of their streams. A machine is a
 * process with a row for each direction of a link, each socket's memory and each direction of a network
 * adapter. A slice on the row of a link is a period in which transfers use the link. The bytes of a slice
 * include the copies and wire bytes that a route adds. */
#ifndef HARNESS_SIM_VIRTUAL_TRACE_H
#define HARNESS_SIM_VIRTUAL_TRACE_H

#include "common/sim/simulation.h"
#include "harness/rank/rank.h"

enum {
    VIRTUAL_TRACE_RANKS = 64,   /* Number of ranks, and of machines, that are shown. */
    VIRTUAL_TIMELINE_RANKS = 16 /* Number of ranks that have one step in the results. */
};

/* A period in which a link was used without a pause. */
typedef struct link_use {
    sim_time begin, end;
    double bytes;
    int64_t transfers;
    const char *what; /* Kind of the first transfer. */
} link_use;

typedef struct link_row {
    link_use *uses; /* [count] */
    int64_t count, capacity;
} link_row;

typedef struct virtual_trace {
    int engine, rank_count;
    /* True with --trace. Without --trace only the step for the results is recorded, without streams and
     * links. */
    bool to_file;
    rank_trace *ranks; /* [rank_count], or NULL if nothing is recorded. */
    const simulation *simulation;
    link_row *links; /* [link_count], indexed by resource. */
    int32_t link_count;
    bool out_of_memory;
} virtual_trace;

/* Opens the recorders. Without --trace-steps, recording begins after `warmup` steps. */
status virtual_trace_open(const run_config *config, const nn_model *model, int engine, int world,
                          int64_t warmup, virtual_trace *out);
void virtual_trace_close(virtual_trace *t);

/* Returns the trace of a rank, or NULL if the rank is not traced. */
rank_trace *virtual_trace_rank(const virtual_trace *t, int rank);

/* Makes the simulation record streams and links during the traced steps of rank 0. `t` must not be moved. */
status virtual_trace_watch(virtual_trace *t, simulation *s);

/* Appends all events, each followed by a comma. Must be called before the simulation is closed. Returns
 * STATUS_SYSTEM if out of memory. */
status virtual_trace_write(const virtual_trace *t, text_buffer *out);

#endif
