/* When a server sums and updates a key: by rounds (sync, ssp), or with every push (async). */
#include "ps/server/server_impl.h"

#include <inttypes.h>

/* ---- pushes ----------------------------------------------------------------------------------- */

static status check_push(ps_server *s, int local, int worker, const message_header *h)
{
    int64_t updates = s->keys[local].updates, expected = *server_pushed(s, local, worker);
    bool by_rounds = s->c.policy->consistency != PS_ASYNC;
    if (h->step == expected && (!by_rounds || h->step < updates + s->slots)) return STATUS_OK;
    return fail(STATUS_PROTOCOL, "rank %d pushed %s of step %" PRId64 ": expected is step %" PRId64 ", at most %" PRId64
                " ahead of the last update, %" PRId64, worker,
                ps_key_name(s->c.plan, s->c.params->model, s->first + local), h->step, expected, s->slots, updates - 1);
}

static void count_push(ps_server *s, int local, int64_t round)
{
    int *arrived = server_arrived(s, local, round);
    if (++*arrived == 1) s->incomplete++;
    if (*arrived < s->c.world) return;
    s->incomplete--;
    if (round == s->keys[local].updates) ps_key_queue_put(&s->complete, local);
}

static void queue_apply(ps_server *s, int local, int worker)
{
    int at = (s->apply_first + s->apply_count++) % (s->count * s->c.world);
    s->applies[at] = (server_apply){local, worker};
}

/* The shard's squared norm goes to the worker that adds up what all servers have. */
static status share_norm(ps_server *s, int worker, int of_worker)
{
    server_worker *w = &s->workers[worker];
    TRY(server_squares(s, of_worker, &w->norm));
    if (s->c.policy->servers == 1) server_take_norm(s, worker, w->norm);
    else w->norm_due = true;
    return STATUS_OK;
}

static status take_async(ps_server *s, int local, int worker)
{
    s->keys[local].received++;
    if (!s->clips) {
        queue_apply(s, local, worker);
        return STATUS_OK;
    }
    if (++s->workers[worker].pushed_keys < s->count) return STATUS_OK;
    s->workers[worker].pushed_keys = 0;
    return share_norm(s, worker, worker);
}

status server_take_push(ps_server *s, int local, int worker, ps_message *m)
{
    message_header h = m->header;
    status rc = check_push(s, local, worker, &h);
    if (rc != STATUS_OK) {
        ps_port_release(&s->port, m);
        return rc;
    }
    ++*server_pushed(s, local, worker);
    server_round info = {h.integers[PS_INT_STEP], h.doubles[PS_DOUBLE_RATE]};
    if (h.step == 0) s->first_step = info.optimizer_step;
    if (h.frames == 0) ps_port_release(&s->port, m); /* the gradient is in sight */
    if (s->c.policy->consistency == PS_SSP) {
        rc = server_copy_push(s, local, worker, m);
        ps_port_release(&s->port, m);
        if (rc != STATUS_OK) return rc;
    }
    *server_held(s, local, worker) = *m;
    if (s->c.policy->consistency == PS_ASYNC) {
        s->workers[worker].push = info;
        return take_async(s, local, worker);
    }
    s->rounds[h.step % s->slots] = info;
    count_push(s, local, h.step);
    return STATUS_OK;
}

/* ---- clipping --------------------------------------------------------------------------------- */

void server_take_norm(ps_server *s, int worker, double sum_squares)
{
    double scale = optimizer_clip_scale(optimizer_get_options(s->c.optimizer)->clip_norm, sum_squares);
    if (s->c.policy->consistency == PS_ASYNC) {
        s->workers[worker].scale = scale;
        for (int local = 0; local < s->count; local++) queue_apply(s, local, worker);
        return;
    }
    s->scale = scale;
    s->norm_known = true;
}

/* ---- rounds ----------------------------------------------------------------------------------- */

static void end_round(ps_server *s, int local)
{
    server_key *key = &s->keys[local];
    *server_arrived(s, local, key->updates) = 0;
    key->updates++;
    if (*server_arrived(s, local, key->updates) == s->c.world) ps_key_queue_put(&s->complete, local);
    server_key_moved(s, local);
}

static status sum_round(ps_server *s, int local, bool updates)
{
    server_work work = {.local = local,
                        .sums = true,
                        .updates = updates,
                        .worker = -1,
                        .info = s->rounds[s->keys[local].updates % s->slots],
                        .scale = 1.0};
    TRY(server_do(s, &work));
    for (int w = 0; w < s->c.world; w++) ps_port_release(&s->port, server_held(s, local, w));
    return STATUS_OK;
}

static status update_clipped(ps_server *s, bool *worked)
{
    int local = s->next_update;
    if (!transport_sent(&s->keys[local].ticket)) return STATUS_OK;
    *worked = true;
    server_work work = {.local = local,
                        .updates = true,
                        .worker = -1,
                        .info = s->rounds[s->keys[local].updates % s->slots],
                        .scale = s->scale};
    TRY(server_do(s, &work));
    if (++s->next_update == s->count) {
        s->norm_known = false;
        s->next_update = s->summed = 0;
    }
    end_round(s, local);
    return STATUS_OK;
}

static status update_round(ps_server *s, bool *worked)
{
    if (s->norm_known) return update_clipped(s, worked);
    if (s->complete.count == 0 || (s->clips && s->summed == s->count)) return STATUS_OK;
    int local = ps_key_queue_first(&s->complete);
    if (!transport_sent(&s->keys[local].ticket)) return STATUS_OK;
    ps_key_queue_drop(&s->complete);
    *worked = true;
    TRY(sum_round(s, local, s->c.policy->server_optimizer && !s->clips));
    if (!s->clips) end_round(s, local);
    else if (++s->summed == s->count) return share_norm(s, 0, -1);
    return STATUS_OK;
}

/* ---- async ------------------------------------------------------------------------------------ */

static status update_async(ps_server *s, bool *worked)
{
    if (s->apply_count == 0) return STATUS_OK;
    server_apply a = s->applies[s->apply_first];
    server_key *key = &s->keys[a.local];
    bool settling = s->settle_owed > 0 && key->updates >= key->settled;
    if (settling || !transport_sent(&key->ticket)) return STATUS_OK;
    *worked = true;
    s->apply_first = (s->apply_first + 1) % (s->count * s->c.world);
    s->apply_count--;
    server_worker *w = &s->workers[a.worker];
    server_work work = {.local = a.local,
                        .updates = true,
                        .worker = a.worker,
                        .info = {.optimizer_step = s->first_step + key->updates, .rate = w->push.rate},
                        .scale = s->clips ? w->scale : 1.0};
    TRY(server_do(s, &work));
    ps_message *m = server_held(s, a.local, a.worker);
    server_answer_of(s, a.local, a.worker)->late = key->updates - m->header.integers[PS_INT_SEEN];
    ps_port_release(&s->port, m);
    key->updates++;
    ++*server_applied(s, a.local, a.worker);
    server_key_moved(s, a.local);
    return STATUS_OK;
}

status server_update(ps_server *s, bool *worked)
{
    if (!s->initialised) return STATUS_OK;
    return s->c.policy->consistency == PS_ASYNC ? update_async(s, worked) : update_round(s, worked);
}
