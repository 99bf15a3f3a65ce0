/* A remote stage is a process that computes the second half of the model, and updates the parameters of this
 * half. Each rank of the job is a worker, which computes the first half and the loss. A worker sends two
 * requests per micro-batch.
 *
 *   worker                                       remote stage
 *   forward pass of the first half
 *   INPUTS  ------------------------------------>  forward pass of the second half
 *   loss  <-------------------------------------- OUTPUTS
 *   OUTPUT_GRADIENT, with the learning rate  --->  backward pass
 *   backward pass of the first half  <----------- INPUT_GRADIENT
 *                                                 when all workers are done: average, update
 *
 * This is the setup of PyTorch's tutorials on RPC: a worker runs the forward pass of a remote module, with
 * distributed autograd and a distributed optimizer that updates parameters on the remote process.
 *
 * A worker sends one request at a time, and waits for the reply. For each worker the remote stage has
 * separate activations and gradients. The remote stage averages the gradients in the order of the ranks.
 *
 * The header of a request has these fields:
 *
 *   step           step of the worker
 *   key            micro-batch
 *   count, dtype   number and type of the elements; a request has one frame
 *   doubles[0]     learning rate
 *
 * A reply has the step and the key of the request. In the reply, arrived_ns is the time at which the request
 * arrived, and sent_ns is the time at which the reply was sent, on the remote stage's clock. A side that
 * waits sends HEARTBEATs, so the other side notices if the waiting side fails. A side that fails sends
 * FAILED, which ends the job on the other side. The flags of FAILED contain the status, and the frame
 * contains the reason. A side that ends says goodbye. */
#ifndef COMMON_PIPELINE_REMOTE_H
#define COMMON_PIPELINE_REMOTE_H

#include "common/net/status_table.h"
#include "common/net/transport.h"
#include "common/nn/instance.h"
#include "common/sync/engine.h"

enum { REMOTE_URL_MAX = 256 };

/* The configuration of a worker or of the remote stage. */
typedef struct remote_config {
    int worker; /* rank of this worker, or `workers` on the remote stage */
    int workers;
    uint64_t token;      /* token of the connection */
    int64_t frame_bytes; /* result of remote_frame_bytes() */
    int64_t stall_timeout_ns;
    int64_t clock_ahead_ns; /* only on a worker: this clock minus the remote stage's clock */
    net_link link;
    transport_hub *hub; /* hub if both sides are threads of one process, else NULL */
    trace *trace;       /* only on a worker: trace for the messages, or NULL */
} remote_config;

/* Returns the size in bytes of the largest message, if a micro-batch has `batch` samples. `stage` is the
 * model of the remote stage (nn_stage_model()). */
int64_t remote_frame_bytes(const nn_model *stage, int64_t batch, dtype type);

/* ---- the worker's side, called by the compute thread of the worker --------------------------------- */

typedef struct remote_stage remote_stage;

/* Connects to the URL that remote_server_listen() wrote. */
status remote_stage_open(const remote_config *config, const char *url, remote_stage **out);
void remote_stage_close(remote_stage **r);

/* A tensor in host memory. */
typedef struct remote_tensor {
    void *data;
    int64_t count;
    dtype type;
} remote_tensor;

/* Sends the activations of micro-batch `micro` and waits for the output. The anatomy records both messages as
 * transfers, and the time between them as a wait for the remote stage, whose rank is `workers`. Returns
 * STATUS_PEER if the remote stage is lost, has left, or is silent for half the stall limit. If the remote
 * stage reports a failure, returns this failure. */
status remote_stage_forward(remote_stage *r, int64_t step, int64_t micro, remote_tensor input,
                            remote_tensor output, anatomy *a);
/* Sends the gradient of the output and waits for the gradient of the activations. When all workers have
 * completed the last micro-batch of a step, the remote stage updates its parameters. */
status remote_stage_backward(remote_stage *r, int64_t step, int64_t micro, double learning_rate,
                             remote_tensor output_gradient, remote_tensor input_gradient, anatomy *a);

void remote_stage_counters(const remote_stage *r, sync_counters *out);
transport *remote_stage_transport(remote_stage *r); /* for tests */

/* ---- the remote stage ----------------------------------------------------------------------------- */

typedef struct remote_server remote_server;

/* The configuration of the remote stage. All pointers are borrowed. The device computes in host memory. */
typedef struct remote_server_config {
    remote_config remote;
    device *device;
    device_stream *stream;
    const nn_model *model; /* model of the stage */
    int64_t batch;         /* number of samples in each micro-batch */
    int64_t micro_batches; /* number of micro-batches per step of a worker */
    const optimizer_options *optimizer;
    /* If true, gradients are divided by the number of workers before they are added. If false, the sum is
     * divided. */
    bool divide_before;
    uint64_t seed; /* seed of the initial values */
    ledger *ledger;
    rank_slot *slot; /* status slot of the remote stage, or NULL */
} remote_server_config;

/* Opens the remote stage with initial values of the parameters. */
status remote_server_open(const remote_server_config *config, remote_server **out);
void remote_server_close(remote_server **s);

/* Listens on tcp://HOST:PORT, ipc://@NAME or inproc://NAME. `*` as HOST means all network interfaces, and `*`
 * as PORT means any free port. Writes the URL for workers to bound[REMOTE_URL_MAX]. */
status remote_server_listen(remote_server *s, const char *url, char *bound);

/* Replies to requests until all workers have said goodbye. If the remote stage fails, sends the failure to
 * all workers. Returns STATUS_PEER if a worker is lost, leaves before the other workers, or is silent for the
 * stall limit. */
status remote_server_run(remote_server *s);

int64_t remote_server_steps(const remote_server *s);  /* number of updates so far */
transport *remote_server_transport(remote_server *s); /* for tests */

#endif
