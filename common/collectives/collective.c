#include "common/collectives/collective.h"

#include "common/collectives/collective_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- kinds ------------------------------------------------------------------------------------ */

typedef enum holding { NOTHING, WHOLE, WHOLE_AT_ROOT, PART, PART_OF_EACH } holding;

#define KIND_ROW(name, text, in, out, reduces) [COLLECTIVE_##name] = {text, in, out, reduces},
static const struct {
    const char *name;
    holding in, out;
    bool reduces;
} kinds[] = {COLLECTIVE_KIND_LIST(KIND_ROW)};
#undef KIND_ROW

const char *collective_kind_name(collective_kind kind)
{
    return kinds[kind].name;
}

bool collective_reduces(collective_kind kind)
{
    return kinds[kind].reduces;
}

bool collective_is_pair(collective_kind kind)
{
    return kind == COLLECTIVE_SEND || kind == COLLECTIVE_RECEIVE;
}

bool collective_has_root(collective_kind kind)
{
    return kinds[kind].in == WHOLE_AT_ROOT || kinds[kind].out == WHOLE_AT_ROOT || collective_is_pair(kind);
}

bool collective_is_cut(collective_kind kind)
{
    return kinds[kind].in == PART || kinds[kind].out == PART || kinds[kind].out == PART_OF_EACH;
}

static collective_extent extent(holding held, const collective_call *c, int n, int rank)
{
    int64_t part = collective_part_count(c->count, n, rank);
    switch (held) {
    case WHOLE:
        return (collective_extent){0, c->count};
    case WHOLE_AT_ROOT:
        return (collective_extent){0, rank == c->root ? c->count : 0};
    case PART:
        return (collective_extent){collective_part_begin(c->count, n, rank), part};
    case PART_OF_EACH:
        return (collective_extent){0, n * part};
    default:
        return (collective_extent){0, 0};
    }
}

collective_extent collective_in_extent(const collective_call *call, int n, int rank)
{
    return extent(kinds[call->kind].in, call, n, rank);
}

collective_extent collective_out_extent(const collective_call *call, int n, int rank)
{
    return extent(kinds[call->kind].out, call, n, rank);
}

char *collective_call_format(const collective_call *call, char *buffer, size_t size)
{
    char op[24] = "", root[24] = "";
    const char *of = call->kind == COLLECTIVE_SEND      ? " to"
                     : call->kind == COLLECTIVE_RECEIVE ? " from"
                                                        : ", root";
    if (kinds[call->kind].reduces) snprintf(op, sizeof op, " (%s)", reduce_op_name(call->op));
    if (collective_has_root(call->kind)) snprintf(root, sizeof root, "%s %d", of, call->root);
    snprintf(buffer, size, "%s%s of %lld %s%s, tag %d", kinds[call->kind].name, op, (long long)call->count,
             dtype_name(call->type), root, call->tag);
    return buffer;
}

/* ---- worlds ----------------------------------------------------------------------------------- */

status collective_open(const char *library, const collective_config *config, collective_world **out)
{
    const collective_type *type;
    collective_algorithm algorithm;
    *out = NULL;
    TRY(collective_find_library(library, &type));
    if (strlen(config->name) >= COLLECTIVE_NAME_MAX)
        return fail(STATUS_INTERNAL, "world '%s': the name is too long", config->name);
    TRY(collective_choose_algorithm(library, config->algorithm, &algorithm));
    collective_world *world = calloc(1, type->world_bytes);
    if (!world) return fail(STATUS_SYSTEM, "no memory for collectives");
    world->type = type;
    world->config = *config;
    snprintf(world->name, sizeof world->name, "%s", config->name);
    world->config.name = world->name;
    world->config.algorithm = algorithm;
    status rc = type->open ? type->open(world) : STATUS_OK;
    world->config.windows = NULL;
    *out = world;
    if (rc != STATUS_OK) collective_close(out);
    return rc;
}

void collective_close(collective_world **world)
{
    if (*world && (*world)->type->close) (*world)->type->close(*world);
    free(*world);
    *world = NULL;
}

static status check_ranks(const collective_group *g)
{
    const collective_config *c = &g->world->config;
    for (int i = 0; i < g->size; i++)
        if (g->ranks[i] < 0 || g->ranks[i] >= c->world || (i > 0 && g->ranks[i] <= g->ranks[i - 1]))
            return fail(STATUS_INTERNAL, "group '%s': found rank %d at place %d of %d ranks of a world of %d",
                        g->name, g->ranks[i], i, g->size, c->world);
    if (g->rank == g->size)
        return fail(STATUS_INTERNAL, "group '%s': rank %d is not a member, and must not open it", g->name,
                    c->rank);
    return STATUS_OK;
}

