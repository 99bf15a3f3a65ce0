/* A server's arithmetic: gradients are summed in the order of the ranks, averaged, and applied. */
#include "ps/server/server_impl.h"

#include "common/base/clock.h"
#include "common/reduce/reduce.h"
#include "common/trace/trace.h"
#include "ps/bytes.h"

#include <stdlib.h>
#include <string.h>

/* Elements that are summed and then updated while they are in the cache; few enough for a device not to
 * call in threads of its own. */
enum { CHUNK = 8192 };

static bool keeps_copies(const ps_server *s)
{
    return s->c.policy->consistency == PS_SSP;
}

/* Where worker `worker`'s gradients of `round` were copied to, as an arena. */
static char *copies_of(const ps_server *s, int64_t round, int worker)
{
    int64_t extent = (s->shard->end - s->shard->begin) * (int64_t)s->element;
    char *data = (char *)s->holds_memory.data + (round % s->slots * s->c.world + worker) * extent;
    return server_as_arena(data, s->shard->begin, s->element);
}

/* ---- memory ----------------------------------------------------------------------------------- */

static status open_arenas(ps_server *s)
{
    size_t extent = (size_t)(s->shard->end - s->shard->begin) * s->element;
    int64_t logical = s->shard->elements * (int64_t)s->element, arenas = 0;
    TRY(device_allocate(s->c.device, DEVICE_MEMORY_PRIVATE, sizeof(double), &s->squares_memory));
    if (s->c.policy->consistency != PS_ASYNC) {
        if (!s->c.front) TRY(device_allocate(s->c.device, DEVICE_MEMORY_PRIVATE, extent, &s->sums_memory));
        s->sums = server_as_arena(s->sums_memory.data, s->shard->begin, s->element);
        arenas++;
    }
    if (keeps_copies(s)) {
        int64_t copies = s->slots * s->c.world;
        TRY(device_allocate(s->c.device, DEVICE_MEMORY_PRIVATE, extent * (size_t)copies, &s->holds_memory));
        arenas += copies;
    }
    ledger_acquire(s->c.ledger, LEDGER_BUCKETS, arenas * logical, arenas * (int64_t)extent);
    return STATUS_OK;
}

status server_sum_open(ps_server *s)
{
    size_t threads = (size_t)s->c.threads;
    s->sums_memory.fd = s->holds_memory.fd = s->squares_memory.fd = -1;
    s->sources = calloc(threads * (size_t)s->c.world, sizeof *s->sources);
    s->scratch = malloc(threads * CHUNK * s->element);
    if (!s->sources || !s->scratch) return fail(STATUS_SYSTEM, "no memory for parameter server %d", s->c.index);
    TRY(open_arenas(s));
    if (s->c.front) TRY(server_gpu_open(s));
    TRY(device_stream_open(s->c.device, DEVICE_STREAM_COMMUNICATION, &s->stream));
    return ps_team_open(s->c.threads, &s->team);
}

void server_sum_close(ps_server *s)
{
    server_gpu_close(s);
    ps_team_close(&s->team);
    if (s->stream) device_stream_close(&s->stream);
    device_free(s->c.device, &s->sums_memory);
    device_free(s->c.device, &s->holds_memory);
    device_free(s->c.device, &s->squares_memory);
    free(s->sources);
    free(s->scratch);
}

/* ---- one key ---------------------------------------------------------------------------------- */

typedef struct job {
    ps_server *s;
    const server_work *work;
    piece_list pieces;
    atomic_bool failed; /* the first failure has it and writes `error` */
    error_record error;
} job;

const char *server_pushed_piece(ps_server *s, int local, int worker, int index)
{
    const ps_message *m = server_held(s, local, worker);
    if (m->remote) return ps_message_frame(m, index).data;
    int64_t offset = ps_key_pieces(s->c.plan, s->first + local).pieces[index].offset;
    const char *arena = keeps_copies(s) ? copies_of(s, s->keys[local].updates, worker) : s->workers[worker].grads;
    return arena + offset * (int64_t)s->element;
}

/* Elements [at, at + count) of piece `index`, averaged. */
static void sum_chunk(const job *j, int part, int index, int64_t at, int64_t count, void *out)
{
    ps_server *s = j->s;
    dtype type = s->c.params->type;
    int world = s->c.world;
    const void **sources = s->sources + (int64_t)part * world;
    for (int w = 0; w < world; w++)
        sources[w] = server_pushed_piece(s, j->work->local, w, index) + at * (int64_t)s->element;
    if (!s->c.policy->divide_before) {
        reduce_many(type, REDUCE_MEAN, &out, 1, sources, world, count);
        return;
    }
    char *divided = s->scratch + (int64_t)part * CHUNK * (int64_t)s->element;
    reduce_divide(type, out, sources[0], count, world);
    for (int w = 1; w < world; w++) {
        reduce_divide(type, divided, sources[w], count, world);
        reduce_pair(type, REDUCE_SUM, out, out, divided, count);
    }
}

