/* A model trained through an engine for tests: ranks as threads of this process, over in-process transport
 * unless asked otherwise, on batches that are functions of (step, place in the global batch). Rank r of a
 * world with batch b has samples r * b to (r + 1) * b - 1 of every step's global batch. */
#ifndef TESTS_ENGINES_TRAINING_H
#define TESTS_ENGINES_TRAINING_H

#include "common/sync/engine.h"
#include "harness/train/local_ranks.h"
#include "harness/train/trainer.h"
#include "models/models.h"

typedef struct training training;

typedef struct training_config {
    const char *model;
    int64_t image, classes;     /* the model's own unless set */
    const model_options *sizes; /* instead of these and the name; or NULL */
    int stages;                 /* above 1: ranks are the stages of world / stages replicas */
    bool on_devices;            /* each of the `world` ranks has all stages, on devices of its own */
    int schedule;               /* pipeline_schedule; on devices sequential */
    int64_t accumulate;         /* micro-batches per step; batch is that of each */
    const sync_engine_type *engine;
    const char *device;  /* cpu unless set */
    const char *policy;  /* unless set: none, sync, ddp */
    const char *options; /* "--servers 2 --payload zmq" */
    int world;           /* 1 unless set */
    int64_t batch;       /* samples per rank */
    int64_t first;       /* place of rank 0's first sample in the global batch */
    bool integers;       /* parameters, inputs and targets are small integers; else drawn from [-1, 1) */
    bool sum_loss;
    bool processes; /* no hub: ranks do not know that they are threads */
    bool inline_progress;
    int divide;                  /* shared_divide */
    bool repeats;                /* every batch is the first */
    optimizer_options optimizer; /* SGD unless set */
} training_config;

/* One rank, open and connected. */
typedef struct training_rank {
    training *training;
    local_ranks *group;
    int rank;
    trainer *trainer;
    batch_source *source;
    int64_t next;                    /* step */
    pipeline_place place;            /* with stages */
    step_result last;                /* on devices: of the last stage */
    trainer *stages[NN_MOST_STAGES]; /* [stage_count] on devices: of all of them, the first is `trainer` */
    pipeline_place places[NN_MOST_STAGES];
    int stage_count;
} training_rank;

typedef status (*training_function)(training_rank *r);

/* Runs `function` on every rank; the message of a failure names the run. */
status training_run(const training_config *config, void *context, training_function function);
void *training_context(const training_rank *r);

status training_step(training_rank *r);
/* All have come here. */
status training_barrier(training_rank *r);

/* The averaged gradient of one step from the initial parameters: all parameters in PyTorch's layout, one
 * after another. The caller frees `values`. */
typedef struct training_average {
    float *values;
    int64_t elements;
} training_average;
status training_gradient(const training_config *config, training_average *out);

#endif
