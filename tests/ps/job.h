/* A job of the parameter server for tests. Ranks call the stages of an engine as the train loop does.
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
    const char *options; /* "--servers 2 --payload zmq" */
    bool processes;      /* no transport hub: ranks connect as processes do */
    bool inline_progress;
    bool sync_batchnorm;
    int divide;   /* shared_divide */
    double scale; /* factor of gradients, 1 unless set. Scale 1 gives integers, whose sums are exact. */
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
    int64_t next;    /* step */
    char error[256]; /* first mismatch, or "" */
} job_rank;

void job_open(const job_config *config, job *out);
void job_close(job *j);

/* Opens the device and the engine, up to the handshake. Parameters are job_initial(). */
status job_rank_open(job *j, int rank, job_rank *out);
void job_rank_close(job_rank *r);

/* Runs `function` on every rank in a thread, between set-up and a barrier. If the job has separate servers,
 * they are threads, too. Servers end when the ranks leave, so there is no barrier. Returns STATUS_MISMATCH if
 * a rank sets `error`. */
typedef status (*job_function)(local_ranks *group, job_rank *rank);
status job_run(job *j, job_function function);

/* Runs a separate server, member `member` >= world. `exchange` is the function of ps_server_main(). */
status job_serve(job *j, int member,
                 status (*exchange)(void *context, sync_blob mine, const sync_blob **handshakes),
                 void *exchange_context);

/* Runs one step with learning rate 0.125. The forward pass writes job_buffer(). Under policy sync it first
 * checks that the buffers are rank 0's. */
status job_step(job_rank *r);
/* Parts of job_step(), for tests that check between them. */
sync_step job_begin(const job_rank *r);
status job_forward(job_rank *r, const sync_step *step);
status job_backward(job_rank *r, const sync_step *step);

/* Return element `i` of parameter `param` or its gradient, a small integer. */
double job_gradient(int rank, int64_t round, int param, int64_t i);
double job_initial(int param, int64_t i);
/* Returns the value that the forward pass of `rank` in step `step` writes to a buffer. Step -1 gives the
 * initial value. */
double job_buffer(int rank, int64_t step, int buffer);
/* Set `error` unless all buffers of the rank are job_buffer(of_rank, step), or all parameters equal `set`. */
void job_expect_buffers(job_rank *r, int of_rank, int64_t step);
void job_expect_params(job_rank *r, const param_set *set);

/* The same steps in plain loops: sums in rank order, a division, the optimizer. */
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
