/* A process of a job: a rank (set-up, blocks of steps, evaluation, results), or a parameter server in its own
 * process. */
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

/* A rank's place in its job, from the launcher or whatever else started it. */
typedef struct rank_place {
    int job, engine; /* its number (engines.h), and the engine of the job */
    int rank, world, local_rank;
    int servers; /* in their own processes, numbered after the ranks */
    uint64_t token;
    const char *key;        /* of the job; NULL: none */
    const char *stage_key;  /* that admits to a remote stage which something else started; NULL: none */
    const char *rendezvous; /* URL */
    status_table *table;
    int gradients_fd;  /* of the file for the first step's gradients (agreement.h); 0: none */
    bool has_launcher; /* which reports what ends the job */
    /* Without a launcher: reports the job on rank 0. The other ranks wait for it, because job managers end
     * all ranks once one has ended. */
    status (*report)(void *context, const run_job *outcome);
    void *report_context;
} rank_place;

/* Opens the job's rendezvous. `members`: the ranks, or ranks and servers, which have a rendezvous of their
 * own for the handshake. `inputs` are more lines to compare, or NULL; `failure`: rendezvous_options. */
status rank_open_rendezvous(const run_config *config, const rank_place *place, int members,
                            const char *inputs, const error_record *failure, rendezvous **out);
/* Another one, at `url`, where this process is rank `rank` of `members`. */
typedef struct rank_meeting {
    const char *url, *key;
    uint64_t token;
    int rank, members;
    const char *inputs;
    const error_record *failure;
    status_table *table;   /* of its members, or NULL */
    bool exchanges_status; /* rendezvous_options */
} rank_meeting;
status rank_open_meeting(const run_config *config, rank_slot *slot, const rank_meeting *m, rendezvous **out);

/* Runs the rank to its end. *out: on rank 0 the job's outcome, the caller's to free; elsewhere only
 * `difference`. A failure is also recorded in the status table. Sets the seed of --load in `config`.
 * STATUS_STOPPED: a stop was requested before all ranks had come. */
status rank_run(run_config *config, const rank_place *place, run_job *out);

/* `place->rank` >= place->world. A failure is also recorded in the status table. */
status server_run(const run_config *config, const rank_place *place);

/* The remote stage of a job: started by the launcher as the member after the ranks, or by hand (place->table
 * NULL). */
status stage_server_run(const run_config *config, const rank_place *place);

/* ---- rank_setup.c: what a rank opens from the configuration: its trainer, and its batches in pages that its
 * device can pin ---- */

/* Everything but where the rank runs: local_rank, job_token, slot and hub are left zero. */
status trainer_setup(const run_config *config, const dataset *set, const nn_model *model, int job, int rank,
                     int world, trainer_config *out);

typedef struct rank_batches {
    batch_source *training, *evaluation; /* NULL: nothing to evaluate */
    loader_memory loaders;               /* where their buffers come from */
    int loader_threads;                  /* that prepare the training batches */
    struct {
        void *data;
        size_t bytes;
    } buffers[TRAINER_MAX_BUFFERS]; /* of two loaders, inputs and targets */
    int buffer_count;
} rank_batches;

_Static_assert(2 * 2 * LOADER_MAX_DEPTH <= TRAINER_MAX_BUFFERS, "the trainer can pin every buffer of a rank");

/* `out` stays where it is until it is closed, also where this fails. */
status rank_batches_open(const run_config *c, const rank_place *place, const dataset *set,
                         const nn_model *model, rank_batches *out);

/* Pins the buffers for the trainer's device; the trainer must be closed before the batches. */
void rank_batches_pin(const rank_batches *b, trainer *t);

void rank_batches_close(rank_batches *b);

/* ---- rank_checkpoint.c: saving and loading (docs/checkpoints.md) ---- */

typedef struct rank_checkpoint {
    const run_config *config;
    model_options model; /* resolved */
    option_binding model_binding;
    const nn_model *whole; /* the run's model */
    const nn_cut *cut;     /* of it, where ranks have stages; else NULL */
    trainer *trainer;
    trainer *devices[NN_MOST_STAGES]; /* [device_count] further ones, where the stages are on devices of the
                                         rank */
    int device_count;
    checkpoint *file; /* The file of --load until it is loaded, or NULL. */
    rendezvous *rendezvous;
    int rank, world;
    void *states[2]; /* host copies of optimizer state that other ranks hold and this one writes; else NULL */
    int64_t batches_tracked;
    int64_t written_step; /* that the file has; -1: this rank has written none */
} rank_checkpoint;

/* Loads what --load names into parameters, buffers and optimizer state, before the engine connects.
 * *progress is where the run goes on: all zero without --load or where the file is PyTorch's. */
status rank_checkpoint_open(rank_checkpoint *c, checkpoint_progress *progress);
void rank_checkpoint_close(rank_checkpoint *c);

/* Saves the run after `steps` steps. All ranks call it, flushed; rank 0 writes. */
status rank_checkpoint_save(rank_checkpoint *c, int64_t steps, batch_position next);

/* Parameter `param` of the run's model to rank 0, in PyTorch's order. All ranks call it; `values` is NULL on
 * the others. */
status rank_checkpoint_gather(rank_checkpoint *c, int param, float *values);

/* ---- rank_trace.c: the time line of some steps, recorded by engine and train loop: for the file of --trace,
 * gathered on rank 0, and one step of it for the results ---- */

typedef struct rank_trace {
    trace *recorder;
    int64_t begin, end; /* steps [begin, end) of the run; end 0: not chosen yet */
    bool to_file;       /* --trace; without it a few steps are recorded, of which the results hold one */
    int processes; /* with --stages-on devices: of whose devices it is one, numbered as in pipeline_place;
                      else 0 */
} rank_trace;

/* Room for the steps of --trace-steps, and in each of them for so many kernels with --trace. `warns`: of more
 * than there is room for. */
status rank_trace_open(const run_config *config, const nn_model *model, int64_t kernels, bool warns,
                       rank_trace *out);
/* Where no steps were chosen, the first measured ones are. */
void rank_trace_choose(rank_trace *t, int64_t first_measured);
void rank_trace_close(rank_trace *t);

/* Before and after each step. */
void rank_trace_begin_step(rank_trace *t, int64_t step);
void rank_trace_end_step(rank_trace *t, const step_result *result, const ledger *ledger);

enum { TRACE_MOST_RANKS = 4096 }; /* of a job, in the numbers of processes */

/* Appends the events of a rank, or of a device, each followed by a comma. */
void rank_trace_write(const rank_trace *t, int job, int number, text_buffer *out);

/* "timeline" of the rank's JSON: the first recorded ones of its measured steps, of which the job's results
 * keep one (job_result_finish()). On rank 0's clock. */
status rank_trace_to_json(const rank_trace *t, const record *record, const clock_alignment *clock,
                          json_t *rank);

/* All ranks call it, for each of their devices; does nothing without --trace. On rank 0 the events of all
 * ranks, each followed by a comma, are appended to *text. */
status rank_trace_gather(rank_trace *t, rendezvous *r, int job, int rank, int number, int64_t limit_ns,
                         int world, text_buffer *text);

#endif
