/* The functions of a worker, and the functions that workers and the remote stage both use. */
#include "common/pipeline/remote_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_TEXT = 4096 };

/* ---- both sides --------------------------------------------------------------------------------- */

int64_t remote_frame_bytes(const nn_model *stage, int64_t batch, dtype type)
{
    int64_t input = shape_elements(stage->layers[0].sample), output = stage->rows_per_sample * stage->classes;
    int64_t bytes = batch * (input > output ? input : output) * dtype_size(type);
    return bytes > LONGEST_TEXT ? bytes : LONGEST_TEXT;
}

status remote_open_transport(const remote_config *config, int number, net_adapter *adapter, transport **out)
{
    transport_options o = transport_defaults(number, config->workers + 1, config->token, config->frame_bytes);
    adapter->link = config->link;
    o.hub = config->hub;
    o.adapter = adapter;
    return transport_open(transport_hub_type(config->hub), &o, out);
}

status remote_await_sent(transport *t, const transport_ticket *ticket, int64_t patience_ns)
{
    int64_t deadline = clock_now_ns() + patience_ns;
    while (!transport_sent(ticket)) {
        if (clock_now_ns() >= deadline)
            return fail(STATUS_PEER, "a message was not sent within %.3g s", (double)patience_ns / NS_PER_S);
        TRY(transport_wait(t, deadline));
    }
    return STATUS_OK;
}

static int64_t heartbeat_interval(int64_t stall_timeout_ns)
{
    return stall_timeout_ns / 8 < NS_PER_S ? stall_timeout_ns / 8 : NS_PER_S;
}

int64_t remote_watch_look(remote_watch *w, int64_t stall_timeout_ns)
{
    int64_t now = clock_now_ns(), passed = now - w->looked_ns,
            most = 2 * heartbeat_interval(stall_timeout_ns);
    w->looked_ns = now;
    return passed < most ? passed : most;
}

int64_t remote_watch_beat(remote_watch *w, transport *t, int first, int count, int64_t stall_timeout_ns)
{
    int64_t now = clock_now_ns(), interval = heartbeat_interval(stall_timeout_ns);
    message_header h = {.kind = MESSAGE_HEARTBEAT};
    if (now - w->heartbeat_ns < interval) return w->heartbeat_ns + interval;
    w->heartbeat_ns = now;
    for (int link = first; link < first + count; link++)
        if (transport_link_up(t, link) && transport_send(t, link, &h, NULL, 0, NULL) != STATUS_OK)
            error_clear(); /* if the link is lost, transport_receive() will fail */
    return now + interval;
}

/* ---- the worker's side -------------------------------------------------------------------------- */

struct remote_stage {
    remote_config config;
    transport *transport;
    net_adapter adapter;
    int link;
    transport_ticket ticket;
    remote_watch watch;
    /* time since the last message of any kind, or since the start of the current request if that is later */
    int64_t silent_ns;
};

status remote_stage_open(const remote_config *config, const char *url, remote_stage **out)
{
    remote_stage *r = calloc(1, sizeof *r);
    *out = r;
    if (!r) return fail(STATUS_SYSTEM, "no memory for a remote stage");
    r->config = *config;
    r->ticket.wake = true;
    TRY(remote_open_transport(config, config->worker, &r->adapter, &r->transport));
    TRY(transport_reserve(r->transport, 2));
    return transport_connect(r->transport, config->workers, url, &r->link);
}

void remote_stage_close(remote_stage **pointer)
{
    remote_stage *r = *pointer;
    if (!r) return;
    transport_close(&r->transport, NS_PER_S);
    free(r);
    *pointer = NULL;
}

/* Returns the time after which a silent peer counts as lost. The time is shorter than the launcher's
 * limit, so the launcher does not blame this rank, which only waits. */
static int64_t patience(const remote_stage *r)
{
    return r->config.stall_timeout_ns / 2;
}

/* Receives a message. If no message has arrived, waits for a while and returns STATUS_AGAIN. If the message
 * is a heartbeat, also returns STATUS_AGAIN. Every message, even a heartbeat, ends the silence of the remote
 * stage. */
static status look(remote_stage *r, transport_message *out)
{
    int64_t stall_ns = r->config.stall_timeout_ns;
    status rc = transport_receive(r->transport, out);
    r->silent_ns = rc == STATUS_OK ? 0 : r->silent_ns + remote_watch_look(&r->watch, stall_ns);
    if (rc == STATUS_OK && out->header.kind == MESSAGE_HEARTBEAT) {
        transport_release(r->transport, out);
        return STATUS_AGAIN;
    }
    if (rc != STATUS_AGAIN) return rc;
    if (transport_link_ended(r->transport, r->link)) return fail(STATUS_PEER, "it has left");
    if (r->silent_ns >= patience(r))
        return fail(STATUS_PEER, "nothing received for %.3g s", (double)patience(r) / NS_PER_S);
    TRY(transport_wait(r->transport, remote_watch_beat(&r->watch, r->transport, r->link, 1, stall_ns)));
    return STATUS_AGAIN;
}

