#include "ps/keys.h"

#include "common/base/least.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>

typedef struct planning {
    const nn_program *program;
    const param_set *set;
    ps_plan *plan;
    int64_t partition; /* Number of elements of a partition. */
    int64_t total;     /* Number of elements of the model, without padding. */
    /* [param_count] Index of the operation after which the parameter can be pushed, or INT_MAX if the
     * parameter can be pushed only after the whole backward pass. */
    int *point;
    int most_keys;
} planning;

/* ---- when a parameter can be pushed ----------------------------------------------------------- */

/* Returns the index of the first operation that completes gradients. Ignores operations before `op`. Returns
 * INT_MAX if no operation completes gradients. */
static int next_announcement(const nn_program *p, int op)
{
    for (; op < p->op_count; op++)
        if (p->ops[op].ready_count > 0) return op;
    return INT_MAX;
}

static void find_points(planning *g)
{
    const nn_program *p = g->program;
    for (int i = 0; i < g->plan->param_count; i++) g->point[i] = -1;
    for (int op = 0; op < p->op_count; op++)
        for (int i = 0; i < p->ops[op].release_count; i++)
            g->point[p->releases[p->ops[op].release_first + i]] = op;
    for (int i = 0; i < g->plan->param_count; i++) {
        bool announced = false;
        for (int j = 0; j < p->ready_count && !announced; j++) announced = p->ready_order[j] == i;
        g->point[i] = announced ? next_announcement(p, g->point[i]) : INT_MAX;
    }
}

static void list_pushable(planning *g)
{
    const nn_program *p = g->program;
    ps_plan *plan = g->plan;
    int used = 0;
    for (int op = 0; op < p->op_count; op++) {
        const nn_op *o = &p->ops[op];
        if (o->ready_count == 0) continue;
        int last = p->ready_order[o->ready_first + o->ready_count - 1];
        plan->push_first[last] = used;
        for (int i = plan->param_count - 1; i >= 0; i--)
            if (g->point[i] == op) plan->pushable[used++] = i;
        plan->push_count[last] = used - plan->push_first[last];
    }
}

/* ---- keys ------------------------------------------------------------------------------------- */

/* Adds a key for elements [begin, *end) of the model, which are in parameters [first, first + count).
 * Parameter `first` begins at element `first_begin`. If the key would have too many pieces, moves *end
 * back. */
static status add_key(planning *g, int server, int first, int count, int64_t first_begin, int64_t begin,
                      int64_t *end)
{
    ps_plan *plan = g->plan;
    piece pieces[PS_KEY_PIECES];
    int used = 0, first_param = -1, last_param = -1;
    int64_t at = first_begin, taken = begin;
    for (int i = first; i < first + count && at < *end && used < PS_KEY_PIECES; i++) {
        piece whole = g->set->pieces[i];
        int64_t from = greatest(0, begin - at), to = least(*end - at, whole.count);
        if (from < to) {
            pieces[used++] = (piece){whole.offset + from, to - from};
            if (first_param < 0) first_param = i;
            last_param = i;
            taken += to - from;
        }
        at += whole.count;
    }
    *end = taken;
    if (plan->key_count == g->most_keys)
        return fail(STATUS_CONFIG,
                    "--partition-bytes: expected a size that cuts the model into at most %d parts",
                    PS_MOST_KEYS);
    ps_key *key = &plan->keys[plan->key_count];
    int first_piece = plan->key_count ? key[-1].first_piece + key[-1].piece_count : 0;
    for (int i = 0; i < used; i++) plan->pieces[first_piece + i] = pieces[i];
    *key = (ps_key){.server = server,
                    .first_piece = first_piece,
                    .piece_count = used,
                    .first_param = first_param,
                    .param_count = last_param - first_param + 1,
                    .elements = taken - begin};
    for (int i = first_param; i <= last_param; i++) {
        if (plan->keys_of[i]++ == 0) plan->first_key[i] = plan->key_count;
    }
    plan->key_count++;
    return STATUS_OK;
}

static int64_t shard_begin(const planning *g, int server)
{
    return (int64_t)((__int128)g->total * server / g->plan->server_count);
}

static status cut_keys(planning *g)
{
    const ps_plan *plan = g->plan;
    int64_t begin = 0;
    int server = 0;
    for (int first = 0, count; first < plan->param_count; first += count) {
        int64_t end = begin;
        for (count = 0; first + count < plan->param_count && g->point[first + count] == g->point[first];
             count++)
            end += g->set->pieces[first + count].count;
        for (int64_t at = begin, next; at < end; at = next) {
            while (shard_begin(g, server + 1) <= at) server++;
            next = least(least(end, at + g->partition), shard_begin(g, server + 1));
            TRY(add_key(g, server, first, count, begin, at, &next));
        }
        begin = end;
    }
    return STATUS_OK;
}