static status open_queues(collective_group *g)
{
    const collective_type *type = g->world->type;
    bool pairs = type->pairs && (!type->pairs_on_request || g->world->config.pairs);
    int count = pairs ? 1 + 2 * g->size : 1;
    g->queues = calloc((size_t)count, g->world->type->queue_bytes);
    if (!g->queues) return fail(STATUS_SYSTEM, "no memory for group '%s'", g->name);
    for (; g->queue_count < count; g->queue_count++) {
        collective_queue *q = collective_queue_at(g, g->queue_count);
        q->group = g;
        q->capacity = g->queue_count == 0 ? COLLECTIVE_QUEUE : COLLECTIVE_PAIR_QUEUE;
        q->calls = calloc((size_t)q->capacity, sizeof *q->calls);
        if (!q->calls) return fail(STATUS_SYSTEM, "no memory for group '%s'", g->name);
    }
    return STATUS_OK;
}

status collective_group_open(collective_world *world, const char *name, const int *ranks, int count,
                             collective_group **out)
{
    *out = NULL;
    if (strlen(name) >= COLLECTIVE_NAME_MAX)
        return fail(STATUS_INTERNAL, "group '%s': the name is too long", name);
    collective_group *group = calloc(1, world->type->group_bytes + (size_t)count * sizeof *group->ranks);
    if (!group) return fail(STATUS_SYSTEM, "no memory for group '%s'", name);
    group->world = world;
    group->size = count;
    snprintf(group->name, sizeof group->name, "%s", name);
    group->ranks = (int *)((char *)group + world->type->group_bytes);
    for (int i = 0; i < count; i++) group->ranks[i] = ranks ? ranks[i] : i;
    while (group->rank < count && group->ranks[group->rank] != world->config.rank) group->rank++;
    status rc = check_ranks(group);
    if (rc == STATUS_OK) rc = open_queues(group);
    if (rc == STATUS_OK && world->type->group_open) rc = world->type->group_open(group);
    collective_group **end = &world->groups;
    while (*end) end = &(*end)->next;
    *end = *out = group;
    if (rc != STATUS_OK) collective_group_close(out);
    return rc;
}

void collective_group_close(collective_group **pointer)
{
    collective_group *group = *pointer;
    if (!group) return;
    collective_group **at = &group->world->groups;
    while (*at != group) at = &(*at)->next;
    *at = group->next;
    if (group->world->type->group_close) group->world->type->group_close(group);
    for (int i = 0; i < group->queue_count; i++) free(collective_queue_at(group, i)->calls);
    free(group->queues);
    free(group);
    *pointer = NULL;
}

int collective_group_rank(const collective_group *group)
{
    return group->rank;
}

int collective_group_size(const collective_group *group)
{
    return group->size;
}

int collective_group_world_rank(const collective_group *group, int member)
{
    return member < 0 ? member : group->ranks[member];
}

/* ---- calls ------------------------------------------------------------------------------------ */

static status refuse(const collective_group *g, const collective_call *call, const char *why)
{
    char text[128];
    return fail(STATUS_INTERNAL, "group '%s' of %d ranks, %s: %s", g->name, g->size,
                collective_call_format(call, text, sizeof text), why);
}

static bool has_elements(const collective_buffer *b, int64_t count)
{
    return !b->pieces.pieces || count == 0 || piece_list_elements(b->pieces) == count;
}

static status check_call(const collective_group *g, const collective_call *call)
{
    if (call->kind < 0 || call->kind >= COLLECTIVE_KIND_COUNT || call->op < 0 ||
        call->op >= REDUCE_OP_COUNT || call->type < 0 || call->type >= DTYPE_COUNT || call->count < 0)
        return fail(STATUS_INTERNAL, "group '%s': kind %d, op %d, type %d, count %lld is no call", g->name,
                    (int)call->kind, (int)call->op, (int)call->type, (long long)call->count);
    if (collective_has_root(call->kind) && (call->root < 0 || call->root >= g->size))
        return refuse(g, call, "there is no such rank");
    if (collective_is_pair(call->kind) && call->root == g->rank) return refuse(g, call, "that is this rank");
    if (collective_reduces(call->kind) && !reduce_has_type(call->type))
        return refuse(g, call, "the type cannot be reduced");
    if (!has_elements(&call->in, collective_in_extent(call, g->size, g->rank).count))
        return refuse(g, call, "the pieces of `in` hold another number of elements");
    if (!has_elements(&call->out, collective_out_extent(call, g->size, g->rank).count))
        return refuse(g, call, "the pieces of `out` hold another number of elements");
    return STATUS_OK;
}

static int queue_index(const collective_group *g, const collective_call *call)
{
    if (g->queue_count == 1 || !collective_is_pair(call->kind)) return 0;
    return 1 + call->root + (call->kind == COLLECTIVE_RECEIVE ? g->size : 0);
}

