/* A job of the parameter server for tests: ranks that drive an engine's stages as the train loop does, with
 * gradients that are functions of (rank, round, element), and what one plain loop makes of the same. */
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
    bool processes;      /* no hub: ranks do not know that they are threads */
    bool inline_progress;
    bool sync_batchnorm;
    int divide;   /* shared_divide */
    double scale; /* of gradients; 1 unless set: integers, of which every sum is exact */
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
    void *context; /* the test's */
} job;

/* A rank of it. Every rank is open between job_rank_open() and job_rank_close(). */
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
    char error[256]; /* the first thing that was not as expected; "" for none */
} job_rank;

void job_open(const job_config *config, job *out);
void job_close(job *j);

/* Opens everything up to the engine's handshake; parameters are job_initial(). */
status job_rank_open(job *j, int rank, job_rank *out);
void job_rank_close(job_rank *r);

/* Runs `function` on every rank as a thread, between set-up and a barrier before the end (none where servers
 * are members, as threads too: they serve until the ranks leave). An `error` of a
 * rank is a failure: STATUS_MISMATCH. */
typedef status (*job_function)(local_ranks *group, job_rank *rank);
status job_run(job *j, job_function function);

/* A server of its own: member `member` >= world. `exchange` as in ps_server_main(). */
status job_serve(job *j, int member,
                 status (*exchange)(void *context, sync_blob mine, const sync_blob **handshakes),
                 void *exchange_context);

/* One step with learning rate 0.125. Forward passes write job_buffer(); under sync all begin with rank 0's.
 */
status job_step(job_rank *r);
/* Its parts, for tests that look in between. */
sync_step job_begin(const job_rank *r);
status job_forward(job_rank *r, const sync_step *step);
status job_backward(job_rank *r, const sync_step *step);

/* Element `i` of parameter `param`: small integers. */
double job_gradient(int rank, int64_t round, int param, int64_t i);
double job_initial(int param, int64_t i);
/* What `rank`'s forward pass of step `step` leaves in a buffer; -1: what it starts from. */
double job_buffer(int rank, int64_t step, int buffer);
/* Notes an error unless all of the rank's buffers are job_buffer(of_rank, step). */
void job_expect_buffers(job_rank *r, int of_rank, int64_t step);
/* Likewise unless its parameters are those of `set`. */
void job_expect_params(job_rank *r, const param_set *set);

/* What plain loops make of `rounds` rounds: sums in rank order, a division, the optimizer. */
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
