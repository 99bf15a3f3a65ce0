/* A trainer is one rank of a job: it connects the rank's device, model, parameters, optimizer, engine and
 * data, and runs training steps.
 *
 * A trainer belongs to one thread. On a virtual device the trainer belongs to one fiber, and a wait suspends
 * the fiber. */
#ifndef HARNESS_TRAIN_TRAINER_H
#define HARNESS_TRAIN_TRAINER_H

#include "common/data/batch_source.h"
#include "common/nn/instance.h"
#include "common/pipeline/pipeline.h"
#include "common/pipeline/remote.h"
#include "common/sync/anatomy.h"
#include "common/sync/engine.h"
#include "harness/train/step_log.h"

enum { TRAINER_MAX_SIZES = 4 };

/* Configuration of a trainer. All pointers are borrowed. */
typedef struct trainer_config {
    /* The environment of the engine. If `place` is set, rank and world count the replicas of this stage, else
     * the ranks of the job. `lost` is NULL if ranks are threads. `canceled` is also called while stages
     * connect. The trainer sets the fields that follow from the rest of this configuration: the ranks of the
     * job, and the objects that the trainer opens. */
    sync_context sync;
    int local_rank;
    const nn_model *remote;      /* second half of the model, if a remote stage has it; else NULL */
    const pipeline_place *place; /* stage of the model that this trainer has, or NULL if it has all stages */
    const char *device;          /* for example "cpu" */
    int precision;               /* device_precision */
    bool benchmark;              /* device_config.benchmark */
    bool prefetch;         /* copies a batch to the device before its step, if the device has a copy engine */
    bool cuda_graph;       /* records each pass and then launches the recorded pass */
    int threads;           /* compute threads of this rank */
    void *simulation;      /* simulation of a sim device, else NULL */
    struct trainer *twin;  /* trainer of this thread whose equal programs are shared, or NULL */
    const nn_model *model; /* whole model, the stage of `place`, or the first half if `remote` is set */
    const sync_engine_type *engine;
    const optimizer_options *optimizer;
    int64_t batch; /* samples per rank and micro-batch */
    /* Other batch sizes, which occur in the last step of an epoch. 0 ends the list. */
    int64_t sizes[TRAINER_MAX_SIZES];
    int64_t total_steps;  /* steps of the run, for the learning-rate schedule */
    bool masked_loss;     /* the head computes only the rows that have a target */
    bool sum_loss;        /* the loss is the sum over targets, not their mean */
    bool separate_phases; /* synchronizes the device between phases, to time each phase alone */
    int64_t accumulate;   /* micro-batches per step; 0 counts as 1 */
    const char *slow;     /* "RANK:FACTOR" as in straggler.h, or NULL */
    bool *refused;        /* set to true by trainer_open() if the device ran out of memory; may be NULL */
} trainer_config;

enum { STEP_NOT_MEASURED = -1 };

/* Times of a step in ns, or STEP_NOT_MEASURED. A step runs from the end of the rank's previous step to the
 * end of this step. trainer_begin_anew() changes the begin. The parts add up to `total`
 * (common/sync/anatomy.h). */
typedef struct step_times {
    int64_t total;
    int64_t parts[STEP_PARTS];
    int64_t communication; /* time in which a transfer or a sum was in progress: hidden + exposed */
    int64_t hidden, hidden_computing, hidden_waiting; /* hidden = hidden_computing + hidden_waiting */
    int64_t slowdown; /* slowdown of the computation by concurrent communication */
    /* Time of copies of prefetched batches to the device. The data part of the step counts only the copy time
     * that no computation hides. */
    int64_t copy;
    int64_t first_to_backward_end; /* time from the start of the first all-reduce to the end of the backward
                                      pass */
    int64_t last_bucket;           /* duration of the last bucket's all-reduce */
} step_times;

/* Sets the times that the anatomy gives, or sets these times to STEP_NOT_MEASURED if the anatomy lost waits
 * or spans. */
void step_set_anatomy(step_times *times, const anatomy_figures *figures);

typedef struct step_result {
    int64_t index;
    int64_t begin_ns,
        end_ns; /* on the clock that all ranks of a host share: CLOCK_MONOTONIC, or virtual time */
    step_times times;
    int waited_for;           /* rank with the largest waited_ns, or ANATOMY_NOBODY */
    const int64_t *waited_ns; /* [world] time spent waiting for each rank; valid until the next step */
    int64_t forward_begin_ns, forward_end_ns, backward_begin_ns, backward_end_ns; /* on the device's clock */
    /* Time at which the gradients were reduced, before the update. Keeps an earlier value if this rank
     * makes no update. */
    int64_t reduced_ns;
    int64_t samples, targets; /* sums over the micro-batches of this rank */
    /* Loss of this rank's batches, with the loss's reduction. NaN if another rank computes the loss. */
    double loss;
} step_result;

typedef struct trainer trainer;

/* Opens the device, programs, parameters and engine. Parameters are zero until the caller initializes
 * trainer_params(). After the initialization the caller exchanges handshakes (sync_handshake()) and calls
 * trainer_connect(). */