/* Sends a request and waits for its reply. Before the request has been sent, the only valid message from
 * the remote stage is a failure. */
static status exchange(remote_stage *r, const message_header *request, message_frame from, message_kind kind,
                       remote_tensor to, message_header *out)
{
    transport_message m;
    size_t bytes = (size_t)(to.count * dtype_size(to.type));
    status sent = STATUS_AGAIN, rc = STATUS_AGAIN;
    while (rc == STATUS_AGAIN) {
        if (sent == STATUS_AGAIN) sent = transport_send(r->transport, r->link, request, &from, 1, &r->ticket);
        if (sent != STATUS_AGAIN) TRY(sent);
        rc = look(r, &m);
    }
    TRY(rc);
    *out = m.header;
    bool fits = out->kind == kind && out->step == request->step && out->key == request->key &&
                out->frames == 1 && out->dtype == (int)to.type && m.frames[0].bytes == bytes;
    if (out->kind == MESSAGE_FAILED)
        rc = message_failure(out, out->frames > 0 ? m.frames[0] : (message_frame){0});
    else if (fits && sent == STATUS_OK)
        memcpy(to.data, m.frames[0].data, bytes);
    else
        rc = fail(STATUS_PROTOCOL, "expected %s of step %" PRId64 " with %zu bytes, got %s of step %" PRId64,
                  message_kind_name(kind), request->step, bytes, message_kind_name(out->kind), out->step);
    transport_release(r->transport, &m);
    return rc;
}

/* Records a message in the anatomy and the trace. Times are on the worker's clock. */
static void record(const remote_stage *r, anatomy *a, const message_header *request, const char *name,
                   int64_t begin_ns, int64_t end_ns)
{
    if (end_ns < begin_ns)
        end_ns = begin_ns; /* the error of the clock difference exceeds the duration of the message */
    anatomy_insert_span(a, begin_ns, end_ns);
    trace_async(r->config.trace, name, request->key, request->key + 1, begin_ns, end_ns);
}

static status call(remote_stage *r, message_header *request, remote_tensor from, message_kind kind,
                   remote_tensor to, anatomy *a)
{
    message_header reply;
    int number;
    TRY(anatomy_begin_wait(a));
    request->sent_ns = clock_now_ns();
    request->count = from.count;
    request->dtype = (int)from.type;
    message_frame frame = {from.data, (size_t)(from.count * dtype_size(from.type))};
    r->watch = (remote_watch){request->sent_ns, request->sent_ns};
    r->silent_ns = 0;
    status rc = exchange(r, request, frame, kind, to, &reply);
    if (rc == STATUS_OK) rc = remote_await_sent(r->transport, &r->ticket, patience(r));
    if (rc != STATUS_OK) {
        error_context("remote stage");
        return rc;
    }
    int64_t taken_ns = reply.arrived_ns + r->config.clock_ahead_ns,
            left_ns = reply.sent_ns + r->config.clock_ahead_ns;
    TRY(anatomy_end_wait(a, &number));
    bool forward = kind == MESSAGE_OUTPUTS;
    record(r, a, request, forward ? "activations sent" : "output gradient sent", request->sent_ns, taken_ns);
    record(r, a, request, forward ? "output received" : "gradient received", left_ns, clock_now_ns());
    if (number >= 0) anatomy_name_wait(a, number, (anatomy_sent){.ns = left_ns, .rank = r->config.workers});
    return STATUS_OK;
}

status remote_stage_forward(remote_stage *r, int64_t step, int64_t micro, remote_tensor input,
                            remote_tensor output, anatomy *a)
{
    message_header h = {.kind = MESSAGE_INPUTS, .step = step, .key = micro};
    return call(r, &h, input, MESSAGE_OUTPUTS, output, a);
}

status remote_stage_backward(remote_stage *r, int64_t step, int64_t micro, double learning_rate,
                             remote_tensor output_gradient, remote_tensor input_gradient, anatomy *a)
{
    message_header h = {
        .kind = MESSAGE_OUTPUT_GRADIENT, .step = step, .key = micro, .doubles[0] = learning_rate};
    return call(r, &h, output_gradient, MESSAGE_INPUT_GRADIENT, input_gradient, a);
}

void remote_stage_counters(const remote_stage *r, sync_counters *out)
{
    transport_counters c;
    transport_read_counters(r->transport, &c);
    out->bytes_sent += c.bytes_sent;
    out->bytes_received += c.bytes_received;
    out->messages_sent += c.messages_sent;
    out->messages_received += c.messages_received;
}

transport *remote_stage_transport(remote_stage *r)
{
    return r->transport;
}