status collective_post(collective_group *group, const collective_call *call, collective_ticket *out)
{
    if (group->world->type->enqueue) return refuse(group, call, "calls are enqueued, not posted");
    if (group->world->failure.code != STATUS_OK) return error_adopt(&group->world->failure);
    TRY(check_call(group, call));
    int index = queue_index(group, call);
    collective_queue *q = collective_queue_at(group, index);
    if (q->posted - q->completed == (uint64_t)q->capacity) return STATUS_AGAIN;
    if (q->posted == q->completed) q->since_ns = clock_now_ns();
    *collective_queued_at(q, ++q->posted) = (collective_queued){
        .call = *call, .times.last_rank = -1, .times.algorithm = group->world->config.algorithm};
    *out = (collective_ticket){index, q->posted};
    status rc = group->world->type->post ? group->world->type->post(q) : STATUS_OK;
    if (rc != STATUS_OK) q->posted--;
    return rc;
}

status collective_enqueue(collective_group *group, const collective_call *call, struct device_stream *stream,
                          collective_ticket *out)
{
    collective_world *world = group->world;
    if (!world->type->enqueue) return refuse(group, call, "calls are posted, not enqueued");
    if (world->failure.code != STATUS_OK) return error_adopt(&world->failure);
    TRY(check_call(group, call));
    *out = (collective_ticket){-1, world->enqueued.posted + 1};
    return world->type->enqueue(group, call, stream);
}

static const collective_queue *queue_of(const collective_group *g, collective_ticket ticket)
{
    return ticket.queue < 0 ? &g->world->enqueued : collective_queue_at(g, ticket.queue);
}

bool collective_done(const collective_group *group, collective_ticket ticket)
{
    return queue_of(group, ticket)->completed >= ticket.sequence;
}

collective_times collective_get_times(const collective_group *group, collective_ticket ticket)
{
    return collective_queued_at(queue_of(group, ticket), ticket.sequence)->times;
}

status collective_progress(collective_world *world, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    *deadline_ns = CLOCK_NEVER;
    *worked = false;
    if (world->failure.code != STATUS_OK) return error_adopt(&world->failure);
    status rc = world->type->progress ? world->type->progress(world, now_ns, deadline_ns, worked) : STATUS_OK;
    if (rc == STATUS_OK) return STATUS_OK;
    error_record record;
    error_copy(&record);
    collective_abort(world, &record);
    return rc;
}

void collective_wait(collective_world *world, int64_t deadline_ns)
{
    if (world->type->wait) world->type->wait(world, deadline_ns);
}

void collective_wake(collective_world *world)
{
    if (world->type->wake) world->type->wake(world);
}

void collective_abort(collective_world *world, const error_record *why)
{
    if (world->failure.code != STATUS_OK) return;
    world->failure = *why;
    if (world->type->abort) world->type->abort(world, why);
}

status collective_run(collective_group *group, const collective_call *call)
{
    collective_world *world = group->world;
    collective_ticket ticket;
    int64_t deadline;
    bool worked;
    status rc;
    while ((rc = collective_post(group, call, &ticket)) == STATUS_AGAIN)
        TRY(collective_progress(world, clock_now_ns(), &deadline, &worked));
    if (rc != STATUS_OK) return rc;
    while (!collective_done(group, ticket)) {
        TRY(collective_progress(world, clock_now_ns(), &deadline, &worked));
        if (!worked && !collective_done(group, ticket)) collective_wait(world, deadline);
    }
    return STATUS_OK;
}

collective_traffic collective_get_traffic(const collective_world *world)
{
    return (collective_traffic){world->traffic.bytes_sent, world->traffic.bytes_received,
                                world->traffic.messages_sent, world->traffic.messages_received};
}

static void add(_Atomic int64_t *total, int64_t more)
{
    atomic_store_explicit(total, atomic_load_explicit(total, memory_order_relaxed) + more,
                          memory_order_relaxed);
}

void collective_count(collective_world *world, collective_traffic more)
{
    add(&world->traffic.bytes_sent, more.bytes_sent);
    add(&world->traffic.bytes_received, more.bytes_received);
    add(&world->traffic.messages_sent, more.messages_sent);
    add(&world->traffic.messages_received, more.messages_received);
}

void collective_count_call(collective_world *world, collective_kind kind, int64_t bytes, int64_t messages)
{
    bool sends = kind != COLLECTIVE_RECEIVE, receives = kind != COLLECTIVE_SEND;
    collective_count(world, (collective_traffic){.bytes_sent = sends ? bytes : 0,
                                                 .bytes_received = receives ? bytes : 0,
                                                 .messages_sent = sends ? messages : 0,
                                                 .messages_received = receives ? messages : 0});
}
