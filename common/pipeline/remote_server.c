/* The process of a remote stage. One thread replies to all workers. */
#include "common/pipeline/remote_impl.h"

#include "common/memory/plan.h"
#include "common/net/status_table.h"
#include "common/optim/optimizer.h"
#include "common/reduce/reduce.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The state that the remote stage keeps for one worker. It contains the activations of a micro-batch between
 * the worker's two requests, the gradients, and the buffers (running statistics). The buffers of the first
 * worker are also the buffers of the model, as in PyTorch's DistributedDataParallel. */
typedef struct client {
    param_set params; /* the stage's parameters, with the gradients and buffers of this worker */
    device_memory grads, buffers;
    nn_memory memory;
    nn_instance *instance;
    transport_ticket ticket;
    transport_message request; /* request that has not been answered */
    bool has_request;
    int64_t arrived_ns; /* time at which the request arrived */
    int64_t silent_ns;  /* time since the last message of any kind */
    int64_t step, micro;
    bool in_backward; /* true if the next request must ask for the backward pass */
} client;

struct remote_server {
    remote_server_config config;
    transport *transport;
    net_adapter adapter;
    nn_program *program;
    param_set *params;
    optimizer *optimizer;
    client *clients; /* [workers] the index is the number of the link */
    device_memory workspace;
    const void **sources; /* [workers] gradients of the workers, for average() */
    int64_t step;         /* number of updates so far */
    int finished;         /* number of workers that have finished the last backward pass of this step */
    double learning_rate;
    remote_watch watch;
    transport_ticket failure_ticket;
    error_record failure;
};

static int workers(const remote_server *s)
{
    return s->config.remote.workers;
}

static int64_t patience(const remote_server *s)
{
    return s->config.remote.stall_timeout_ns;
}

/* ---- the passes --------------------------------------------------------------------------------- */

static status run(remote_server *s, client *c, nn_pass pass)
{
    nn_observer observer = {0};
    op_scalars scalars = {.accumulate = c->micro > 0, .loss_normalizer = 1};
    TRY(nn_run(c->instance, pass, pass, &observer, &scalars, s->config.ledger));
    return device_stream_synchronize(s->config.stream);
}

/* Averages the gradients of the workers in the order of their ranks. The result is in the first worker's
 * arena. */
static void average(remote_server *s)
{
    int n = workers(s);
    double before = s->config.divide_before ? n : 1, after = s->config.divide_before ? 1 : n;
    for (int w = 0; w < n; w++) s->sources[w] = s->clients[w].params.grads.data;
    if (n > 1)
        reduce_average(s->params->type, s->params->grads.data, s->sources, n, s->params->arena_elements,
                       before, after);
}

static status check_update(remote_server *s)
{
    const char *name;
    piece_list all = param_set_pieces(s->params, 0, s->params->model->param_count);
    if (!optimizer_found_nonfinite(s->optimizer) || !optimizer_reports_nonfinite(s->optimizer))
        return STATUS_OK;
    TRY(sync_find_nonfinite(s->optimizer, s->config.stream, s->params, s->params->grads.data, all, &name));
    return sync_report_nonfinite(s->optimizer, s->step, SYNC_THIS_RANK, name);
}

static status update(remote_server *s)
{
    piece_list all = param_set_pieces(s->params, 0, s->params->model->param_count);
    average(s);
    optimizer_begin_state(s->optimizer);
    TRY(optimizer_update(s->optimizer, s->config.stream, s->params->params.data, s->params->grads.data, all,
                         s->step, s->learning_rate, 1.0));
    TRY(device_stream_synchronize(s->config.stream));
    TRY(check_update(s));
    s->finished = 0;
    s->step++;
    if (s->config.slot) rank_slot_step(s->config.slot, s->step, clock_now_ns());
    return STATUS_OK;
}

/* ---- requests ----------------------------------------------------------------------------------- */

