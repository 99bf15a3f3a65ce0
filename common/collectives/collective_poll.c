/* Functions for implementations (collective_impl.h): stalled calls, and worlds that can only be polled. */
#include "common/base/text.h"
#include "common/collectives/collective_impl.h"
#include "common/net/status_table.h"

#include <sched.h>
#include <stdio.h>

enum { SLEEP_NS = 100000000, POLL_NS = 20000, YIELDS = 400 };

bool collective_is_late(collective_queue *q, int64_t now_ns)
{
    const collective_config *c = &q->group->world->config;
    if (now_ns < collective_deadline(q->since_ns, c->stall_timeout_ns)) return false;
    int64_t moved_ns = status_table_others_ns(c->table, c->slot);
    if (moved_ns > q->since_ns) q->since_ns = moved_ns;
    return now_ns >= collective_deadline(q->since_ns, c->stall_timeout_ns);
}

status collective_stalled(const collective_queue *q, const char *detail)
{
    char call[128], limit[32];
    int64_t timeout_ns = q->group->world->config.stall_timeout_ns;
    return fail(STATUS_PEER, "%s (call %llu of group '%s'): no progress for %s%s",
                collective_call_format(&collective_queued_at(q, q->completed + 1)->call, call, sizeof call),
                (unsigned long long)q->completed + 1, q->group->name,
                text_format_duration(limit, sizeof limit, (double)timeout_ns), detail);
}

status collective_poll(collective_world *world,
                       status (*advance)(collective_queue *q, int64_t now_ns, bool *worked), int64_t now_ns,
                       int64_t *deadline_ns, bool *worked)
{
    world->seen = doorbell_rings(&world->bell);
    for (collective_group *g = world->groups; g; g = g->next) {
        for (int i = 0; i < g->queue_count; i++) {
            collective_queue *q = collective_queue_at(g, i);
            if (q->completed == q->posted) continue;
            TRY(advance(q, now_ns, worked));
            if (q->completed == q->posted) continue;
            bool late = collective_is_late(q, now_ns);
            int64_t deadline = collective_deadline(q->since_ns, world->config.stall_timeout_ns);
            if (deadline < *deadline_ns) *deadline_ns = deadline;
            if (!late) continue;
            char detail[96];
            snprintf(detail, sizeof detail, " in rank %d; MPI does not report which rank it waits for",
                     world->config.rank);
            return collective_stalled(q, detail);
        }
    }
    if (*worked) world->fruitless = 0;
    return STATUS_OK;
}

static bool has_calls(const collective_world *world)
{
    for (const collective_group *g = world->groups; g; g = g->next)
        for (int i = 0; i < g->queue_count; i++)
            if (collective_queue_at(g, i)->completed != collective_queue_at(g, i)->posted) return true;
    return false;
}

void collective_poll_wait(collective_world *world, int64_t deadline_ns)
{
    bool busy = has_calls(world);
    if (busy && world->fruitless++ < YIELDS) {
        sched_yield();
        return;
    }
    int64_t poll_ns = clock_now_ns() + (busy ? POLL_NS : SLEEP_NS);
    doorbell_enter(&world->bell);
    doorbell_sleep(&world->bell, world->seen, deadline_ns < poll_ns ? deadline_ns : poll_ns);
    doorbell_leave(&world->bell);
}

void collective_poll_wake(collective_world *world)
{
    doorbell_ring(&world->bell);
}
