/* Internals of a virtual job: its machines, batches, host costs and time lines. */
#ifndef HARNESS_SIM_VIRTUAL_JOB_IMPL_H
#define HARNESS_SIM_VIRTUAL_JOB_IMPL_H

#include "common/sim/price.h"
#include "harness/rank/rank.h"
#include "harness/sim/virtual_job.h"

/* ---- virtual_machines.c ---- */

/* Writes "virtual time, profile ...: 8 GPUs on 2 machines of 4, with 1 network adapter of 12.5 GB/s each" to
 * `note` [size]. */
void virtual_machines_describe(const simulation *s, char *note, size_t size);

/* ---- virtual_source.c: batches for virtual devices, which have the number of samples and of counted targets
 * but no tensors. Inputs must not be read. ---- */

/* Opens the batches of `rank`, or of all ranks if `whole`. If targets are masked, draws the mask of each
 * sample to count the targets that remain. If targets are not masked, all targets count. `set` is borrowed.
 * Returns the errors of sampler_init(). The caller closes *out, also after a failure. */
status virtual_source_open(const dataset *set, const sampler_config *sampler, int rank, bool whole,
                           batch_source **out);

/* Makes a new source load its batches with `workers` processes and a pinning thread, at the profile's
 * prices, or with `rate` samples/s per worker if `rate` is not 0. `actor` waits until each batch is ready.
 * Must be called before the first batch. Returns the times of a batch. */
sim_loader_price virtual_source_load(batch_source *source, sim_actor *actor, int workers, double rate);

/* ---- virtual_host.c ---- */

/* Time that the host of a virtual job spends per step, for each part: the loader's workers, the thread that
 * pins memory, and DataParallel's main thread. The parts work on different steps at the same time, so the
 * slowest part determines the time of a step. */
typedef struct virtual_host {
    const simulation *simulation;
    const trainer *trainer;              /* Trainer of rank 0, or NULL before the measured steps. */
    int64_t before_ns[STEP_PHASE_COUNT]; /* Time of the main thread before the measured steps. */
    int64_t steps;                       /* Number of measured steps. */
    sim_loader_price loader;             /* Times of the process's loader. Zero without a loader. */
    int replicas;                        /* Replicas in the process under dp, else 0. */
    int parameters;                      /* Number of parameter tensors of the model. */
} virtual_host;

/* Returns the `host_costs` of a job (docs/results.md), which the caller owns. Returns NULL if there is
 * nothing to report, or if out of memory. */
json_t *virtual_host_to_json(const virtual_host *h);

/* ---- virtual_trace.c: --trace in virtual time, which has the tracks of a real run, and a row for every GPU
 * stream and every link.
 *
 * A rank is a process in the trace, and its kernels are on the rows of their streams. A machine is a
 * process with a row for each direction of a link, each socket's memory and each direction of a network
 * adapter. A slice on the row of a link is a period in which transfers use the link. The bytes of a slice
 * include the copies and wire bytes that a route adds. ---- */

enum {
    VIRTUAL_TRACE_RANKS = 64,   /* Number of ranks, and of machines, that are shown. */
    VIRTUAL_TIMELINE_RANKS = 16 /* Number of ranks whose time line of one step is in the results. */
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
    int engine, rank_count; /* Traced ranks. 0 if nothing is recorded. */
    /* True with --trace. Without --trace only the step for the results is recorded, without streams and
     * links. */
    bool to_file;
    rank_trace *ranks; /* [rank_count] */
    const simulation *simulation;
    link_row *links; /* [link_count], indexed by resource. */
    int32_t link_count;
    bool out_of_memory;
} virtual_trace;

/* Opens the recorders of a job with `world` devices. Without --trace-steps, recording begins after the
 * warm-up steps. */
status virtual_trace_open(const virtual_job_config *config, int world, virtual_trace *out);
void virtual_trace_close(virtual_trace *t);

/* Makes the simulation record streams and links during the traced steps of rank 0. `t` must not be moved. */
status virtual_trace_watch(virtual_trace *t, simulation *s);

/* Appends all events, each followed by a comma. Must be called before the simulation is closed. Returns
 * STATUS_SYSTEM if out of memory. */
status virtual_trace_write(const virtual_trace *t, text_buffer *out);

#endif