static void describe_shards(ps_plan *plan)
{
    for (int k = 0; k < plan->key_count; k++) {
        const ps_key *key = &plan->keys[k];
        ps_shard *shard = &plan->shards[key->server];
        if (shard->key_count++ == 0) {
            shard->first_key = k;
            shard->pieces.pieces = plan->pieces + key->first_piece;
            shard->begin = shard->pieces.pieces[0].offset;
        }
        shard->pieces.count += key->piece_count;
        shard->elements += key->elements;
        piece last = plan->pieces[key->first_piece + key->piece_count - 1];
        shard->end = last.offset + last.count;
    }
}

static status allocate(planning *g, int servers)
{
    ps_plan *plan = g->plan;
    int params = plan->param_count;
    /* A key ends when it has the size of a partition, at a shard boundary, after PS_KEY_PIECES parameters, or
     * before a parameter that is pushed at another point of the backward pass. */
    int64_t keys = g->total / g->partition + servers + 2 * plan->param_count + 1;
    g->most_keys = keys < PS_MOST_KEYS ? (int)keys : PS_MOST_KEYS;
    ps_memory *m = &plan->memory;
    plan->keys = ps_allocate(m, g->most_keys, sizeof *plan->keys);
    plan->pieces = ps_allocate(m, g->most_keys + params, sizeof *plan->pieces);
    plan->shards = ps_allocate(m, servers, sizeof *plan->shards);
    plan->first_key = ps_allocate(m, params, sizeof *plan->first_key);
    plan->keys_of = ps_allocate(m, params, sizeof *plan->keys_of);
    plan->push_first = ps_allocate(m, params, sizeof *plan->push_first);
    plan->push_count = ps_allocate(m, params, sizeof *plan->push_count);
    plan->pushable = ps_allocate(m, params, sizeof *plan->pushable);
    g->point = ps_allocate(m, params, sizeof *g->point);
    return ps_memory_check(m, "the plan of the parameter server");
}

static status make(planning *g, int servers)
{
    TRY(allocate(g, servers));
    find_points(g);
    list_pushable(g);
    TRY(cut_keys(g));
    describe_shards(g->plan);
    return STATUS_OK;
}

status ps_plan_make(const nn_program *program, const param_set *set, int servers, int64_t partition_bytes,
                    ps_plan **out)
{
    int size = dtype_size(set->type);
    planning g = {.program = program,
                  .set = set,
                  .partition = partition_bytes < size ? 1 : partition_bytes / size,
                  .total = set->model->parameter_elements};
    *out = NULL;
    if (servers > g.total)
        return fail(STATUS_CONFIG, "--servers: expected at most %lld, the parameters of model %s, got %d",
                    (long long)g.total, set->model->name, servers);
    g.plan = *out = calloc(1, sizeof *g.plan);
    if (!g.plan) return fail(STATUS_SYSTEM, "no memory for the plan of the parameter server");
    g.plan->param_count = set->model->param_count;
    g.plan->server_count = servers;
    g.plan->largest_sum = nn_program_largest_sum(program);
    status rc = make(&g, servers);
    if (rc != STATUS_OK) ps_plan_free(out);
    return rc;
}

void ps_plan_free(ps_plan **plan)
{
    if (*plan) ps_memory_free(&(*plan)->memory);
    free(*plan);
    *plan = NULL;
}

const char *ps_key_name(const ps_plan *plan, const nn_model *model, int key)
{
    return model->params[plan->keys[key].first_param].name;
}

int64_t ps_plan_largest_frame(const ps_plan *plan, const param_set *params)
{
    int64_t bytes = params->buffer_bytes, size = dtype_size(params->type);
    for (int k = 0; k < plan->key_count; k++) bytes = greatest(bytes, plan->keys[k].elements * size);
    return greatest(bytes, plan->largest_sum * (int64_t)sizeof(double));
}

/* ---- the queue --------------------------------------------------------------------------------- */

typedef struct ps_queued queued;

void ps_key_queue_init(ps_key_queue *q, int capacity, ps_priority priority, ps_memory *memory)
{
    *q = (ps_key_queue){.capacity = capacity, .priority = priority};
    q->heap = ps_allocate(memory, capacity, sizeof *q->heap);
}

void ps_key_queue_put(ps_key_queue *q, int key)
{
    assert(q->count < q->capacity);
    queued added = {q->priority == PS_PRIORITY_FIFO ? q->posted++ : key, key};
    int at = q->count++;
    for (int up; at > 0 && q->heap[up = (at - 1) / 2].rank > added.rank; at = up) q->heap[at] = q->heap[up];
    q->heap[at] = added;
}

int ps_key_queue_first(const ps_key_queue *q)
{
    assert(q->count > 0);
    return q->heap[0].key;
}

void ps_key_queue_drop(ps_key_queue *q)
{
    assert(q->count > 0);
    queued last = q->heap[--q->count];
    int at = 0;
    for (int down; (down = 2 * at + 1) < q->count; at = down) {
        if (down + 1 < q->count && q->heap[down + 1].rank < q->heap[down].rank) down++;
        if (q->heap[down].rank >= last.rank) break;
        q->heap[at] = q->heap[down];
    }
    q->heap[at] = last;
}
