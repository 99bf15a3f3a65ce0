/* One rank of a job: device, model, parameters, optimizer, engine and data put together, and the train
 * loop that drives the engine's stages.
 *
 * A trainer belongs to one thread. On a real device a step runs through; on the virtual device
 * trainer_step() returns STATUS_AGAIN where a stream waits, and is called again with the same step. */
#ifndef HARNESS_TRAIN_TRAINER_H
#define HARNESS_TRAIN_TRAINER_H

#include "common/data/batch_source.h"
#include "common/net/status_table.h"
#include "common/net/transport.h"
#include "common/nn/instance.h"
#include "common/sync/engine.h"

enum { TRAINER_MAX_SIZES = 4 };

typedef struct trainer_config {
    int rank, world, local_rank;
    uint64_t job_token;
    const char *device; /* "cpu" */
    int precision;      /* device_precision */
    bool share_gpu;     /* ranks beyond the GPUs share them */
    bool benchmark;     /* times the algorithms of cuDNN */
    bool prefetch;      /* a batch is copied to the device ahead of its step, where that has a copy engine */
    bool cuda_graph;    /* records each pass and launches it as a whole; the engine launches nothing within one */
    int threads;
    void *simulation;       /* NULL but for sim devices */
    const nn_model *model;  /* borrowed, as everything below */
    const sync_engine_type *engine;
    const void *engine_options;
    const char *policy;
    const optimizer_options *optimizer;
    int64_t batch;                     /* samples a rank and step */
    int64_t sizes[TRAINER_MAX_SIZES];  /* further batch sizes that occur: an epoch's last; 0 ends the list */
    int64_t total_steps;               /* of the run: for the learning-rate schedule */
    bool masked_loss;                  /* leave rows without targets out of the head */
    bool sum_loss;                     /* the loss is a sum over targets, not their mean */
    rank_slot *slot;
    int64_t stall_timeout_ns;
    bool inline_progress;
    bool separate_phases;              /* the device is waited for between phases, as by who times them apart */
    int64_t accumulate;                /* micro-batches a step; 0 counts as 1 */
    int divide;                        /* shared_divide */
    const char *slow;                  /* straggler.h: "RANK:FACTOR", or NULL */
    net_link link;                     /* emulated between the ranks, or zero */
    struct trace *trace;               /* NULL: nothing is recorded */
    bool *refused;                     /* set by trainer_open(): the device had no memory for something; or NULL */
    transport_hub *hub;                /* of ranks that are threads of one process; NULL: every rank has a process */
} trainer_config;

enum { STEP_NOT_MEASURED = -1 };

/* What a step took, in ns; STEP_NOT_MEASURED where nobody looks. The compute thread's waits are in `exposed` and
 * `waiting` and in no other phase: as far as communication was in flight and not hidden it was exposed, and the rest
 * was waiting for ranks that come later. So exposed + hidden <= communication. An update on a
 * server's thread is in `optimizer`, beside the others, which add up to the total without it. */
typedef struct step_times {
    int64_t total, load, forward, backward, exposed, waiting, optimizer, other;
    int64_t copy;          /* of the batch to the device, ahead of its step: what is not in `load` was hidden */
    int64_t communication; /* in flight, whatever computation did meanwhile */
    int64_t hidden;        /* of it, behind computation */
    int64_t first_to_backward_end; /* PyTorch's overlap: from the start of the first all-reduce */
    int64_t last_bucket;   /* from its start to its end */
} step_times;

typedef struct step_result {
    int64_t index, begin_ns, end_ns;
    step_times times;
    int64_t forward_begin_ns, forward_end_ns, backward_begin_ns, backward_end_ns; /* on the device's clock */
    int64_t reduced_ns; /* before this rank's own update: gradients are reduced; stale where it makes none */
    int64_t samples, targets, correct;
    double loss; /* of this rank's batches, in the loss's own reduction; NaN where another rank computes it */
} step_result;

typedef struct trainer trainer;

/* Opens everything up to the engine's handshake. Parameters are zero: see trainer_params(). */
status trainer_open(const trainer_config *config, trainer **out);
/* What the peers must know; and what all ranks offered. */
status trainer_handshake(trainer *t, sync_blob *out);
status trainer_connect(trainer *t, const sync_blob *handshakes);
/* Ends the engine alone: memory that peers have open stays. */
void trainer_leave(trainer *t);
void trainer_close(trainer **t);

/* Batches will come from this memory, which stays until the trainer is closed: a GPU copies straight from it, behind the
 * host. Where it cannot be pinned the log says why, and batches pass through the device's own pinned buffers. */
enum { TRAINER_MAX_BUFFERS = 16 };
void trainer_pin(trainer *t, void *data, size_t bytes);

/* The length of the run, where it is known later than the rest of the configuration. */
void trainer_set_total_steps(trainer *t, int64_t total_steps);
/* Updates that the run has left out so far (--on-nonfinite skip), those before a checkpoint included. */
void trainer_set_skipped(trainer *t, int64_t updates);
int64_t trainer_skipped(const trainer *t);

/* Whether this rank loads the batches of all ranks, its own, or none: what the source must hold. */
typedef enum trainer_load { TRAINER_LOADS_OWN, TRAINER_LOADS_ALL, TRAINER_LOADS_NOTHING } trainer_load;
trainer_load trainer_loads(const trainer *t);

/* Whether losses are computed on rank 0 alone, over the outputs of all ranks. */
bool trainer_has_one_loss(const trainer *t);

/* Runs step `index` on the source's batches from `batch_step` on: one, or as many as are accumulated. Gradients
 * are the mean over the micro-batches (a loss that is a sum: their sum), and so is the loss. */
status trainer_step(trainer *t, batch_source *source, int64_t index, int64_t batch_step, step_result *out);

/* All ranks' parameters and buffers are those of the stated consistency. */
status trainer_flush(trainer *t);

/* Runs the evaluation program over every batch of `source`; sums over this rank's samples. */
typedef struct evaluation_sums {
    double loss, correct, targets;
    bool stopped; /* early: the sums are of some batches only */
} evaluation_sums;
/* Asked before every batch whether to stop there; `function` NULL: never. */
typedef struct evaluation_stop {
    bool (*function)(void *context);
    void *context;
} evaluation_stop;
status trainer_evaluate(trainer *t, batch_source *source, evaluation_stop stop, evaluation_sums *out);

device *trainer_device(trainer *t);
device_stream *trainer_stream(trainer *t);
param_set *trainer_params(trainer *t);
ledger *trainer_ledger(trainer *t);
sync_engine *trainer_engine(trainer *t);
optimizer *trainer_optimizer(trainer *t);
const nn_program *trainer_program(const trainer *t);

#endif
