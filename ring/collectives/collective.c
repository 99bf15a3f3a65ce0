#include "ring/collectives/collective.h"

#include "common/base/clock.h"
#include "common/base/text.h"
#include "ring/collectives/collective_impl.h"

#include <stdio.h>
#include <string.h>

static const collective_type *const implementations[] = {&collective_auto, &collective_ring, &collective_two_shot,
                                                         &collective_mpi,  &collective_nccl, &collective_sim};

enum { IMPLEMENTATIONS = sizeof implementations / sizeof implementations[0] };

const char *collective_kind_name(collective_kind kind)
{
#define KIND_NAME(name, text) [COLLECTIVE_##name] = text,
    static const char *const names[] = {COLLECTIVE_KIND_LIST(KIND_NAME)};
#undef KIND_NAME
    return names[kind];
}

static bool reduces(collective_kind kind)
{
    return kind == COLLECTIVE_ALL_REDUCE || kind == COLLECTIVE_REDUCE || kind == COLLECTIVE_REDUCE_SCATTER;
}

static bool has_root(collective_kind kind)
{
    return kind == COLLECTIVE_REDUCE || kind == COLLECTIVE_BROADCAST || kind == COLLECTIVE_GATHER ||
           kind == COLLECTIVE_SCATTER || kind == COLLECTIVE_SEND || kind == COLLECTIVE_RECEIVE;
}

bool collective_is_cut(collective_kind kind)
{
    return kind == COLLECTIVE_ALL_GATHER || kind == COLLECTIVE_REDUCE_SCATTER || kind == COLLECTIVE_GATHER ||
           kind == COLLECTIVE_SCATTER || kind == COLLECTIVE_ALL_TO_ALL;
}

char *collective_call_format(const collective_call *call, char *buffer, size_t size)
{
    char op[24] = "", root[24] = "";
    if (reduces(call->kind)) snprintf(op, sizeof op, " (%s)", reduce_op_name(call->op));
    if (call->kind == COLLECTIVE_SEND)
        snprintf(root, sizeof root, " to %d", call->root);
    else if (call->kind == COLLECTIVE_RECEIVE)
        snprintf(root, sizeof root, " from %d", call->root);
    else if (has_root(call->kind))
        snprintf(root, sizeof root, ", root %d", call->root);
    snprintf(buffer, size, "%s%s of %lld %s%s, tag %d", collective_kind_name(call->kind), op, (long long)call->count,
             dtype_name(call->type), root, call->tag);
    return buffer;
}

int collective_find_window(const collective_window *windows, int count, const void *data, int64_t bytes,
                           int64_t *offset)
{
    for (int i = 0; i < count; i++) {
        const char *begin = windows[i].data;
        int64_t at = (const char *)data - begin;
        if ((uintptr_t)data < (uintptr_t)begin || at > windows[i].bytes || bytes > windows[i].bytes - at) continue;
        *offset = at;
        return i;
    }
    return -1;
}

/* ---- worlds ----------------------------------------------------------------------------------- */

status collective_open(const char *implementation, const collective_config *config, collective_world **out)
{
    const char *names[IMPLEMENTATIONS];
    int index;
    *out = NULL;
    for (int i = 0; i < IMPLEMENTATIONS; i++) names[i] = implementations[i]->name;
    TRY(text_parse_choice("collectives", implementation, names, sizeof *names, IMPLEMENTATIONS, &index));
    if (strlen(config->name) >= COLLECTIVE_NAME_MAX)
        return fail(STATUS_INTERNAL, "world '%s': the name is too long", config->name);
    TRY(implementations[index]->open(config, out));
    collective_world *world = *out;
    world->type = implementations[index];
    snprintf(world->name, sizeof world->name, "%s", config->name);
    world->config.name = world->name;
    world->config.windows = NULL;
    return STATUS_OK;
}

void collective_close(collective_world **world)
{
    if (*world) (*world)->type->close(*world);
    *world = NULL;
}

static status check_ranks(const collective_world *world, const char *name, const int *ranks, int count)
{
    bool member = false;
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= world->config.world || (i > 0 && ranks[i] <= ranks[i - 1]))
            return fail(STATUS_INTERNAL, "group '%s': found rank %d at place %d of %d ranks of a world of %d", name,
                        ranks[i], i, count, world->config.world);
        member = member || ranks[i] == world->config.rank;
    }
    if (!member) return fail(STATUS_INTERNAL, "group '%s': rank %d is not in it", name, world->config.rank);
    if (strlen(name) >= COLLECTIVE_NAME_MAX) return fail(STATUS_INTERNAL, "group '%s': the name is too long", name);
    return STATUS_OK;
}

