/* State of a rank between set-up and end.
 *
 * A rank is a process (rank.c) or a fiber in virtual time (harness/sim/virtual_job.c). Both open the rank's
 * devices, run the steps with rank_run_steps(), and convert the results with rank_device_to_json() and
 * rank_job_to_json(). Only a process joins the other ranks in a rendezvous, takes turns with other jobs,
 * evaluates, saves, and stops on request. */
#ifndef HARNESS_RANK_STATE_H
#define HARNESS_RANK_STATE_H

#include "common/net/rendezvous.h"
#include "harness/rank/rank.h"
#include "harness/result/record.h"
#include "harness/result/run_result.h"

#include <limits.h>

/* A device of a rank, and the measurements of its trainer. A rank has one device or, if "--stages-on devices"
 * is given, one device for each stage of the model. */
typedef struct rank_device {
    int number; /* row in the results: number of the rank or, if "--stages-on devices" is given, number of the
                   device among the devices of all ranks */
    nn_model *stage; /* stage that the device trains, or NULL if the model is not split */
    pipeline_place place;
    trainer *trainer;
    record record;
    rank_trace trace; /* `recorder` is NULL if the rank is not traced */
} rank_device;

/* State of --save and --load (docs/checkpoints.md). */
typedef struct rank_checkpoint {
    model_options model; /* resolved options */
    option_binding model_binding;
    const nn_cut *cut; /* division of the model into stages if each rank has a stage, else NULL */
    checkpoint *file;  /* file of --load until it is loaded, or NULL */
    /* Host copies of optimizer state that other ranks hold and this rank writes, or NULL. */
    void *states[2];
    char path[PATH_MAX]; /* the newest file of --save */
    int64_t batches_tracked;
    int64_t written_step; /* step of the checkpoint that this rank has written, or -1 if none */
} rank_checkpoint;

typedef struct rank_state rank_state;

/* Differences between a rank that is a process and a virtual rank. */
typedef struct rank_world {
    /* Returns true if the rank must stop before its next step. */
    bool (*must_stop)(const rank_state *s);
    /* Called when a step of a device has ended, before the step is recorded. */
    void (*step_ended)(rank_state *s, const rank_device *d, step_result *result, bool measured);
    /* Called after each step, for example to evaluate. */
    status (*between_steps)(rank_state *s);
    int simulated_ranks; /* virtual ranks, which may stand for all ranks of the job; 0 if the rank is a
                            process */
} rank_world;

struct rank_state {
    const run_config *config;
    const rank_place *place;
    const rank_world *world;
    dataset *set;
    nn_model *model;
    rank_device *devices; /* [device_count] */
    int device_count;
    batch_source *source; /* training batches */
    step_plan steps;
    int64_t next_step;
    bool measured[2]; /* while step i is under way, element i mod 2 is true if step i is measured */
    bool stopped;     /* the rank has stopped before its last step */
    int64_t lead;     /* steps that a rank may be ahead of another rank, or JOB_UNBOUNDED */
    /* Time that the rank has spent in steps, measured or not, without evaluations, checkpoints and other
     * jobs' turns. */
    int64_t trained_ns;
    int64_t printed_samples; /* samples of a batch for which --print-shapes has printed the shapes */
    int64_t batch_offset;    /* a batch's number in the source minus the batch's number in the run */
    agreement agreement;
    clock_alignment clock;

    /* The following fields are zero in virtual time. */
    rank_slot *slot;
    run_job *out;
    nn_model *remote; /* second half of the model, on a remote stage, or NULL */
    nn_cut cut;       /* split of the model with --stages or --remote-stage */
    rendezvous *rendezvous;
    uint64_t token; /* token of the job, drawn for this run */
    rank_batches batches;
    batch_source *shared; /* source of `batches` for all devices, if there are several */
    option_period eval_every;
    double epoch_losses[2];      /* sum and number of this rank's losses since the last epoch's end */
    clock_bounds clock_at_begin; /* clock bounds before the first step */
    bool takes_turns;            /* blocks of steps alternate with blocks of other jobs */
    uint32_t block;
    bool stop_is_agreed; /* true if all ranks have agreed to stop; used only if `lead` is JOB_UNBOUNDED */
    rank_checkpoint checkpoint;
    int64_t checkpoint_step; /* step at which the run continues, or 0 without --load */
    int64_t saved_steps, saves;
};

/* Returns the deadline of a collective call between steps. */
int64_t rank_deadline(const rank_state *s);

