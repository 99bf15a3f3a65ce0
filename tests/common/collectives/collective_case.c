#include "tests/common/collectives/collective_case.h"

#include "common/reduce/half.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An operand in pieces alternates runs of 7 elements with gaps of 3. */
enum { GUARD = 0x5a, RUN = 7, STRIDE = 10 };

static const char *const memory_names[] = {
    [CASE_WINDOW] = "window",
    [CASE_PRIVATE] = "private",
    [CASE_MIXED] = "mixed",
    [CASE_PIECES] = "pieces",
    [CASE_PRIVATE_PIECES] = "private pieces",
    [CASE_SHIFTED] = "shifted",
    [CASE_UNLIKE] = "unlike",
};

char *case_format(const collective_case *c, char *buffer, size_t size)
{
    snprintf(buffer, size, "%s %s of %lld %s, root %d, %s place, %s memory", collective_kind_name(c->kind),
             reduce_op_name(c->op), (long long)c->count, dtype_name(c->type), c->root,
             c->in_place ? "in" : "out of", memory_names[c->memory]);
    return buffer;
}

/* Bytes of the area for in and out. Each has `most` elements of 8 bytes, spread by the stride, and room for
 * shifts. */
static int64_t area_bytes(int64_t most)
{
    return ((most + RANKS_MAX) * STRIDE / RUN + 2 * STRIDE) * 8 + 64 * RANKS_MAX;
}

status case_arena_open(int64_t most, case_arena *out)
{
    *out = (case_arena){.most = most};
    TRY(shm_create("test window", 2 * area_bytes(most), &out->window));
    out->private = malloc((size_t)(2 * area_bytes(most)));
    out->pieces = calloc((size_t)(2 * (most / RUN + 2 * RANKS_MAX + 2)), sizeof *out->pieces);
    if (!out->private || !out->pieces) return fail(STATUS_SYSTEM, "no memory for a test");
    return STATUS_OK;
}

void case_arena_close(case_arena *arena)
{
    shm_close(&arena->window);
    free(arena->private);
    free(arena->pieces);
}

/* ---- values ----------------------------------------------------------------------------------- */

/* The values are small integers, so that sums are exact in every type. Products of 16 ranks are powers of two
 * that float16 holds. */
static int value_of(const collective_case *c, int rank, int64_t i)
{
    int64_t mixed = (i * 7 + rank * 3 + i / 5) % 7;
    if (c->op != REDUCE_PRODUCT) return (int)mixed - 3;
    return mixed == 0 && rank < 8 ? 2 : mixed == 1 ? -1 : 1;
}

static void store(dtype type, char *base, int64_t offset, double v)
{
    char *at = base + offset * dtype_size(type);
    switch (type) {
    case DTYPE_F64:
        *(double *)at = v;
        break;
    case DTYPE_F32:
        *(float *)at = (float)v;
        break;
    case DTYPE_F16:
        *(uint16_t *)at = f16_from_float((float)v);
        break;
    case DTYPE_BF16:
        *(uint16_t *)at = bf16_from_float((float)v);
        break;
    case DTYPE_I64:
        *(int64_t *)at = (int64_t)v;
        break;
    case DTYPE_I32:
        *(int32_t *)at = (int32_t)v;
        break;
    default:
        *(uint8_t *)at = (uint8_t)(int)v;
    }
}

static double reduced(const collective_case *c, int n, int64_t i)
{
    int r = value_of(c, 0, i);
    for (int rank = 1; rank < n; rank++) {
        int v = value_of(c, rank, i);
        if (c->op == REDUCE_MIN)
            r = v < r ? v : r;
        else if (c->op == REDUCE_MAX)
            r = v > r ? v : r;
        else if (c->op == REDUCE_PRODUCT)
            r *= v;
        else
            r += v;
    }
    if (c->op != REDUCE_MEAN) return r;
    if (c->type == DTYPE_I32 || c->type == DTYPE_I64) return r / n;
    return c->type == DTYPE_F64 ? (double)r / n : (double)((float)r / (float)n);
}

/* Returns element i of the whole buffer. The value comes from the rank whose part contains this element. */
static double gathered(const collective_case *c, int n, int64_t i)
{
    int from = 0;
    while (i >= collective_part_begin(c->count, n, from + 1)) from++;
    return value_of(c, from, i);
}

