/* One rank of a job: device, model, parameters, optimizer, engine and data put together, and the train
 * loop that drives the engine's stages.
 *
 * A trainer belongs to one thread; in virtual time to one fiber, which waits where a thread would. */
#ifndef HARNESS_TRAIN_TRAINER_H
#define HARNESS_TRAIN_TRAINER_H

#include "common/data/batch_source.h"
#include "common/net/status_table.h"
#include "common/net/transport.h"
#include "common/nn/instance.h"
#include "common/pipeline/pipeline.h"
#include "common/pipeline/remote.h"
#include "common/sync/anatomy.h"
#include "common/sync/engine.h"
#include "harness/train/step_log.h"

enum { TRAINER_MAX_SIZES = 4 };

typedef struct trainer_config {
    int rank, world, local_rank; /* of the job; with a pipeline of the replicas of this rank's stage */
    const nn_model
        *remote; /* `model` is the first half, this the second, which a remote stage has; else NULL */
    const pipeline_place *place; /* NULL: this rank has the whole model; else `model` is that of the stage */
    uint64_t job_token;
    const char *device; /* "cpu" */
    int precision;      /* device_precision */
    bool share_gpu;     /* ranks beyond the GPUs share them */
    bool benchmark;     /* device_config's */
    bool prefetch;      /* a batch is copied to the device ahead of its step, where that has a copy engine */
    bool cuda_graph;    /* records each pass and launches it as a whole */
    int threads;
    void *simulation;      /* NULL but for sim devices */
    const nn_model *model; /* borrowed, as everything below */
    const sync_engine_type *engine;
    const void *engine_options;
    const char *policy;
    const optimizer_options *optimizer;
    int64_t batch;                    /* samples per rank and step */
    int64_t sizes[TRAINER_MAX_SIZES]; /* further batch sizes, of an epoch's last step; 0 ends the list */
    int64_t total_steps;              /* of the run: for the learning-rate schedule */
    bool masked_loss;                 /* leave rows without targets out of the head */
    bool sum_loss;                    /* the loss is a sum over targets, not their mean */
    rank_slot *slot;
    const status_table *table;                    /* sync_context.table */
    int64_t stall_timeout_ns, connect_timeout_ns; /* as in sync_context */
    bool inline_progress;
    bool separate_phases; /* synchronizes the device between phases, to time them separately */
    int64_t accumulate;   /* micro-batches per step; 0 counts as 1 */
    int divide;           /* shared_divide */
    const char *slow;     /* straggler.h: "RANK:FACTOR", or NULL */
    net_link link;        /* emulated between the ranks, or zero */
    struct trace *trace;  /* NULL: nothing is recorded */
    bool *refused;        /* set by trainer_open(): the device had no memory for something; or NULL */
    void (*lost)(void *context, const error_record *why); /* sync_context.lost; NULL: ranks are threads */
    void *lost_context;
    bool (*canceled)(void *context); /* sync_context.canceled, also while stages connect */
    void *canceled_context;
    transport_hub *hub; /* of ranks that are threads of one process; NULL: every rank has a process */
} trainer_config;

enum { STEP_NOT_MEASURED = -1 };

/* The times of a step, in ns; STEP_NOT_MEASURED if one was not measured. A step runs from the end of the
 * rank's previous step to its own end (trainer_begin_anew() has the exception). The parts add up to the total
 * (common/sync/anatomy.h). */
typedef struct step_times {
    int64_t total;
    int64_t parts[STEP_PARTS];
    int64_t communication; /* a transfer or a sum was in progress: hidden + exposed */
    int64_t hidden, hidden_computing, hidden_waiting; /* the first is the sum of the others */
    int64_t slowdown; /* Slowdown of the computation by concurrent communication. */
    int64_t copy;     /* of the batch to the device, during the step before: what is not in the data part was
                         hidden */
    int64_t first_to_backward_end; /* PyTorch's overlap: from the start of the first all-reduce */
    int64_t last_bucket;           /* from its start to its end */
} step_times;

/* The figures of its anatomy; not measured, where some of it was lost. */
void step_set_anatomy(step_times *times, const anatomy_figures *figures);

typedef struct step_result {
    int64_t index;
    int64_t begin_ns,
        end_ns; /* on the clock that all ranks of a host share: CLOCK_MONOTONIC, or virtual time */
    step_times times;
    int waited_for;           /* the rank waited for longest, or ANATOMY_NOBODY */
    const int64_t *waited_ns; /* [world] for each rank; until the next step */
    int64_t forward_begin_ns, forward_end_ns, backward_begin_ns, backward_end_ns; /* on the device's clock */
    int64_t reduced_ns; /* before this rank's own update: gradients are reduced; stale where it makes none */
    int64_t samples, targets, correct;
    double loss; /* of this rank's batches, in the loss's own reduction; NaN where another rank computes it */
} step_result;

typedef struct trainer trainer;

/* Opens everything up to the engine's handshake (sync_handshake(), sync_connect()). Parameters are zero: see
 * trainer_params(). */
