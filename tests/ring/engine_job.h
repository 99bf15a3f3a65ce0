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
    char words[JOB_WORDS][64]; /* texts of the options, to which `options` points */
    sync_engine *engine;
    int64_t ended_ns;        /* time at which the last step ended */
    anatomy_figures figures; /* anatomy of the last step */
} engine_rank;

typedef status (*engine_body)(engine_rank *rank);

struct engine_job {
    const char *policy;
    const char *words[JOB_WORDS]; /* options as on the command line */
    int divide;                   /* a shared_divide */
    const char *device;           /* "cpu" unless set */
    bool inline_progress;
    /* Number of values in each sum over the ranks, as SyncBatchNorm declares them. */
    int group_values;
    int64_t stall_timeout_ns; /* 20 s unless set */
    int world;
    engine_body body;
    const void *argument; /* argument of `body` */
    /* Called on each rank before its engine is opened. It may make ranks differ. */
    void (*prepare)(engine_rank *rank);
    /* Set by engine_job_run(). */
    nn_model *model;
    nn_program *program;
    pthread_barrier_t barrier;
    sync_blob handshakes[RANKS_MAX];
};

/* Runs the body on every rank, between connect and close. results[rank] gets the error of each rank. */
void engine_job_run(engine_job *job, rank_context *results);
/* Runs the body as engine_job_run() does. The test fails with the first error of a rank. */
void engine_job_run_well(engine_job *job);

/* job_value() returns a value. The gradient of a rank is world * job_value(), so the mean over the ranks,
 * which job_mean() returns, is the sum of the ranks' job_value(). All values are integers, so sums and means
 * are exact in every type and order. */
double job_value(int rank, int64_t step, int param, int64_t i);
double job_mean(int world, int64_t step, int param, int64_t i);

/* Parts of a step. If skip[p] is true, parameter `p` has no gradient. `skip` may be NULL. Gradients become
 * ready in the order of the program, rotated by `turn` positions. */
sync_step job_step_of(const engine_rank *r, int64_t index);
status job_begin(engine_rank *r, const sync_step *step);
status job_backward(engine_rank *r, const sync_step *step, const bool *skip, int turn);
status job_finish(engine_rank *r, const sync_step *step);
status job_whole_step(engine_rank *r, int64_t index);

/* Returns STATUS_MISMATCH unless every averaged gradient equals job_mean() of the step. */
status job_check_gradients(const engine_rank *r, int64_t step);

/* Return or set element i of a parameter in `arena`, which is an arena of parameters or of gradients. */
double job_element(const engine_rank *r, const device_memory *arena, int param, int64_t i);
void job_set_element(const engine_rank *r, const device_memory *arena, int param, int64_t i, double value);

#endif
