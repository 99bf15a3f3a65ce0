/* The life of a server: memory, port, end. */
#include "ps/bytes.h"
#include "ps/server/server_impl.h"

#include "common/base/clock.h"

#include <stdlib.h>

static status open_keys(ps_server *s)
{
    size_t count = (size_t)s->count, world = (size_t)s->c.world, slots = (size_t)s->slots;
    s->keys = calloc(count + 1, sizeof *s->keys);
    s->held = calloc(count * world + 1, sizeof *s->held);
    s->pushed = calloc(count * world + 1, sizeof *s->pushed);
    s->applied = calloc(count * world + 1, sizeof *s->applied);
    s->arrived = calloc(count * slots + 1, sizeof *s->arrived);
    s->rounds = calloc(slots, sizeof *s->rounds);
    s->answers = calloc(count * world + 1, sizeof *s->answers);
    s->applies = calloc(count * world + 1, sizeof *s->applies);
    s->workers = calloc(world, sizeof *s->workers);
    if (!s->keys || !s->held || !s->pushed || !s->applied || !s->arrived || !s->rounds || !s->answers || !s->applies || !s->workers)
        return fail(STATUS_SYSTEM, "no memory for parameter server %d", s->c.index);
    for (size_t i = 0; i < count; i++) s->keys[i].ticket.wake = true;
    for (size_t i = 0; i < count * world; i++) s->answers[i].late = -1;
    for (int w = 0; w < s->c.world; w++)
        TRY(ps_key_queue_init(&s->workers[w].outbox, s->count, s->c.policy->priority));
    return ps_key_queue_init(&s->complete, s->count, s->c.policy->priority);
}

/* Under sync a server beside a rank works in the rank's own parameters: nobody reads them while a key's
 * pushes are all there. Otherwise the rank computes on a copy, as every other rank does. */
static status open_params(ps_server *s)
{
    const param_set *set = s->c.params;
    s->params = set->params.data;
    s->own_params.fd = -1;
    if (s->c.policy->consistency == PS_SYNC || !s->c.beside) return STATUS_OK;
    TRY(device_allocate(s->c.device, DEVICE_MEMORY_PRIVATE, (size_t)set->arena_elements * s->element, &s->own_params));
    s->params = s->own_params.data;
    int64_t extent = (s->shard->end - s->shard->begin) * (int64_t)s->element;
    ledger_acquire(s->c.ledger, LEDGER_PARAMETERS, s->shard->elements * (int64_t)s->element, extent);
    return STATUS_OK;
}

status ps_server_open(const ps_server_config *config, ps_server **out)
{
    *out = NULL;
    ps_server *s = calloc(1, sizeof *s);
    if (!s) return fail(STATUS_SYSTEM, "no memory for parameter server %d", config->index);
    s->c = *config;
    s->shard = &config->plan->shards[config->index];
    s->first = s->shard->first_key;
    s->count = s->shard->key_count;
    s->slots = config->policy->staleness + 1;
    s->element = (size_t)dtype_size(config->params->type);
    s->writes = config->policy->consistency != PS_SYNC || !config->policy->server_optimizer;
    s->clips = config->policy->server_optimizer && optimizer_get_options(config->optimizer)->clip_norm > 0;
    s->buffers_ticket.wake = s->layer_ticket.wake = true;
    status rc;
    TRY_GOTO(rc, open_keys(s), failed);
    TRY_GOTO(rc, open_params(s), failed);
    TRY_GOTO(rc, server_sum_open(s), failed);
    TRY_GOTO(rc, server_shared_open(s), failed);
    *out = s;
    return STATUS_OK;
failed:
    ps_server_close(&s);
    return rc;
}

status ps_server_open_port(ps_server *s, const transport_options *options)
{
    int partner = s->c.beside ? s->c.index : PS_NO_PEER;
    /* A push of every key, a share of a sum and the buffers, and the message at hand. */
    int held = (s->count + 1) * s->c.world + 2;
    return ps_port_open(&s->port, options, s->c.world, held, partner, (uint32_t)(2 * s->count + 64));
}

static void release_messages(ps_server *s)
{
    for (int64_t i = 0; s->held && i < (int64_t)s->count * s->c.world; i++) ps_port_release(&s->port, &s->held[i]);
    for (int w = 0; s->workers && w < s->c.world; w++) ps_port_release(&s->port, &s->workers[w].layer_share);
    ps_port_release(&s->port, &s->buffers_next);
}

void ps_server_close(ps_server **pointer)
{
    ps_server *s = *pointer;
    if (!s) return;
    sync_agent_close(&s->agent);
    release_messages(s);
    ps_port_hang_up(&s->port, NS_PER_S);
    ps_port_close(&s->port);
    server_shared_close(s);
    server_sum_close(s);
    if (s->own_params.data) device_free(s->c.device, &s->own_params);
    for (int w = 0; s->workers && w < s->c.world; w++) ps_key_queue_deinit(&s->workers[w].outbox);
    ps_key_queue_deinit(&s->complete);
    free(s->keys);
    free(s->held);
    free(s->pushed);
    free(s->applied);
    free(s->arrived);
    free(s->rounds);
    free(s->answers);
    free(s->applies);
    free(s->workers);
    free(s);
    *pointer = NULL;
}

ps_port *ps_server_port(ps_server *s)
{
    return &s->port;
}

void ps_server_see(ps_server *s, int worker, void *params, void *grads)
{
    s->workers[worker].params = params;
    s->workers[worker].grads = grads;
}

void ps_server_linger(ps_server *s, int64_t limit_ns)
{
    int others = s->c.world - (s->c.beside ? 1 : 0);
    if (!ps_bytes_exist(s->c.device)) return; /* virtual ranks end together */
    for (int64_t until = clock_now_ns() + limit_ns; clock_now_ns() < until;) {
        if (atomic_load_explicit(&s->gone, memory_order_acquire) == others) return;
        if (atomic_load_explicit(&s->ended, memory_order_acquire)) return;
        sync_agent_wake(s->agent);
        clock_sleep_ns(NS_PER_MS);
    }
}

status ps_server_error(ps_server *s)
{
    return sync_agent_error(s->agent);
}

const void *ps_server_averages(const ps_server *s)
{
    return s->gpu ? s->gpu->sums : s->sums;
}

int64_t ps_server_take_update_ns(ps_server *s)
{
    return atomic_exchange_explicit(&s->update_ns, 0, memory_order_relaxed);
}
