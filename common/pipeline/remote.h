/* A remote stage: a process that has the second half of the model, its parameters and their optimizer. Each
 * rank of the job is a worker: it has the first half and the loss, and sends two requests per micro-batch.
 *
 *   worker                                       remote stage
 *   forward pass of the first half
 *   INPUTS  ------------------------------------>  forward pass of the second half
 *   loss  <-------------------------------------- OUTPUTS
 *   OUTPUT_GRADIENT, with the learning rate  --->  backward pass
 *   backward pass of the first half  <----------- INPUT_GRADIENT
 *                                                 after the last one of all workers: average, update
 *
 * (PyTorch's tutorials on RPC: a worker that runs forward on a remote module, with distributed autograd, and
 * a distributed optimizer that updates parameters where they are.) A worker has one request at a time, and
 * waits for its reply. Several workers share the stage: each has activations and gradients of its own there,
 * which are added in the order of the ranks.
 *
 * step: the request's step, key: its micro-batch, count and dtype: of its one frame, doubles[0]: the learning
 * rate. A reply repeats step and key; sent_ns and arrived_ns are on the remote stage's clock. Who waits sends
 * HEARTBEATs now and then, so that the other side finds a missing message. FAILED ends the job on the other
 * side: flags is the status, the frame the reason. A peer that says goodbye has ended. */
#ifndef COMMON_PIPELINE_REMOTE_H
#define COMMON_PIPELINE_REMOTE_H

#include "common/net/status_table.h"
#include "common/net/transport.h"
#include "common/nn/instance.h"
#include "common/sync/engine.h"

enum { REMOTE_URL_MAX = 256 };

/* What both sides have alike but for the first line. */
typedef struct remote_config {
    int worker; /* this rank; on the remote stage `workers` */
    int workers;
    uint64_t token;      /* of the connection */
    int64_t frame_bytes; /* remote_frame_bytes() */
    int64_t stall_timeout_ns;
    int64_t clock_ahead_ns; /* of a worker: this clock less the remote stage's */
    net_link link;
    transport_hub *hub; /* where both are threads of one process; or NULL */
    trace *trace;       /* of a worker: where its messages are recorded; or NULL */
} remote_config;

/* Of the largest message of a stage, as a model of its own (stages.h), with `batch` samples. */
int64_t remote_frame_bytes(const nn_model *stage, int64_t batch, dtype type);

/* ---- the worker's side: for its compute thread, which waits --------------------------------------- */

typedef struct remote_stage remote_stage;

/* `url` is remote_server_listen()'s. */
status remote_stage_open(const remote_config *config, const char *url, remote_stage **out);
void remote_stage_close(remote_stage **r);

/* Host memory. */
typedef struct remote_tensor {
    void *data;
    int64_t count;
    dtype type;
} remote_tensor;

/* Sends the activations of micro-batch `micro`, and waits for the output. In the anatomy the messages are
 * transfers, and the wait between them is for rank `workers`. STATUS_PEER where the remote stage is lost, has
 * left, or is silent for half the stall limit; what ended it, where it says so. */
status remote_stage_forward(remote_stage *r, int64_t step, int64_t micro, remote_tensor input,
                            remote_tensor output, anatomy *a);
/* Sends the gradient of the output, and waits for that of the activations. After the last micro-batch of a
 * step the remote stage updates its parameters. */
status remote_stage_backward(remote_stage *r, int64_t step, int64_t micro, double learning_rate,
                             remote_tensor output_gradient, remote_tensor input_gradient, anatomy *a);

void remote_stage_counters(const remote_stage *r, sync_counters *out);
transport *remote_stage_transport(remote_stage *r); /* for tests */

/* ---- the remote stage ----------------------------------------------------------------------------- */

typedef struct remote_server remote_server;

/* Everything is borrowed. Device: its memory is the host's. */
typedef struct remote_server_config {
    remote_config remote;
    device *device;
    device_stream *stream;
    const nn_model *model; /* of the stage */
    int64_t batch;         /* samples of each micro-batch */
    int64_t micro_batches; /* per step and worker */
    const optimizer_options *optimizer;
    bool divide_before; /* gradients are divided by the number of workers before they are added; else their
                           sum is */
    uint64_t seed;      /* of the initial values */
    ledger *ledger;
    rank_slot *slot; /* or NULL */
} remote_server_config;

/* Parameters have their initial values. */
status remote_server_open(const remote_server_config *config, remote_server **out);
void remote_server_close(remote_server **s);

/* tcp://HOST:PORT (`*`: any), ipc://@NAME or inproc://NAME; bound[REMOTE_URL_MAX]: what workers need to
 * connect. */
status remote_server_listen(remote_server *s, const char *url, char *bound);

/* Replies to requests until all workers have said goodbye. A failure is sent to all workers: STATUS_PEER
 * where one of them is lost, leaves before the others, or is silent for the stall limit. */
status remote_server_run(remote_server *s);

int64_t remote_server_steps(const remote_server *s);  /* updates so far */
transport *remote_server_transport(remote_server *s); /* for tests */

#endif
