/* --trace in virtual time: the tracks of a real run, and in addition a row for every stream of a GPU and for
 * every link.
 *
 * A rank is a process, with its kernels on the row of the stream that runs them. A machine is a process with
 * a row for each direction of a link, each socket's memory and each direction of a network adapter; a slice
 * is a time in which flows use it, with their bytes, as they load the link (with the copies and wire bytes
 * that a route adds). */
#ifndef HARNESS_SIM_VIRTUAL_TRACE_H
#define HARNESS_SIM_VIRTUAL_TRACE_H

#include "common/sim/simulation.h"
#include "harness/run/rank.h"

enum {
    VIRTUAL_TRACE_RANKS = 64,   /* the first ranks are shown, and as many machines */
    VIRTUAL_TIMELINE_RANKS = 16 /* of which the results hold one step */
};

/* A time in which a link was used without a pause. */
typedef struct link_use {
    sim_time begin, end;
    double bytes;
    int64_t transfers;
    const char *what; /* of the first */
} link_use;

typedef struct link_row {
    link_use *uses; /* [count] */
    int64_t count, capacity;
} link_row;

typedef struct virtual_trace {
    int engine, rank_count;
    bool to_file;      /* --trace; without it only the results' step is recorded, without streams and links */
    rank_trace *ranks; /* [rank_count]; NULL: nothing is recorded */
    const simulation *simulation;
    link_row *links; /* [link_count] by resource */
    int32_t link_count;
    bool out_of_memory;
} virtual_trace;

/* `warmup` steps precede those that are traced where --trace-steps chooses none. */
status virtual_trace_open(const run_config *config, const nn_model *model, int engine, int world,
                          int64_t warmup, virtual_trace *out);
void virtual_trace_close(virtual_trace *t);

/* NULL: the rank is not traced. */
rank_trace *virtual_trace_rank(const virtual_trace *t, int rank);

/* From now on streams and links are recorded, while rank 0 is in a step that is traced; `t` stays where it
 * is. */
status virtual_trace_watch(virtual_trace *t, simulation *s);

/* Before the simulation is closed: appends all events, each followed by a comma. STATUS_SYSTEM without
 * memory. */
status virtual_trace_write(const virtual_trace *t, text_buffer *out);

#endif