static double expected(const collective_case *c, int n, int me, int64_t i)
{
    switch (c->kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
        return reduced(c, n, i);
    case COLLECTIVE_REDUCE_SCATTER:
        return reduced(c, n, collective_part_begin(c->count, n, me) + i);
    case COLLECTIVE_BROADCAST:
        return value_of(c, c->root, i);
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_GATHER:
        return gathered(c, n, i);
    case COLLECTIVE_SCATTER:
        return value_of(c, c->root, collective_part_begin(c->count, n, me) + i);
    case COLLECTIVE_ALL_TO_ALL: {
        int64_t part = collective_part_count(c->count, n, me);
        return value_of(c, (int)(i / part), collective_part_begin(c->count, n, me) + i % part);
    }
    default:
        return value_of(c, c->root, i); /* For COLLECTIVE_RECEIVE the values come from the root. */
    }
}

/* ---- operands --------------------------------------------------------------------------------- */

typedef struct operand {
    collective_buffer buffer;
    char *area;
    int64_t count, first; /* Number of elements, and the index in the whole buffer of element 0. */
    bool pieces;
} operand;

static bool in_pieces(const collective_case *c, int which)
{
    bool unlike = c->memory == CASE_UNLIKE && which == 1 && !c->in_place;
    return c->memory == CASE_PIECES || c->memory == CASE_PRIVATE_PIECES || unlike;
}

/* Returns the offset of element i in a buffer, which has gaps if it is in pieces. */
static int64_t spread(bool pieces, int64_t i)
{
    return pieces ? i / RUN * STRIDE + i % RUN : i;
}

/* Makes a buffer of `count` elements: elements [first, first + count) of a whole buffer that begins at
 * `area`. */
static operand make_operand(const collective_case *c, bool spread_out, char *area, piece *pieces,
                            int64_t first, int64_t count)
{
    operand o = {.area = area, .count = count, .first = first, .pieces = spread_out};
    o.buffer.base = area;
    if (!o.pieces) {
        o.buffer.base = area + first * dtype_size(c->type);
        return o;
    }
    int used = 0;
    for (int64_t i = first; i < first + count;) {
        int64_t run = RUN - i % RUN;
        if (run > first + count - i) run = first + count - i;
        pieces[used++] = (piece){spread(true, i), run};
        i += run;
    }
    o.buffer.pieces = (piece_list){pieces, used};
    return o;
}

static char *area_of(const collective_case *c, const case_arena *arena, int me, int which)
{
    bool private =
        c->memory == CASE_PRIVATE || c->memory == CASE_PRIVATE_PIECES || (c->memory == CASE_MIXED && me == 0);
    char *base = private ? arena->private : arena->window.data;
    return base + which * area_bytes(arena->most) + (c->memory == CASE_SHIFTED ? me * 64 : 0);
}

typedef struct operands {
    operand in, out;
} operands;

static operands make_operands(const collective_case *c, case_arena *arena, int n, int me)
{
    int64_t begin = collective_part_begin(c->count, n, me), part = collective_part_count(c->count, n, me);
    int64_t in_count = c->count, out_count = c->count, in_first = 0, out_first = 0;
    bool root = me == c->root;
    char *a = area_of(c, arena, me, 0), *b = c->in_place ? a : area_of(c, arena, me, 1);
    piece *second = arena->pieces + arena->most / RUN + 2 * RANKS_MAX + 2;
    switch (c->kind) {
    case COLLECTIVE_REDUCE:
        out_count = root ? c->count : 0;
        break;
    case COLLECTIVE_BROADCAST:
        in_count = root ? c->count : 0;
        break;
    case COLLECTIVE_ALL_GATHER:
        in_count = part, in_first = begin;
        break;
    case COLLECTIVE_GATHER:
        in_count = part, in_first = begin, out_count = root ? c->count : 0;
        break;
    case COLLECTIVE_REDUCE_SCATTER:
        out_count = part, out_first = begin;
        break;
    case COLLECTIVE_SCATTER:
        in_count = root ? c->count : 0, out_count = part, out_first = begin;
        break;
    case COLLECTIVE_ALL_TO_ALL:
        out_count = n * part;
        break;
    case COLLECTIVE_SEND:
        out_count = 0;
        break;
    case COLLECTIVE_RECEIVE:
        in_count = 0;
        break;
    case COLLECTIVE_BARRIER:
        in_count = out_count = 0;
        break;
    default:
        break;
    }
    return (operands){make_operand(c, in_pieces(c, 0), a, arena->pieces, in_first, in_count),
                      make_operand(c, in_pieces(c, 1), b, second, out_first, out_count)};
}

static void fill(const collective_case *c, const operands *o, int me)
{
    for (int64_t i = 0; i < o->in.count; i++)
        store(c->type, o->in.area, spread(o->in.pieces, o->in.first + i), value_of(c, me, o->in.first + i));
}