static status do_chunk(const job *j, int part, int index, int64_t at, int64_t count, int64_t *spent_ns)
{
    ps_server *s = j->s;
    const server_work *w = j->work;
    piece whole = j->pieces.pieces[index], chunk = {whole.offset + at, count};
    if (w->sums) sum_chunk(j, part, index, at, count, s->sums + chunk.offset * (int64_t)s->element);
    if (!w->updates) return STATUS_OK;
    const char *grads = s->sums;
    if (w->worker >= 0)
        grads = server_as_arena(server_pushed_piece(s, w->local, w->worker, index), whole.offset, s->element);
    int64_t begin = clock_now_ns();
    status rc = optimizer_update(s->c.optimizer, s->stream, s->params, grads, (piece_list){&chunk, 1},
                                 w->info.optimizer_step, w->info.rate, w->scale);
    *spent_ns += clock_now_ns() - begin;
    return rc;
}

static void do_part(void *context, int part, int parts)
{
    job *j = context;
    int64_t spent_ns = 0;
    for (int i = 0; i < j->pieces.count; i++) {
        int64_t all = j->pieces.pieces[i].count, end = all * (part + 1) / parts;
        for (int64_t at = all * part / parts; at < end; at += CHUNK) {
            int64_t count = end - at < CHUNK ? end - at : CHUNK;
            if (do_chunk(j, part, i, at, count, &spent_ns) == STATUS_OK) continue;
            if (!atomic_exchange(&j->failed, true)) error_copy(&j->error);
            return;
        }
    }
    if (part == 0) atomic_fetch_add_explicit(&j->s->update_ns, spent_ns, memory_order_relaxed);
}

/* Virtual devices: the sum reads every push and writes one; an update reads and writes parameters and state. */
static void spend(ps_server *s, const server_work *work)
{
    double bytes = (double)server_key_bytes(s, work->local);
    int states = optimizer_state_count(optimizer_get_options(s->c.optimizer));
    if (work->sums) ps_spend_pass(s->c.device, bytes * (s->c.world + 1), s->c.threads);
    int64_t summed = device_now_ns(s->c.device);
    if (work->updates) ps_spend_pass(s->c.device, bytes * (3 + 2 * states), s->c.threads);
    atomic_fetch_add_explicit(&s->update_ns, device_now_ns(s->c.device) - summed, memory_order_relaxed);
}

status server_do(ps_server *s, const server_work *work)
{
    if (!ps_bytes_exist(s->c.device)) {
        spend(s, work);
        return STATUS_OK;
    }
    if (s->gpu) return server_gpu_do(s, work);
    job j = {.s = s, .work = work, .pieces = ps_key_pieces(s->c.plan, s->first + work->local)};
    int64_t begin = clock_now_ns();
    ps_team_run(s->team, do_part, &j);
    trace_slice(s->c.trace, TRACE_OPTIMIZER, work->updates ? "update of key" : "average of key", s->first + work->local,
                begin, clock_now_ns());
    return atomic_load(&j.failed) ? error_adopt(&j.error) : STATUS_OK;
}

status server_copy_pieces(ps_server *s, int local, char *to, const char *from)
{
    if (to == from) return STATUS_OK;
    if (s->c.peers) return server_gpu_copy(s, local, to, from);
    piece_list pieces = ps_key_pieces(s->c.plan, s->first + local);
    for (int i = 0; i < pieces.count; i++) {
        int64_t at = pieces.pieces[i].offset * (int64_t)s->element;
        ps_move(s->c.device, to + at, from + at, (size_t)pieces.pieces[i].count * s->element);
    }
    return STATUS_OK;
}

status server_copy_push(ps_server *s, int local, int worker, const ps_message *m)
{
    piece_list pieces = ps_key_pieces(s->c.plan, s->first + local);
    char *copies = copies_of(s, m->header.step, worker);
    if (!m->remote) return server_copy_pieces(s, local, copies, s->workers[worker].grads);
    for (int i = 0; i < pieces.count; i++) {
        int64_t at = pieces.pieces[i].offset * (int64_t)s->element;
        ps_move(s->c.device, copies + at, ps_message_frame(m, i).data, (size_t)pieces.pieces[i].count * s->element);
    }
    return STATUS_OK;
}

status server_squares(ps_server *s, int worker, double *out)
{
    if (s->gpu) return server_gpu_squares(s, worker, out);
    double none = 0, *sum = ps_bytes_exist(s->c.device) ? s->squares_memory.data : &none;
    *sum = 0;
    if (worker < 0) {
        TRY(optimizer_sum_squares(s->c.optimizer, s->stream, s->sums, s->shard->pieces, sum));
    } else {
        for (int local = 0; local < s->count; local++) {
            piece_list pieces = ps_key_pieces(s->c.plan, s->first + local);
            for (int i = 0; i < pieces.count; i++) {
                const char *grads = server_as_arena(server_pushed_piece(s, local, worker, i), pieces.pieces[i].offset, s->element);
                TRY(optimizer_sum_squares(s->c.optimizer, s->stream, grads, (piece_list){&pieces.pieces[i], 1}, sum));
            }
        }
    }
    *out = *sum;
    return STATUS_OK;
}
