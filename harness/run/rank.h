/* Runs a process of a job: a rank (set-up, blocks of steps, evaluation, results), a parameter server, or a
 * remote stage. */
#ifndef HARNESS_RUN_RANK_H
#define HARNESS_RUN_RANK_H

#include "common/checkpoint/checkpoint.h"
#include "common/data/loader.h"
#include "common/net/rendezvous.h"
#include "common/net/status_table.h"
#include "common/trace/trace.h"
#include "harness/run/record.h"
#include "harness/run/run_result.h"
#include "harness/train/trainer.h"

/* Place of a rank in its job, from the launcher or another starter. */
typedef struct rank_place {
    int job, engine; /* number of the job (engines.h); its engine */
    int rank, world, local_rank;
    int servers; /* servers in separate processes, numbered after the ranks */
    uint64_t token;
    const char *key;        /* key of the job, or NULL */
    const char *stage_key;  /* key of a remote stage that the launcher did not start, or NULL */
    const char *rendezvous; /* URL */
    status_table *table;
    int gradients_fd;  /* descriptor for the first step's gradients (agreement.h), or 0 */
    bool has_launcher; /* a launcher reports the end of the job */
    /* Reports the job on rank 0 if there is no launcher. All ranks but rank 0 wait for the report, because
     * job managers end all ranks once one has ended. */
    status (*report)(void *context, const run_job *outcome);
    void *report_context;
} rank_place;

/* Opens a rendezvous of the job for `members` processes: all ranks, or all ranks and servers. Ranks and
 * servers meet only for the handshake, in a second rendezvous. `inputs` has further lines to compare, or is
 * NULL. `failure` is rendezvous_options.failure. */
status rank_open_rendezvous(const run_config *config, const rank_place *place, int members,
                            const char *inputs, const error_record *failure, rendezvous **out);
/* Rendezvous at `url`, in which this process is rank `rank` of `members`. */
typedef struct rank_meeting {
    const char *url, *key;
    uint64_t token;
    int rank, members;
    const char *inputs;
    const error_record *failure;
    status_table *table;   /* table of the members, or NULL */
    bool exchanges_status; /* value of rendezvous_options.exchanges_status */
} rank_meeting;
status rank_open_meeting(const run_config *config, rank_slot *slot, const rank_meeting *m, rendezvous **out);

/* Runs the rank to its end. On rank 0 *out is the job's outcome, which the caller frees. On other ranks only
 * `difference` is set. A failure is returned and recorded in the status table. Sets the seed of --load in
 * `config`. Returns STATUS_STOPPED if a stop was requested before all ranks had joined. */
status rank_run(run_config *config, const rank_place *place, run_job *out);

/* Runs a server in this process. Servers are numbered after the ranks, from place->world on. A failure is
 * returned and recorded in the status table. */
status server_run(const run_config *config, const rank_place *place);

/* Runs the remote stage of a job. The launcher starts the remote stage as the member after the ranks, or a
 * user starts it by hand (place->table is NULL). */
status stage_server_run(const run_config *config, const rank_place *place);

/* ---- rank_setup.c: a rank's trainer, and its batches in pages that its device can pin ---- */

/* Fills the trainer's configuration. local_rank, job_token, slot and hub stay zero. */
status trainer_setup(const run_config *config, const dataset *set, const nn_model *model, int job, int rank,
                     int world, trainer_config *out);

typedef struct rank_batches {
    batch_source *training, *evaluation; /* `evaluation` is NULL if there is nothing to evaluate */
    loader_memory loaders;               /* allocator of the loaders' buffers */
    int loader_threads;                  /* threads that prepare the training batches */
    struct {
        void *data;
        size_t bytes;
    } buffers[TRAINER_MAX_BUFFERS]; /* inputs and targets of two loaders */
    int buffer_count;
} rank_batches;

_Static_assert(2 * 2 * LOADER_MAX_DEPTH <= TRAINER_MAX_BUFFERS, "the trainer can pin every buffer of a rank");