/* Compares both areas with their expected content. The expected content starts as guard bytes, then the
 * inputs are written, and the outputs last. */
static status compare(const collective_case *c, const operands *o, int n, int me)
{
    char text[160];
    int size = dtype_size(c->type);
    for (int64_t i = 0; i < o->out.count; i++) {
        int64_t at = spread(o->out.pieces, o->out.first + i);
        char wanted[8];
        store(c->type, wanted, 0, expected(c, n, me, i));
        if (memcmp(o->out.area + at * size, wanted, (size_t)size) == 0) continue;
        unsigned long long found = 0, right = 0;
        memcpy(&found, o->out.area + at * size, (size_t)size);
        memcpy(&right, wanted, (size_t)size);
        return fail(STATUS_MISMATCH, "%s, %d ranks: rank %d has 0x%llx at %lld, expected %g (0x%llx)",
                    case_format(c, text, sizeof text), n, me, found, (long long)i, expected(c, n, me, i),
                    right);
    }
    if (o->out.pieces) { /* Checks that the gaps were not written. */
        for (int64_t i = 0; i < o->out.count * STRIDE / RUN; i++)
            if (i % STRIDE >= RUN && (unsigned char)o->out.area[i * size] != GUARD)
                return fail(STATUS_MISMATCH, "%s: rank %d: a gap was written at element %lld",
                            case_format(c, text, sizeof text), me, (long long)i);
    }
    int64_t end = spread(o->out.pieces, o->out.first + o->out.count) * size;
    bool alone = !c->in_place;
    for (int64_t i = end; alone && i < end + 64; i++)
        if ((unsigned char)o->out.area[i] != GUARD)
            return fail(STATUS_MISMATCH, "%s: rank %d: written past the end",
                        case_format(c, text, sizeof text), me);
    for (int64_t i = 0; alone && i < o->in.count; i++) {
        char wanted[8];
        store(c->type, wanted, 0, value_of(c, me, o->in.first + i));
        if (memcmp(o->in.area + spread(o->in.pieces, o->in.first + i) * size, wanted, (size_t)size) != 0)
            return fail(STATUS_MISMATCH, "%s: rank %d: its input %lld was changed",
                        case_format(c, text, sizeof text), me, (long long)i);
    }
    return STATUS_OK;
}

/* Each rank sends to the next rank, and receives from the previous rank, the root of the receive. */
static status run_send(collective_group *group, case_arena *arena, collective_case sends)
{
    int n = collective_group_size(group), me = collective_group_rank(group);
    if (n == 1) return STATUS_OK;
    collective_case receives = sends;
    receives.kind = COLLECTIVE_RECEIVE;
    receives.root = (me + n - 1) % n;
    sends.root = (me + 1) % n;
    sends.in_place = receives.in_place = false;
    operands from = make_operands(&sends, arena, n, me), to = make_operands(&receives, arena, n, me);
    operands both = {from.in, to.out};
    memset(both.out.area, GUARD, (size_t)(area_bytes(sends.count) - 64 * RANKS_MAX));
    fill(&sends, &both, me);
    collective_call call = {.kind = COLLECTIVE_SEND,
                            .type = sends.type,
                            .root = sends.root,
                            .count = sends.count,
                            .in = both.in.buffer};
    collective_ticket ticket;
    TRY(collective_post(group, &call, &ticket));
    call = (collective_call){.kind = COLLECTIVE_RECEIVE,
                             .type = sends.type,
                             .root = receives.root,
                             .count = sends.count,
                             .out = both.out.buffer};
    TRY(collective_run(group, &call));
    TRY(ranks_wait(group, ticket));
    return compare(&receives, &both, n, me);
}

status case_run(collective_group *group, case_arena *arena, const collective_case *c)
{
    int n = collective_group_size(group), me = collective_group_rank(group);
    if (c->kind == COLLECTIVE_SEND) return run_send(group, arena, *c);
    operands o = make_operands(c, arena, n, me);
    size_t used = (size_t)(area_bytes(c->count) - 64 * RANKS_MAX);
    memset(o.in.area, GUARD, used);
    memset(o.out.area, GUARD, used);
    fill(c, &o, me);
    collective_call call = {.kind = c->kind,
                            .op = c->op,
                            .type = c->type,
                            .root = c->root,
                            .tag = (int)c->count,
                            .count = c->count,
                            .in = o.in.buffer,
                            .out = o.out.buffer};
    TRY(collective_run(group, &call));
    return compare(c, &o, n, me);
}