static status receive(remote_server *s, bool *worked)
{
    for (;;) {
        transport_message m;
        status rc = transport_receive(s->transport, &m);
        if (rc == STATUS_AGAIN) return STATUS_OK;
        TRY(rc);
        int worker = transport_link_peer(s->transport, m.link);
        if (worker >= workers(s)) return fail(STATUS_PROTOCOL, "a remote stage has sent itself a message");
        client *c = &s->clients[worker];
        *worked = true;
        c->arrived_ns = clock_now_ns();
        c->silent_ns = 0;
        bool is_request = m.header.kind != MESSAGE_HEARTBEAT;
        if (is_request && !c->has_request) {
            c->request = m;
            c->has_request = true;
            continue;
        }
        transport_release(s->transport, &m);
        if (is_request) return fail(STATUS_PROTOCOL, "rank %d: expected one request at a time", worker);
    }
}

static status take_frame(remote_server *s, int worker, int value)
{
    client *c = &s->clients[worker];
    const message_header *h = &c->request.header;
    const nn_value *v = &s->program->values[value];
    message_kind expected = c->in_backward ? MESSAGE_OUTPUT_GRADIENT : MESSAGE_INPUTS;
    if (h->kind != expected || h->step != c->step || h->key != c->micro)
        return fail(STATUS_PROTOCOL, "rank %d: expected %s of step %" PRId64 ", got %s of step %" PRId64,
                    worker, message_kind_name(expected), c->step, message_kind_name(h->kind), h->step);
    if (h->frames != 1 || h->dtype != (int)v->type || (int64_t)c->request.frames[0].bytes != v->bytes)
        return fail(STATUS_PROTOCOL, "rank %d: expected %" PRId64 " bytes of %s, got %zu", worker, v->bytes,
                    message_kind_name(expected), h->frames > 0 ? c->request.frames[0].bytes : 0);
    TRY(remote_await_sent(s->transport, &c->ticket, patience(s)));
    memcpy(nn_instance_value(c->instance, value), c->request.frames[0].data, (size_t)v->bytes);
    s->learning_rate = h->doubles[0];
    transport_release(s->transport, &c->request);
    c->has_request = false;
    return STATUS_OK;
}

static status reply(remote_server *s, int worker, message_kind kind, int value)
{
    client *c = &s->clients[worker];
    const nn_value *v = &s->program->values[value];
    message_frame frame = {nn_instance_value(c->instance, value), (size_t)v->bytes};
    message_header h = {.kind = kind,
                        .step = c->step,
                        .key = c->micro,
                        .count = v->bytes / dtype_size(v->type),
                        .dtype = (int)v->type,
                        .arrived_ns = c->arrived_ns,
                        .sent_ns = clock_now_ns()};
    int64_t deadline = h.sent_ns + patience(s);
    for (bool ignored;;) {
        status rc = transport_send(s->transport, worker, &h, &frame, 1, &c->ticket);
        if (rc != STATUS_AGAIN) return rc;
        if (clock_now_ns() >= deadline) return fail(STATUS_PEER, "rank %d was not reached", worker);
        TRY(transport_wait(s->transport, deadline));
        TRY(receive(s, &ignored));
    }
}

static status forward(remote_server *s, int worker)
{
    client *c = &s->clients[worker];
    TRY(take_frame(s, worker, s->program->input_value));
    TRY(run(s, c, NN_FORWARD));
    c->in_backward = true;
    return reply(s, worker, MESSAGE_OUTPUTS, s->program->output_value);
}

static status backward(remote_server *s, int worker)
{
    client *c = &s->clients[worker];
    const nn_value *v = &s->program->values[s->program->output_gradient_value];
    TRY(take_frame(s, worker, s->program->output_gradient_value));
    ledger_acquire(s->config.ledger, v->ledger_class, v->bytes, plan_align(v->bytes));
    TRY(run(s, c, NN_BACKWARD));
    TRY(reply(s, worker, MESSAGE_INPUT_GRADIENT, s->program->input_gradient_value));
    c->in_backward = false;
    if (++c->micro < s->config.micro_batches) return STATUS_OK;
    c->micro = 0;
    c->step++;
    return ++s->finished == workers(s) ? update(s) : STATUS_OK;
}

