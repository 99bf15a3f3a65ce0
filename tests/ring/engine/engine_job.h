/* Ranks that drive the ring engine's stages as the train loop does, with gradients that are functions of
 * (rank, step, parameter, element) instead of a model's. Policies that cut state among ranks, the last of the
 * table, are tested with models (tests/engines/test_shards.c). */
#ifndef TESTS_RING_ENGINE_ENGINE_JOB_H
#define TESTS_RING_ENGINE_ENGINE_JOB_H

#include "common/net/status_table.h"
#include "ring/ring.h"
#include "tests/common/collectives/ranks.h"

#include <pthread.h>

enum { JOB_WORDS = 8 };

typedef struct engine_job engine_job;

/* One rank. */
typedef struct engine_rank {
    rank_context *context;
    engine_job *job;
    device *device;
    device_stream *stream;
    param_set *params;
    optimizer *optimizer;
    ledger ledger;
    rank_slot slot;
    ring_options options;
    char words[JOB_WORDS][64]; /* which `options` borrows */
    sync_engine *engine;
    int64_t ended_ns;        /* the last step */
    anatomy_figures figures; /* of it */
} engine_rank;

typedef status (*engine_body)(engine_rank *rank);

struct engine_job {
    const char *policy;
    const char *words[JOB_WORDS]; /* options */
    int divide;                   /* shared_divide */
    const char *device;           /* "cpu" unless set */
    bool inline_progress;
    int group_values;         /* of sums over the ranks, as SyncBatchNorm would announce them */
    int64_t stall_timeout_ns; /* 20 s unless set */
    int world;
    engine_body body;
    const void *argument; /* the test's */
    /* differs between ranks: called before the engine is opened */
    void (*prepare)(engine_rank *rank);
    /* set by the run */
    nn_model *model;
    nn_program *program;
    pthread_barrier_t barrier;
    sync_blob handshakes[RANKS_MAX];
};

/* Runs the body on every rank, between connect and close. */
void engine_job_run(engine_job *job, rank_context *results);
/* The same; the test fails with the first error of a rank. */
void engine_job_run_well(engine_job *job);

/* Gradients are whole multiples of the world's size, so that sums and means are exact in every type and
 * order; their mean is the sum of job_value() over the ranks. */
double job_value(int rank, int64_t step, int param, int64_t i);
double job_mean(int world, int64_t step, int param, int64_t i);

/* Parts of a step. A parameter `p` with skip[p] has no gradient; skip may be NULL. The order of readiness is
 * the program's, turned by `turn` places. */
sync_step job_step_of(const engine_rank *r, int64_t index);
status job_begin(engine_rank *r, const sync_step *step);
status job_backward(engine_rank *r, const sync_step *step, const bool *skip, int turn);
status job_finish(engine_rank *r, const sync_step *step);
status job_whole_step(engine_rank *r, int64_t index);

/* STATUS_MISMATCH unless every averaged gradient is job_mean() of the step. */
status job_check_gradients(const engine_rank *r, int64_t step);

/* Element i of a parameter or its gradient, as a number. */
double job_element(const engine_rank *r, const device_memory *arena, int param, int64_t i);
void job_set_element(const engine_rank *r, const device_memory *arena, int param, int64_t i, double value);

#endif
