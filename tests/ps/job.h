/* A job of the parameter server for tests. Ranks call the functions of an engine as the train loop does.
 * Gradients are functions of rank, round, parameter and element. job_reference computes the same steps with
 * plain loops. */
#ifndef TESTS_PS_JOB_H
#define TESTS_PS_JOB_H

#include "common/base/clock.h"
#include "common/net/status_table.h"
#include "common/net/transport.h"
#include "common/sync/engine.h"
#include "harness/train/local_ranks.h"
#include "ps/policy.h"
#include "ps/ps.h"

typedef struct job_config {
    int world;
    const char *device;  /* "reference" unless set */
    const char *policy;  /* "sync" unless set */
    const char *options; /* options as on the command line, like "--servers 2 --payload zmq" */
    /* True if there is no transport hub, so that ranks connect as separate processes do. */
    bool processes;
    bool inline_progress;
    bool sync_batchnorm;
    int divide; /* a shared_divide */
    /* Factor of all gradients, 1 unless set. If it is 1, gradients are integers, whose sums are exact. */
    double scale;
    optimizer_options optimizer;
    int64_t stall_timeout_ns; /* 60 s unless set */
} job_config;

typedef struct job {
    job_config config;
    ps_options options;
    nn_model *model;
    nn_program *program;
    status_table *table;
    transport_hub *hub;
    uint64_t token;
    void *context; /* context of the test */
} job;

/* A rank of the job, between job_rank_open() and job_rank_close(). */
typedef struct job_rank {
    job *job;
    int rank;
    device *device;
    device_stream *stream;
    param_set *params;
    optimizer *optimizer;
    ledger ledger;
    sync_engine *engine;
    int64_t next;    /* number of the next step */
    char error[256]; /* the first mismatch that the rank found, or "" */
} job_rank;

void job_open(const job_config *config, job *out);
void job_close(job *j);

/* Opens the device and the engine, up to the handshake. The parameters have the values of job_initial(). */
status job_rank_open(job *j, int rank, job_rank *out);
void job_rank_close(job_rank *r);

/* Runs `function` on every rank in a thread, after the set-up and before a barrier. Separate servers are also
 * threads. They end when the ranks leave, and do not take part in the barrier. Returns STATUS_MISMATCH if a
 * rank sets `error`. */
typedef status (*job_function)(local_ranks *group, job_rank *rank);
status job_run(job *j, job_function function);

/* Runs the separate server with the number `member` >= world. `exchange` is the function of
 * ps_server_main(). */
status job_serve(job *j, int member,
                 status (*exchange)(void *context, sync_blob mine, const sync_blob **handshakes),
                 void *exchange_context);

/* Runs one step with learning rate 0.125. The forward pass writes job_buffer(). Under policy sync it first
 * checks that the buffers are rank 0's. */
status job_step(job_rank *r);
/* The parts of job_step(), for tests that check something between them. */
sync_step job_begin(const job_rank *r);
status job_forward(job_rank *r, const sync_step *step);
status job_backward(job_rank *r, const sync_step *step);

/* Return element `i` of parameter `param` or its gradient, a small integer. */
double job_gradient(int rank, int64_t round, int param, int64_t i);
double job_initial(int param, int64_t i);
/* Returns the value that the forward pass of `rank` in step `step` writes to a buffer. Step -1 gives the
 * initial value. */
double job_buffer(int rank, int64_t step, int buffer);
/* Check that all buffers of the rank equal job_buffer(of_rank, step), or that all parameters equal `set`. If
 * not, they set `error`. */
void job_expect_buffers(job_rank *r, int of_rank, int64_t step);
void job_expect_params(job_rank *r, const param_set *set);

/* Computes the same steps in plain loops: a sum in rank order, a division, and the optimizer. */
typedef struct job_reference {
    device *device;
    device_stream *stream;
    param_set *params;
    optimizer *optimizer;
    ledger ledger;
} job_reference;
void job_reference_open(const job *j, job_reference *out);
void job_reference_step(const job *j, job_reference *r, int64_t round);
void job_reference_close(job_reference *r);

double job_param(const param_set *set, const void *arena, int param, int64_t i);
void job_set(const param_set *set, void *arena, int param, int64_t i, double value);

#endif