/* Fails if a worker has left before the end of the step, because the update needs the gradients of all
 * workers. */
static status check_members(const remote_server *s)
{
    for (int w = 0; w < workers(s); w++)
        if (transport_link_ended(s->transport, w) && s->clients[w].step == s->step)
            return fail(STATUS_PEER, "rank %d has left: others are at step %" PRId64, w, s->step);
    return STATUS_OK;
}

static status serve_requests(remote_server *s, bool *worked)
{
    for (int w = 0; w < workers(s); w++) {
        client *c = &s->clients[w];
        if (!c->has_request) continue;
        TRY(check_members(s));
        if (!c->in_backward && c->step != s->step) continue; /* waits for the update of step s->step */
        if (s->config.slot) rank_slot_touch(s->config.slot, clock_now_ns());
        TRY((c->in_backward ? backward : forward)(s, w));
        *worked = true;
    }
    return STATUS_OK;
}

/* Fails if a worker has been silent for too long. Sets *all_ended to true if all workers have said
 * goodbye. */
static status check_silence(remote_server *s, bool *all_ended)
{
    int64_t passed = remote_watch_look(&s->watch, patience(s));
    *all_ended = true;
    for (int w = 0; w < workers(s); w++) {
        client *c = &s->clients[w];
        if (transport_link_ended(s->transport, w)) continue;
        *all_ended = false;
        c->silent_ns += passed;
        if (c->silent_ns >= patience(s))
            return fail(STATUS_PEER, "rank %d has sent nothing for %.3g s", w,
                        (double)patience(s) / NS_PER_S);
    }
    return STATUS_OK;
}

static status serve(remote_server *s)
{
    s->watch = (remote_watch){clock_now_ns(), clock_now_ns()};
    for (;;) {
        bool worked = false, all_ended;
        TRY(receive(s, &worked));
        TRY(serve_requests(s, &worked));
        if (worked) continue;
        TRY(check_silence(s, &all_ended));
        if (all_ended) return STATUS_OK;
        TRY(transport_wait(s->transport,
                           remote_watch_beat(&s->watch, s->transport, 0, workers(s), patience(s))));
    }
}

status remote_server_run(remote_server *s)
{
    status rc = serve(s);
    if (rc == STATUS_OK) return rc;
    error_copy(&s->failure);
    message_header h = {.kind = MESSAGE_FAILED, .flags = (uint32_t)s->failure.code};
    message_frame text = {s->failure.message, strlen(s->failure.message)};
    error_clear();
    for (int w = 0; w < workers(s); w++)
        if (transport_link_up(s->transport, w))
            transport_send(s->transport, w, &h, &text, 1, &s->failure_ticket);
    error_clear();
    return error_adopt(&s->failure);
}

/* ---- open and close ----------------------------------------------------------------------------- */

static status open_client(remote_server *s, int worker)
{
    client *c = &s->clients[worker];
    device *d = s->config.device;
    nn_memory *m = &c->memory;
    c->params = *s->params;
    if (worker > 0) {
        TRY(ledger_blame(LEDGER_GRADIENTS,
                         device_allocate(d, DEVICE_MEMORY_PRIVATE, s->params->grads.bytes, &c->grads)));
        if (s->params->buffers.bytes > 0)
            TRY(device_allocate(d, DEVICE_MEMORY_PRIVATE, s->params->buffers.bytes, &c->buffers));
        c->params.grads = c->grads;
        c->params.buffers = c->buffers;
    }
    TRY(nn_instance_open(d, s->config.stream, s->program, &c->params, &c->instance));
    m->activation_bytes = s->program->activation_bytes;
    m->workspace_bytes = (int64_t)nn_instance_workspace(c->instance);
    TRY(ledger_blame(LEDGER_ACTIVATIONS, device_allocate(d, DEVICE_MEMORY_PRIVATE,
                                                         (size_t)m->activation_bytes, &m->activations)));
    if (worker == 0)
        TRY(ledger_blame(LEDGER_WORKSPACE, device_allocate(d, DEVICE_MEMORY_PRIVATE,
                                                           (size_t)m->workspace_bytes, &s->workspace)));
    m->workspace = s->workspace;
    return nn_instance_bind(c->instance, &(nn_bindings){.memory = m});
}