/* Opens the batches. `out` must not move until it is closed, even after a failure. */
status rank_batches_open(const run_config *c, const rank_place *place, const dataset *set,
                         const nn_model *model, rank_batches *out);

/* Pins the buffers for the trainer's device; the trainer must be closed before the batches. */
void rank_batches_pin(const rank_batches *b, trainer *t);

void rank_batches_close(rank_batches *b);

/* ---- rank_checkpoint.c: --save and --load (docs/checkpoints.md) ---- */

typedef struct rank_checkpoint {
    const run_config *config;
    model_options model; /* resolved options */
    option_binding model_binding;
    const nn_model *whole; /* model of the run */
    const nn_cut *cut;     /* division of the model into stages if each rank has a stage, else NULL */
    trainer *trainer;
    /* Trainers [device_count] of further stages, if they are on devices of the rank. */
    trainer *devices[NN_MOST_STAGES];
    int device_count;
    checkpoint *file; /* file of --load until it is loaded, or NULL */
    rendezvous *rendezvous;
    int rank, world;
    /* Host copies of optimizer state that other ranks hold and this rank writes, or NULL. */
    void *states[2];
    int64_t batches_tracked;
    int64_t written_step; /* step in the file, or -1 if this rank has written none */
} rank_checkpoint;

/* Loads --load into parameters, buffers and optimizer state, before the engine connects. The run continues
 * at *progress, which is zero without --load or if the file is PyTorch's. */
status rank_checkpoint_open(rank_checkpoint *c, checkpoint_progress *progress);
void rank_checkpoint_close(rank_checkpoint *c);

/* Saves the run after `steps` steps. All ranks call this function after a flush; rank 0 writes the file. */
status rank_checkpoint_save(rank_checkpoint *c, int64_t steps, batch_position next);

/* Copies parameter `param` of the run's model to rank 0, in PyTorch's order. All ranks call this function;
 * `values` is NULL on the other ranks. */
status rank_checkpoint_gather(rank_checkpoint *c, int param, float *values);

/* ---- rank_trace.c: the time line of some steps, for the file of --trace and for the results ---- */

typedef struct rank_trace {
    trace *recorder;
    int64_t begin, end; /* recorded steps [begin, end) of the run; `end` is 0 until they are chosen */
    bool to_file;       /* true with --trace; without --trace the results keep one of a few recorded steps */
    /* Ranks of a job with --stages-on devices, else 0. Devices are numbered as in pipeline_place. */
    int processes;
} rank_trace;

/* Opens a trace with room for the steps of --trace-steps, and with --trace for `kernels` kernels per step.
 * If `warns`, logs a warning when the room is too small. */
status rank_trace_open(const run_config *config, const nn_model *model, int64_t kernels, bool warns,
                       rank_trace *out);
/* Chooses the first measured steps if no steps were chosen. */
void rank_trace_choose(rank_trace *t, int64_t first_measured);
void rank_trace_close(rank_trace *t);

/* Must be called before and after each step. */
void rank_trace_begin_step(rank_trace *t, int64_t step);
void rank_trace_end_step(rank_trace *t, const step_result *result, const ledger *ledger);

enum { TRACE_MOST_RANKS = 4096 }; /* ranks of a job, in process numbers */

/* Appends the events of a rank, or of a device, each followed by a comma. */
void rank_trace_write(const rank_trace *t, int job, int number, text_buffer *out);

/* Adds "timeline" to the rank's JSON: the first recorded steps that were measured, on rank 0's clock.
 * job_result_finish() keeps one of them. */
status rank_trace_to_json(const rank_trace *t, const record *record, const clock_alignment *clock,
                          json_t *rank);

/* Appends the events of all ranks to *text on rank 0, each followed by a comma. All ranks call this
 * function for each of their devices. Does nothing without --trace. */
status rank_trace_gather(rank_trace *t, rendezvous *r, int job, int rank, int number, int64_t limit_ns,
                         int world, text_buffer *text);

#endif