status collective_group_open(collective_world *world, const char *name, const int *ranks, int count,
                             collective_group **out)
{
    *out = NULL;
    TRY(check_ranks(world, name, ranks, count));
    TRY(world->type->group_open(world, name, ranks, count, out));
    collective_group *group = *out;
    group->world = world;
    group->size = count;
    snprintf(group->name, sizeof group->name, "%s", name);
    for (int i = 0; i < count; i++)
        if (ranks[i] == world->config.rank) group->rank = i;
    return STATUS_OK;
}

void collective_group_close(collective_group **group)
{
    if (*group) (*group)->world->type->group_close(*group);
    *group = NULL;
}

collective_world *collective_group_world(const collective_group *group)
{
    return group->world;
}

int collective_group_rank(const collective_group *group)
{
    return group->rank;
}

int collective_group_size(const collective_group *group)
{
    return group->size;
}

/* ---- calls ------------------------------------------------------------------------------------ */

/* The elements that `in` and `out` hold on this rank, by the table at collective_call. */
static void buffer_counts(const collective_group *g, const collective_call *c, int64_t *in, int64_t *out)
{
    int64_t part = collective_part_count(c->count, g->size, g->rank);
    int64_t at_root = g->rank == c->root ? c->count : 0;
    *in = *out = 0;
    switch (c->kind) {
    case COLLECTIVE_ALL_REDUCE:
        *in = *out = c->count;
        break;
    case COLLECTIVE_REDUCE:
        *in = c->count, *out = at_root;
        break;
    case COLLECTIVE_BROADCAST:
        *in = at_root, *out = c->count;
        break;
    case COLLECTIVE_ALL_GATHER:
        *in = part, *out = c->count;
        break;
    case COLLECTIVE_REDUCE_SCATTER:
        *in = c->count, *out = part;
        break;
    case COLLECTIVE_GATHER:
        *in = part, *out = at_root;
        break;
    case COLLECTIVE_SCATTER:
        *in = at_root, *out = part;
        break;
    case COLLECTIVE_ALL_TO_ALL:
        *in = c->count, *out = g->size * part;
        break;
    case COLLECTIVE_SEND:
        *in = c->count;
        break;
    case COLLECTIVE_RECEIVE:
        *out = c->count;
        break;
    case COLLECTIVE_BARRIER:
    case COLLECTIVE_KIND_COUNT:
        break;
    }
}

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
    int64_t in, out;
    if (call->kind < 0 || call->kind >= COLLECTIVE_KIND_COUNT || call->op < 0 || call->op >= REDUCE_OP_COUNT ||
        call->type < 0 || call->type >= DTYPE_COUNT || call->count < 0)
        return fail(STATUS_INTERNAL, "group '%s': kind %d, op %d, type %d, count %lld is no call", g->name,
                    (int)call->kind, (int)call->op, (int)call->type, (long long)call->count);
    if (has_root(call->kind) && (call->root < 0 || call->root >= g->size))
        return refuse(g, call, "there is no such rank");
    if ((call->kind == COLLECTIVE_SEND || call->kind == COLLECTIVE_RECEIVE) && call->root == g->rank)
        return refuse(g, call, "that is this rank");
    if (reduces(call->kind) && !reduce_has_type(call->type)) return refuse(g, call, "the type cannot be reduced");
    buffer_counts(g, call, &in, &out);
    if (!has_elements(&call->in, in)) return refuse(g, call, "the pieces of `in` hold another number of elements");
    if (!has_elements(&call->out, out)) return refuse(g, call, "the pieces of `out` hold another number of elements");
    return STATUS_OK;
}

status collective_post(collective_group *group, const collective_call *call, collective_ticket *out)
{
    if (group->world->failure.code != STATUS_OK) return error_adopt(&group->world->failure);
    TRY(check_call(group, call));
    return group->world->type->post(group, call, out);
}

bool collective_done(const collective_group *group, collective_ticket ticket)
{
    return group->world->type->done(group, ticket);
}

collective_times collective_get_times(const collective_group *group, collective_ticket ticket)
{
    return group->world->type->times(group, ticket);
}

status collective_progress(collective_world *world, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    *deadline_ns = CLOCK_NEVER;
    *worked = false;
    if (world->failure.code != STATUS_OK) return error_adopt(&world->failure);
    status rc = world->type->progress(world, now_ns, deadline_ns, worked);
    if (rc == STATUS_OK) return STATUS_OK;
    error_record record;
    error_copy(&record);
    collective_abort(world, &record);
    return rc;
}

void collective_wait(collective_world *world, int64_t deadline_ns)
{
    world->type->wait(world, deadline_ns);
}

void collective_wake(collective_world *world)
{
    world->type->wake(world);
}

void collective_abort(collective_world *world, const error_record *why)
{
    if (world->failure.code != STATUS_OK) return;
    world->failure = *why;
    world->type->abort(world, why);
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
    return world->traffic;
}