static void hold_memory(remote_server *s)
{
    const param_set *set = s->params;
    ledger *l = s->config.ledger;
    int64_t size = dtype_size(set->type), logical = set->model->parameter_elements * size;
    int64_t workspace = s->clients[0].memory.workspace_bytes;
    ledger_acquire(l, LEDGER_PARAMETERS, logical + set->buffer_bytes,
                   (set->arena_elements + set->buffer_elements) * size);
    ledger_acquire(l, LEDGER_GRADIENTS, logical * workers(s), set->arena_elements * size * workers(s));
    ledger_acquire(l, LEDGER_WORKSPACE, workspace, workspace);
}

status remote_server_open(const remote_server_config *c, remote_server **out)
{
    remote_server *s = *out = calloc(1, sizeof *s);
    if (!s) return fail(STATUS_SYSTEM, "no memory for a remote stage");
    s->config = *c;
    const device_info *info = device_get_info(c->device);
    nn_program_config program = {.batch = c->batch,
                                 .mode = NN_TRAIN,
                                 .type = info->compute_type,
                                 .bf16 = info->bf16,
                                 .external_loss = true,
                                 .world = 1};
    param_set_config params = {.gradients = true};
    int n = workers(s);
    s->clients = calloc((size_t)n, sizeof *s->clients);
    s->sources = calloc((size_t)n, sizeof *s->sources);
    if (!s->clients || !s->sources) return fail(STATUS_SYSTEM, "no memory for %d workers", n);
    for (int w = 0; w < n; w++) s->clients[w].ticket.wake = true;
    TRY(nn_program_compile(c->model, &program, &s->program));
    TRY(param_set_open(c->device, c->model, s->program, &params, &s->params));
    TRY(param_set_initialize(s->params, c->stream, c->seed));
    TRY(optimizer_open(c->device, c->optimizer, s->params->type, s->params->arena_elements,
                       c->model->parameter_elements, c->ledger, &s->optimizer));
    for (int w = 0; w < n; w++) TRY(open_client(s, w));
    hold_memory(s);
    TRY(remote_open_transport(&c->remote, n, &s->adapter, &s->transport));
    return transport_reserve(s->transport, 2 * n);
}

status remote_server_listen(remote_server *s, const char *url, char *bound)
{
    return transport_listen(s->transport, url, bound, REMOTE_URL_MAX);
}

void remote_server_close(remote_server **pointer)
{
    remote_server *s = *pointer;
    if (!s) return;
    device *d = s->config.device;
    for (int w = 0; s->clients && w < workers(s); w++)
        if (s->clients[w].has_request) transport_release(s->transport, &s->clients[w].request);
    transport_close(&s->transport, NS_PER_S);
    for (int w = 0; s->clients && w < workers(s); w++) {
        client *c = &s->clients[w];
        nn_instance_close(&c->instance);
        device_free(d, &c->memory.activations);
        device_free(d, &c->grads);
        device_free(d, &c->buffers);
    }
    device_free(d, &s->workspace);
    optimizer_close(&s->optimizer);
    param_set_close(&s->params);
    nn_program_free(&s->program);
    free(s->clients);
    free(s->sources);
    free(s);
    *pointer = NULL;
}

int64_t remote_server_steps(const remote_server *s)
{
    return s->step;
}

transport *remote_server_transport(remote_server *s)
{
    return s->transport;
}