status trainer_open(const trainer_config *config, trainer **out);
/* With the handshakes of all ranks of the job, or where stages are on devices of one rank those of this stage
 * on all ranks; they call it at about the same time. */
status trainer_connect(trainer *t, const sync_blob *handshakes);
/* Where the rank has a remote stage, before the first step: `url` is remote_server_listen()'s. */
status trainer_connect_remote(trainer *t, const remote_config *config, const char *url);
/* What the rank has sent and received: its engine, its stage of a pipeline, its remote stage. */
void trainer_counters(const trainer *t, sync_counters *out);
/* Closes only the engine: memory that peers have mapped stays. */
void trainer_leave(trainer *t);
void trainer_close(trainer **t);

/* Pins memory that batches will come from, until the trainer is closed: a GPU copies directly and
 * asynchronously from it. If that fails the log has the reason, and batches pass through the device's own
 * pinned buffers. */
enum { TRAINER_MAX_BUFFERS = 16 };
void trainer_pin(trainer *t, void *data, size_t bytes);

/* The length of the run, if it is known after trainer_open(). */
void trainer_set_total_steps(trainer *t, int64_t total_steps);
/* Updates that the run has left out so far (--on-nonfinite skip), those before a checkpoint included. */
void trainer_set_skipped(trainer *t, int64_t updates);
int64_t trainer_skipped(const trainer *t);

/* Whether this rank loads the batches of all ranks, its own, or none: what the source must hold. */
typedef enum trainer_load { TRAINER_LOADS_OWN, TRAINER_LOADS_ALL, TRAINER_LOADS_NOTHING } trainer_load;
trainer_load trainer_loads(const trainer *t);

/* Whether rank 0 computes one loss over the outputs of all ranks. */
bool trainer_has_one_loss(const trainer *t);

/* Runs step `index` on the source's batches from `batch_step` on: one, or as many as are accumulated.
 * Gradients are the mean over the micro-batches (a loss that is a sum: their sum), and so is the loss. */
status trainer_step(trainer *t, batch_source *source, int64_t index, int64_t batch_step, step_result *out);

/* The stages of one rank on devices of its process (pipeline_place.devices), each with a trainer: one thread
 * drives them all. Called once with the open trainers, in the order of their stages, and the source of the
 * batches of each; a source may be of several (trainer_share_source()). From then on trainer_begin_step() of
 * the first runs the step of all, and its source is not used; each step is ended on each of them. They are
 * closed after the last step, in any order. */
void trainer_join_devices(trainer *const *stages, batch_source *const *sources, int count);

/* A source that lends the batch of a step any number of times, before the next one is asked for. `of` is
 * borrowed. */
status trainer_share_source(batch_source *of, batch_source **out);

/* The same in two halves. begin: on a GPU whose engine only enqueues it returns before the step has ended;
 * elsewhere it has. end: waits for the end of the oldest step that has begun, checks its loss and its update,
 * and reports it. Up to trainer_depth() steps, with indices that follow each other, may be under way;
 * everything else that is called between steps needs all of them ended. */
status trainer_begin_step(trainer *t, batch_source *source, int64_t index, int64_t batch_step);
status trainer_end_step(trainer *t, step_result *out);
int trainer_depth(const trainer *t); /* 1 or 2 */
int trainer_under_way(const trainer *t);

/* Processor time that the compute thread has spent in steps, up to the end of the last one; between steps.
 * STEP_NOT_MEASURED: kernels run elsewhere. */
int64_t trainer_cpu_ns(trainer *t);

/* The next step begins when it is called: after a pause that belongs to no step. */
void trainer_begin_anew(trainer *t);

/* From now on the gradients of a step are copied to `arena` (host memory, laid out like the gradients) as
 * they become ready, before the engine reduces them; NULL ends it. */
void trainer_keep_gradients(trainer *t, float *arena);

/* Runs the evaluation program over every batch of `source`; sums over this rank's samples. */
typedef struct evaluation_sums {
    double loss, correct, targets;
    bool stopped; /* early: the sums are of some batches only */
} evaluation_sums;
/* Called before each batch: whether to stop there; `function` NULL: never. */
typedef struct evaluation_stop {
    bool (*function)(void *context);
    void *context;
} evaluation_stop;
status trainer_evaluate(trainer *t, batch_source *source, evaluation_stop stop, evaluation_sums *out);

/* --slow: how much longer this rank computes; 1: it is not slowed. */
double trainer_slowdown(const trainer *t);
/* The compute thread drives the engine's communication while it waits, rather than a thread of its own. */
bool trainer_is_inline(const trainer *t);

device *trainer_device(trainer *t);
device_stream *trainer_stream(trainer *t);
param_set *trainer_params(trainer *t);
ledger *trainer_ledger(trainer *t);
sync_engine *trainer_engine(trainer *t);
optimizer *trainer_optimizer(trainer *t);
const step_log *trainer_log(const trainer *t);
const nn_program *trainer_program(const trainer *t);

#endif