status trainer_open(const trainer_config *config, trainer **out);
/* Connects the engine, and the pipeline if there is one. All ranks call this function at about the same time.
 * `handshakes` has the handshakes of all ranks of the job. If the stages are on devices of one rank, it has
 * the handshakes of the replicas of this stage. */
status trainer_connect(trainer *t, const sync_blob *handshakes);
/* Connects to the remote stage at `url`, the address from remote_server_listen(). Called before the first
 * step. */
status trainer_connect_remote(trainer *t, const remote_config *config, const char *url);
/* Reads the counters of the engine, of the pipeline and of the connection to the remote stage. */
void trainer_counters(const trainer *t, sync_counters *out);
/* Closes only the engine. Memory that peers have mapped stays. */
void trainer_leave(trainer *t);
void trainer_close(trainer **t);

/* Pins host memory of batches until the trainer is closed, so that a GPU copies from this memory directly and
 * asynchronously. On failure logs a warning, and batches go through the device's pinned buffers. */
enum { TRAINER_MAX_BUFFERS = 16 };
void trainer_pin(trainer *t, void *data, size_t bytes);

/* Sets the number of steps of the run, for callers that know it only after trainer_open(). */
void trainer_set_total_steps(trainer *t, int64_t total_steps);
/* Sets the number of updates that --on-nonfinite skip left out before this process started. */
void trainer_set_skipped(trainer *t, int64_t updates);
/* Returns the number of updates that the whole run has left out. */
int64_t trainer_skipped(const trainer *t);

/* Batches that the batch source of this rank must provide: the batches of this rank, the batches of all
 * ranks, or no batches. */
typedef enum trainer_load { TRAINER_LOADS_OWN, TRAINER_LOADS_ALL, TRAINER_LOADS_NOTHING } trainer_load;
trainer_load trainer_loads(const trainer *t);

/* Returns true if rank 0 computes one loss over the outputs of all ranks. */
bool trainer_has_one_loss(const trainer *t);

/* Runs step `index` on the source's batches from `batch_step` on, one batch per micro-batch. Gradients and
 * loss are means over the micro-batches, or sums if the loss is a sum. */
status trainer_step(trainer *t, batch_source *source, int64_t index, int64_t batch_step, step_result *out);

/* Joins the trainers of all stages of a rank that has its stages on devices of one process
 * (pipeline_place.devices). Called once with the open trainers in the order of the stages, and with the batch
 * source of each stage. Stages may have the same source (trainer_share_source()).
 *
 * After trainer_join_devices(), trainer_begin_step() of the first trainer runs the step of all stages and
 * ignores its `source` argument. trainer_end_step() is called for each trainer. The trainers are closed in
 * any order after the last step. */
void trainer_join_devices(trainer *const *stages, batch_source *const *sources, int count);

/* Opens a source that lends the batch of one step any number of times, until the next step is requested. `of`
 * is borrowed. */
status trainer_share_source(batch_source *of, batch_source **out);

/* The two halves of trainer_step(). On a GPU whose engine only enqueues, trainer_begin_step() returns before
 * the device has finished the step. On other devices the step is complete when trainer_begin_step() returns.
 * trainer_end_step() waits for the oldest step that has begun, checks the loss and the update of this step,
 * and reports the result.
 *
 * At most trainer_depth() steps with consecutive indices may be under way. All other calls between steps
 * require that every step has ended. */
status trainer_begin_step(trainer *t, batch_source *source, int64_t index, int64_t batch_step);
status trainer_end_step(trainer *t, step_result *out);
int trainer_depth(const trainer *t); /* 1 or 2 */
int trainer_under_way(const trainer *t);

/* Returns the processor time of the compute thread in all steps so far, in ns. Called between steps.
 * Returns STEP_NOT_MEASURED if kernels do not run on host processors. */
int64_t trainer_cpu_ns(trainer *t);

/* Makes the times of the next step begin at the call that begins the step, not at the end of the previous
 * step. Called before a pause that belongs to no step. */
void trainer_begin_anew(trainer *t);

/* Copies this rank's gradients to `arena` in each of the following steps, before the engine reduces them.
 * `arena` is host memory in float32, laid out like the parameters. NULL ends the copies. */
void trainer_keep_gradients(trainer *t, float *arena);

/* Sums over the samples of this rank. */
typedef struct evaluation_sums {
    double loss, correct, targets;
    bool stopped; /* true if the evaluation stopped early and the sums cover only some batches */
} evaluation_sums;
/* A function that is called before each batch and returns true to stop there. May be NULL. */
typedef struct evaluation_stop {
    bool (*function)(void *context);
    void *context;
} evaluation_stop;
/* Runs the forward pass over every batch of `source`. */
status trainer_evaluate(trainer *t, batch_source *source, evaluation_stop stop, evaluation_sums *out);

/* Returns the factor of --slow: 1 if this rank is not slowed. */
double trainer_slowdown(const trainer *t);

device *trainer_device(trainer *t);
device_stream *trainer_stream(trainer *t);
param_set *trainer_params(trainer *t);
ledger *trainer_ledger(trainer *t);
sync_engine *trainer_engine(trainer *t);
optimizer *trainer_optimizer(trainer *t);
const step_log *trainer_log(const trainer *t);
const nn_program *trainer_program(const trainer *t);

#endif
