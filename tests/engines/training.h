/* Trains a model through an engine for tests. Ranks are threads of this process, and communicate over
 * in-process transport unless the configuration says otherwise. Batches are functions of the step and of the
 * sample's index in the global batch. With batches of b samples, rank r has samples r * b to (r + 1) * b - 1
 * of every step's global batch. */
#ifndef TESTS_ENGINES_TRAINING_H
#define TESTS_ENGINES_TRAINING_H

#include "common/sync/engine.h"
#include "harness/train/local_ranks.h"
#include "harness/train/trainer.h"
#include "models/models.h"

typedef struct training training;

typedef struct training_config {
    const char *model;
    int64_t image, classes;     /* Sizes of images and number of classes, or 0 for those of the model. */
    const model_options *sizes; /* Sizes of a model that is trained instead of `model`, or NULL. */
    /* Number of stages. If it is above 1, each rank is a stage, and the ranks form world / stages
     * replicas. */
    int stages;
    /* True if each of the `world` ranks has all stages, each stage on a separate device. */
    bool on_devices;
    int schedule;       /* A pipeline_schedule. Stages on devices use the sequential one. */
    int64_t accumulate; /* Number of micro-batches in a step. Each has `batch` samples. */
    const sync_engine_type *engine;
    const char *device;  /* Name of the device, "cpu" unless set. */
    const char *policy;  /* Name of the policy. If it is not set, the engine's default. */
    const char *options; /* Options of the engine, such as "--servers 2 --payload zmq". */
    int world;           /* Number of ranks, 1 unless set. */
    int64_t batch;       /* samples per rank */
    int64_t first;       /* Index in the global batch of rank 0's first sample. */
    bool integers; /* True if parameters, inputs and targets are small integers. Otherwise they are drawn from
                      [-1, 1). */
    bool sum_loss;
    /* True if the ranks have no transport hub, so that they connect as separate processes do. */
    bool processes;
    bool inline_progress;
    int divide;                  /* A shared_divide. */
    bool repeats;                /* True if all batches are the same. */
    optimizer_options optimizer; /* SGD unless set */
} training_config;

/* One rank, open and connected. */
typedef struct training_rank {
    training *training;
    local_ranks *group;
    int rank;
    trainer *trainer;
    batch_source *source;
    int64_t next;         /* Number of the next step. */
    pipeline_place place; /* Position of the rank in its pipeline, if the model has stages. */
    step_result last;     /* Result of the last stage, if all stages are on devices of this rank. */
    trainer *stages[NN_MOST_STAGES]; /* [stage_count] All stages, if they are on devices of this rank. The
                                        first is `trainer`. */
    pipeline_place places[NN_MOST_STAGES];
    int stage_count;
} training_rank;

typedef status (*training_function)(training_rank *r);

/* Runs `function` on every rank. If it fails, the message names the run. */
status training_run(const training_config *config, void *context, training_function function);
void *training_context(const training_rank *r);

status training_step(training_rank *r);
/* Waits until all ranks have called this function. */
status training_barrier(training_rank *r);

/* The averaged gradient of the first step: the gradients of all parameters in PyTorch's layout, one after
 * another. The caller frees `values`. */
typedef struct training_average {
    float *values;
    int64_t elements;
} training_average;
status training_gradient(const training_config *config, training_average *out);

#endif
