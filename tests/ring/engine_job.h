/* Ranks that call the stages of the ring engine as the train loop does. Gradients do not come from a model:
 * each is a function of rank, step, parameter and element. tests/engines/test_shards.c tests the policies
 * that shard state, with models. */
#ifndef TESTS_RING_ENGINE_JOB_H
#define TESTS_RING_ENGINE_JOB_H

#include "common/net/status_table.h"
#include "ring/ring.h"
#include "tests/common/collectives/ranks.h"

#include <pthread.h>

enum { JOB_WORDS = 8 };

typedef struct engine_job engine_job;

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
    char words[JOB_WORDS][64]; /* text of the options, which `options` borrows */
    sync_engine *engine;
    int64_t ended_ns;        /* end of the last step */
    anatomy_figures figures; /* figures of the last step */
} engine_rank;

typedef status (*engine_body)(engine_rank *rank);

struct engine_job {
    const char *policy;
    const char *words[JOB_WORDS]; /* option text */
    int divide;                   /* shared_divide */
    const char *device;           /* "cpu" unless set */
    bool inline_progress;
    int group_values;         /* values of each sum over the ranks, as SyncBatchNorm would declare them */
    int64_t stall_timeout_ns; /* 20 s unless set */
    int world;
    engine_body body;
    const void *argument; /* argument of `body` */
    /* Called on each rank before its engine is opened, to make ranks differ. */
    void (*prepare)(engine_rank *rank);
    /* Set by engine_job_run(). */
    nn_model *model;
    nn_program *program;
    pthread_barrier_t barrier;
    sync_blob handshakes[RANKS_MAX];
};

/* Runs the body on every rank, between connect and close. results[world] have the errors. */
void engine_job_run(engine_job *job, rank_context *results);
/* Runs the body as engine_job_run() does. The test fails with the first error of a rank. */
void engine_job_run_well(engine_job *job);

/* Return a value, and the mean gradient. The gradient of a rank is world * job_value(), so the mean over the
 * ranks is the sum of job_value(). All values are integers, so sums and means are exact in every type and
 * order. */
double job_value(int rank, int64_t step, int param, int64_t i);
double job_mean(int world, int64_t step, int param, int64_t i);

/* Parts of a step. A parameter `p` has no gradient if skip[p] is true; `skip` may be NULL. Gradients become
 * ready in the order of the program, rotated by `turn` places. */
sync_step job_step_of(const engine_rank *r, int64_t index);
status job_begin(engine_rank *r, const sync_step *step);
status job_backward(engine_rank *r, const sync_step *step, const bool *skip, int turn);
status job_finish(engine_rank *r, const sync_step *step);
status job_whole_step(engine_rank *r, int64_t index);

/* Returns STATUS_MISMATCH unless every averaged gradient equals job_mean() of the step. */
status job_check_gradients(const engine_rank *r, int64_t step);

/* Return or set element i of a parameter in `arena`, which has parameters or gradients. */
double job_element(const engine_rank *r, const device_memory *arena, int param, int64_t i);
void job_set_element(const engine_rank *r, const device_memory *arena, int param, int64_t i, double value);

#endif
