#include "common/nn/shards.h"

#include "common/memory/plan.h"

#include <stdlib.h>

static status no_memory(const nn_model *m)
{
    return fail(STATUS_SYSTEM, "no memory for the shards of model %s", m->name);
}

static int64_t round_up(int64_t value, int64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* ---- units ------------------------------------------------------------------------------------ */

/* Numbers the units that have parameters. The root gets the last number. */
static void number_units(param_shards *s, const nn_model *m)
{
    for (int unit = 0; unit <= m->unit_count; unit++) {
        int of = unit < m->unit_count ? unit : NN_NONE;
        bool used = false;
        for (int i = 0; i < m->param_count; i++) {
            if (m->params[i].unit != of) continue;
            s->unit_of[i] = s->unit_count;
            used = true;
        }
        s->unit_count += used;
    }
}

static int64_t chunk_of(const param_shards *s, const nn_param *p)
{
    int64_t rows = p->shape.rank > 0 ? p->shape.dims[0] : 1;
    return round_up(rows, s->config.ranks) / s->config.ranks * (p->elements / rows);
}

static void place_unit(param_shards *s, const nn_model *m, int unit, int line, piece *pieces, int64_t *end)
{
    param_unit *u = &s->units[unit];
    int n = s->config.ranks;
    u->whole.offset = *end;
    for (int i = 0; i < m->param_count; i++) {
        if (s->unit_of[i] != unit) continue;
        int64_t chunk = chunk_of(s, &m->params[i]);
        pieces[i] = (piece){*end, m->params[i].elements};
        *end += round_up(s->config.rows ? n * chunk : m->params[i].elements, line);
        u->elements += m->params[i].elements;
        u->shard += chunk;
    }
    u->whole.count = *end - u->whole.offset;
    if (!s->config.rows) {
        u->whole.count = round_up(u->whole.count, (int64_t)line * n);
        u->shard = u->whole.count / n;
    }
    *end = u->whole.offset + u->whole.count;
    u->at = s->elements;
    u->reserved = round_up(u->shard, line);
    s->elements += u->reserved;
}

static void list_own(param_shards *s, const nn_model *m, int unit, const piece *pieces)
{
    param_unit *u = &s->units[unit];
    piece shard = param_shard_of(s, unit);
    int64_t at = u->at;
    u->first = s->piece_count;
    for (int i = 0; i < m->param_count; i++) {
        if (s->unit_of[i] != unit) continue;
        int64_t chunk = chunk_of(s, &m->params[i]);
        if (s->config.rows) shard = (piece){pieces[i].offset + s->config.rank * chunk, chunk};
        int64_t begin = pieces[i].offset > shard.offset ? pieces[i].offset : shard.offset;
        int64_t end = pieces[i].offset + pieces[i].count;
        if (end > shard.offset + shard.count) end = shard.offset + shard.count;
        if (begin < end) {
            s->own[s->piece_count] = (piece){begin, end - begin};
            s->pieces[s->piece_count++] = (piece){at + begin - shard.offset, end - begin};
            u->own += end - begin;
        }
        if (s->config.rows) at += chunk;
    }
    u->count = s->piece_count - u->first;
    s->own_elements += u->own;
}

/* If units are sharded by rows, lists the chunks of each unit in the order in which they are sent. */
static status list_sent(param_shards *s, const nn_model *m, const piece *pieces)
{
    if (!s->config.rows || !s->config.real) return STATUS_OK;
    piece *next = s->sent = calloc((size_t)s->config.ranks * (size_t)m->param_count + 1, sizeof *s->sent);
    if (!s->sent) return no_memory(m);
    for (int unit = 0; unit < s->unit_count; unit++) {
        param_unit *u = &s->units[unit];
        u->sent.pieces = next;
        for (int r = 0; r < s->config.ranks; r++)
            for (int i = 0; i < m->param_count; i++) {
                int64_t chunk = chunk_of(s, &m->params[i]);
                if (s->unit_of[i] == unit)
                    *next++ = (piece){pieces[i].offset - u->whole.offset + r * chunk, chunk};
            }
        u->sent.count = (int)(next - u->sent.pieces);
    }
    return STATUS_OK;
}

/* ---- where whole units are placed -------------------------------------------------------------- */

/* First and last operation of a pass that use a unit. `first` is -1 if the pass does not use the unit. */
typedef struct unit_span {
    int first, last;
} unit_span;

static void find_spans(param_shards *s, const nn_program *p, int pass, unit_span *spans)
{
    int begin = pass == PARAM_FORWARD ? 0 : p->loss_end,
        end = pass == PARAM_FORWARD ? p->forward_end : p->op_count;
    for (int u = 0; u < s->unit_count; u++) spans[u] = (unit_span){-1, -1};
    for (int i = begin; i < end; i++) {
        const nn_op *op = &p->ops[i];
        for (int j = 0; j < op->need_count; j++) {
            int u = s->unit_of[p->needs[op->need_first + j]];
            s->units[u].uses[pass]++;
            if (spans[u].first >= 0) continue;
            spans[u].first = i;
            s->units[u].position[pass] = s->order_count[pass];
            s->order[pass][s->order_count[pass]++] = u;
        }
        for (int j = 0; j < op->release_count; j++)
            spans[s->unit_of[p->releases[op->release_first + j]]].last = i;
    }
}

/* Returns the operation at which a unit is gathered. It is the first operation that uses the previous unit of
 * the pass. The first unit is gathered before the pass. */
static int gathered_from(const param_shards *s, const nn_program *p, int pass, int unit,
                         const unit_span *spans)
{
    int position = s->units[unit].position[pass];
    if (position > 0) return spans[s->order[pass][position - 1]].first;
    return pass == PARAM_FORWARD ? 0 : p->forward_end;
}

static status place_gathered(param_shards *s, const nn_program *p, unit_span *const *spans, int size,
                             plan_range *ranges)
{
    int64_t bytes;
    int n = s->unit_count;
    for (int u = 0; u < n; u++) {
        param_unit *unit = &s->units[u];
        for (int pass = 0; pass < PARAM_PASSES; pass++)
            ranges[pass * n + u] = (plan_range){
                .bytes = spans[pass][u].first < 0 ? 0 : unit->whole.count * size,
                .first = spans[pass][u].first < 0 ? 0 : gathered_from(s, p, pass, u, spans[pass]),
                .last = spans[pass][u].last};
        if (!s->config.keeps || spans[PARAM_FORWARD][u].first < 0 || spans[PARAM_BACKWARD][u].first < 0)
            continue;
        ranges[u].last = ranges[n + u].last;
        ranges[n + u].bytes = 0;
    }
    TRY(plan_place(ranges, PARAM_PASSES * n, &bytes));
    s->gathered_elements = bytes / size;
    for (int u = 0; u < n; u++)
        for (int pass = 0; pass < PARAM_PASSES; pass++) {
            bool kept = pass == PARAM_BACKWARD && s->config.keeps && spans[PARAM_FORWARD][u].first >= 0;
            int64_t offset = ranges[(kept ? 0 : pass * n) + u].offset / size;
            s->units[u].gathered[pass] = spans[pass][u].first < 0 && !kept ? -1 : offset;
        }
    return STATUS_OK;
}

/* Returns the last operation during which a unit's gradients stay in memory. After the backward operations of
 * the unit, the next unit runs, and meanwhile the gradients can be reduced. The memory is freed when the unit
 * after the next one begins. */
static int gradients_until(const param_shards *s, const nn_program *p, int unit, const unit_span *spans)
{
    int later = 0;
    for (int i = 0; i < s->order_count[PARAM_BACKWARD]; i++) {
        int first = spans[s->order[PARAM_BACKWARD][i]].first;
        if (first > spans[unit].last && ++later == 2) return first - 1;
    }
    return p->op_count - 1;
}

int64_t param_gradients_place(const param_shards *s, int unit)
{
    return s->units[unit].whole.count + (s->config.rows ? s->units[unit].reserved : 0);
}

static status place_gradients(param_shards *s, const nn_program *p, const unit_span *spans, int size,
                              plan_range *ranges)
{
    int64_t bytes;
    for (int u = 0; u < s->unit_count; u++)
        ranges[u] = (plan_range){.bytes = spans[u].first < 0 ? 0 : param_gradients_place(s, u) * size,
                                 .first = spans[u].first < 0 ? 0 : spans[u].first,
                                 .last = spans[u].first < 0 ? 0 : gradients_until(s, p, u, spans)};
    TRY(plan_place(ranges, s->unit_count, &bytes));
    s->gradient_elements = bytes / size;
    for (int u = 0; u < s->unit_count; u++)
        s->units[u].gradients = spans[u].first < 0 ? -1 : ranges[u].offset / size;
    return STATUS_OK;
}

static void place_params(param_shards *s, const nn_model *m, const piece *pieces)
{
    for (int i = 0; i < m->param_count; i++) {
        const param_unit *u = &s->units[s->unit_of[i]];
        int64_t within = pieces[i].offset - u->whole.offset;
        for (int pass = 0; pass < PARAM_PASSES; pass++)
            s->gathered[pass][i] = (piece){u->gathered[pass] + within, pieces[i].count};
        s->gradients[i] = (piece){u->gradients + within, pieces[i].count};
    }
}

static status plan_places(param_shards *s, const nn_program *p, int line, const piece *pieces)
{
    int n = s->unit_count, size = PLAN_ALIGNMENT / line;
    unit_span *all = calloc((size_t)n * PARAM_PASSES, sizeof *all),
              *spans[PARAM_PASSES] = {all, all ? all + n : NULL};
    plan_range *ranges = calloc((size_t)n * PARAM_PASSES, sizeof *ranges);
    status rc = all && ranges ? STATUS_OK : no_memory(p->model);
    for (int pass = 0; pass < PARAM_PASSES && rc == STATUS_OK; pass++) find_spans(s, p, pass, spans[pass]);
    if (rc == STATUS_OK) rc = place_gathered(s, p, spans, size, ranges);
    if (rc == STATUS_OK) rc = place_gradients(s, p, spans[PARAM_BACKWARD], size, ranges);
    if (rc == STATUS_OK) place_params(s, p->model, pieces);
    free(ranges);
    free(all);
    return rc;
}

/* ---- open ------------------------------------------------------------------------------------- */

static bool allocate(param_shards *s, const nn_model *m)
{
    size_t params = (size_t)m->param_count + 1, units = (size_t)m->unit_count + 1;
    s->units = calloc(units, sizeof *s->units);
    s->unit_of = calloc(params, sizeof *s->unit_of);
    s->own = calloc(params + units, sizeof *s->own);
    s->pieces = calloc(params + units, sizeof *s->pieces);
    s->gradients = calloc(params, sizeof *s->gradients);
    bool enough = s->units && s->unit_of && s->own && s->pieces && s->gradients;
    for (int pass = 0; pass < PARAM_PASSES; pass++) {
        s->order[pass] = calloc(units, sizeof *s->order[pass]);
        s->gathered[pass] = calloc(params, sizeof *s->gathered[pass]);
        enough = enough && s->order[pass] && s->gathered[pass];
    }
    return enough;
}

status param_shards_open(const nn_program *program, const param_shards_config *config, int line,
                         piece *pieces, int64_t *arena_elements, param_shards **out)
{
    const nn_model *m = program->model;
    param_shards *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return no_memory(m);
    s->config = *config;
    s->config.rows = config->rows && config->ranks > 1;
    status rc = allocate(s, m) ? STATUS_OK : no_memory(m);
    if (rc == STATUS_OK) {
        number_units(s, m);
        *arena_elements = 0;
        for (int u = 0; u < s->unit_count; u++) {
            place_unit(s, m, u, line, pieces, arena_elements);
            list_own(s, m, u, pieces);
        }
        rc = list_sent(s, m, pieces);
    }
    if (rc == STATUS_OK) rc = plan_places(s, program, line, pieces);
    if (rc == STATUS_OK)
        *out = s;
    else
        param_shards_close(&s);
    return rc;
}

void param_shards_close(param_shards **pointer)
{
    param_shards *s = *pointer;
    if (!s) return;
    for (int pass = 0; pass < PARAM_PASSES; pass++) {
        free(s->order[pass]);
        free(s->gathered[pass]);
    }
    free(s->units);
    free(s->unit_of);
    free(s->own);
    free(s->pieces);
    free(s->gradients);
    free(s->sent);
    free(s);
    *pointer = NULL;
}