/* ---- steps.c: steps, for processes and virtual ranks ---- */

/* Returns the stage of the model that the device `number` has. */
pipeline_place rank_stage_place(const run_config *config, int job, int number);
/* Opens the trainer of a device. The device's number, stage, place and trace must be set. `config` is the
 * configuration of all devices of the rank. */
status rank_device_open(rank_device *d, trainer_config config);
/* Returns the number of the step's first batch in the batch source. */
int64_t rank_batch_of_step(const rank_state *s, int64_t step);
/* Runs steps up to `end`. `measured` is true if they are measured. Ends early if the job is to stop. */
status rank_run_steps(rank_state *s, int64_t end, bool measured);
/* Ends the oldest steps until fewer than `most` are under way. */
status rank_end_steps(rank_state *s, int most);
/* Resets the peaks of memory before the first measured step. */
void rank_reset_peaks(rank_state *s);
/* Counts the traffic since the last call of this function. The counts are reported if `measured` is true. */
void rank_count(rank_state *s, bool measured);
status rank_flush(rank_state *s);

/* ---- lines.c: lines on stdout during a run ---- */

/* Returns false if this job prints no lines: with --json -, and for jobs that only serve as a comparison. */
bool rank_prints(const rank_state *s);
/* Prints a line that begins with the name of the job. */
void rank_print(const rank_state *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints the lines of --print-steps and --print-shapes. */
void rank_print_step(rank_state *s, const rank_device *d, const step_result *result);

/* ---- checkpoint.c: --save and --load ---- */

/* Loads the file of --load into parameters, buffers and optimizer state, before the engine connects. The run
 * continues at *progress, which is zero if there is no --load or if the file is PyTorch's. */
status rank_load(rank_state *s, checkpoint_progress *progress);

/* Saves the run after `steps` steps. All ranks call this function after a flush; rank 0 writes the file. If
 * rank 0 cannot write the file, it writes out->late, and *lost is true on all ranks. */
status rank_save(rank_state *s, int64_t steps, batch_position next, bool *lost);

/* Copies parameter `param` of the run's model to rank 0, in PyTorch's order. All ranks call this function;
 * `values` is NULL on the other ranks. */
status rank_gather_param(rank_state *s, int param, float *values);

/* ---- compare.c ---- */

/* Version and commit of the program, or a hash of its sources if the commit is not known. */
extern const char program_identity[];
/* Appends lines "name = value" about the data, the model and the checkpoint that this rank has opened. */
status rank_describe_inputs(const rank_state *s, text_buffer *out);
/* Compares the parameters of replicas. All ranks call this function after a flush. If the parameters
 * differ, every rank writes out->late. */
status rank_compare_replicas(rank_state *s);

/* ---- join.c ---- */

/* Returns true if the job with the status table `table` was asked to stop. */
bool rank_stop_requested(void *table);
/* Opens the inputs and joins the ranks' rendezvous. Draws the token of the job. */
status rank_join(rank_state *s, run_config *config);
/* Connects the engines with the handshakes of all ranks and servers. */
status rank_exchange_handshakes(rank_state *s);

/* ---- remote.c ---- */

/* Joins the rendezvous of the remote stage and connects to the stage. Does nothing if there is no remote
 * stage. */
status rank_connect_remote(rank_state *s);
/* Adds "remote_stage" to the job's JSON. */
void rank_add_remote(const rank_state *s, json_t *job);

/* ---- rank_calls.c ---- */

/* Completes the record. All ranks call this function after the last step, when clocks are aligned. */
status rank_merge_calls(rank_state *s);

/* ---- rank_result.c ---- */

/* Returns the row of a device in the results, in which devices count as ranks. The caller owns the row. */
json_t *rank_device_to_json(const rank_state *s, const rank_device *d);
/* Builds the job's result from rank 0 and the rows of all ranks or devices. `servers` has the rows of servers
 * in separate processes, and `host_costs` the costs of virtual hosts. Either may be NULL. The function takes
 * over both references. `hash` is the hash of the parameters, or NULL. *out is a new reference. */
status rank_job_to_json(rank_state *first, json_t *rows, const char *hash, json_t *servers,
                        json_t *host_costs, json_t **out);
/* Gathers the results. All ranks call this function after the last step. On rank 0 *out has the job's result,
 * parameters and trace, which the caller frees. */
status rank_share_results(rank_state *s, run_job *out);

#endif
