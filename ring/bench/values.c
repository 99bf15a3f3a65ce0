/* Operands whose reductions are exact in every type, and the expected results. */
#include "ring/bench/bench_impl.h"

#include <string.h>

/* Returns a small integer. In a product at most 8 operands are 2, and all others are 1 or -1. Therefore the
 * product of any number of operands is exact in float16. */
static int operand(const bench_case *c, int rank, int64_t i)
{
    int mixed = (int)((i * 7 + rank * 3 + i / 5) % 7);
    if (c->op != REDUCE_PRODUCT) return mixed - 3;
    return mixed == 0 && rank < 8 ? 2 : mixed == 1 ? -1 : 1;
}

static double reduced(const bench_case *c, int ranks, int64_t i)
{
    int result = operand(c, 0, i);
    for (int rank = 1; rank < ranks; rank++) {
        int v = operand(c, rank, i);
        if (c->op == REDUCE_MIN)
            result = v < result ? v : result;
        else if (c->op == REDUCE_MAX)
            result = v > result ? v : result;
        else if (c->op == REDUCE_PRODUCT)
            result *= v;
        else
            result += v;
    }
    if (c->op != REDUCE_MEAN) return result;
    if (c->type == DTYPE_I32 || c->type == DTYPE_I64) return result / ranks;
    return c->type == DTYPE_F64 ? (double)result / ranks : (double)((float)result / (float)ranks);
}

static int owner_of(const bench_case *c, int ranks, int64_t i)
{
    int rank = 0;
    while (rank + 1 < ranks && i >= collective_part_begin(c->count, ranks, rank + 1)) rank++;
    return rank;
}

/* Returns element i of the result that rank `me` would have if it received the whole result. For all_to_all,
 * returns element i of the elements that the rank receives. */
static double result_at(const bench_case *c, int me, int ranks, int64_t i)
{
    int64_t part = collective_part_count(c->count, ranks, me);
    if (collective_reduces(c->kind)) return reduced(c, ranks, i);
    if (collective_has_root(c->kind) && c->kind != COLLECTIVE_GATHER) return operand(c, c->root, i);
    if (c->kind != COLLECTIVE_ALL_TO_ALL) return operand(c, owner_of(c, ranks, i), i);
    return operand(c, (int)(i / part), collective_part_begin(c->count, ranks, me) + i % part);
}

static void store(dtype type, void *base, int64_t i, double v)
{
    if (type == DTYPE_I64)
        ((int64_t *)base)[i] = (int64_t)v;
    else if (type == DTYPE_I32)
        ((int32_t *)base)[i] = (int32_t)v;
    else
        reduce_convert(type, (char *)base + i * dtype_size(type), DTYPE_F64, &v, 1, 1);
}

collective_call bench_call(const bench_rank *b, const bench_case *c, int rank, int ranks)
{
    int size = dtype_size(c->type);
    char *in = b->memory.data, *out = in + (c->in_place ? 0 : b->half_bytes);
    collective_call call = {
        .kind = c->kind, .op = c->op, .type = c->type, .root = c->root, .count = c->count};
    call.in.base = in + collective_in_extent(&call, ranks, rank).begin * size;
    call.out.base = out + collective_out_extent(&call, ranks, rank).begin * size;
    return call;
}

void bench_fill(const bench_rank *b, const bench_case *c, int rank, int ranks)
{
    collective_call call = bench_call(b, c, rank, ranks);
    collective_extent in = collective_in_extent(&call, ranks, rank);
    for (int64_t i = 0; i < in.count; i++) store(c->type, call.in.base, i, operand(c, rank, in.begin + i));
}

int64_t bench_count_wrong(const bench_rank *b, const bench_case *c, int rank, int ranks)
{
    collective_call call = bench_call(b, c, rank, ranks);
    collective_extent out = collective_out_extent(&call, ranks, rank);
    size_t size = (size_t)dtype_size(c->type);
    int64_t wrong = 0;
    for (int64_t i = 0; i < out.count; i++) {
        char right[8];
        store(c->type, right, 0, result_at(c, rank, ranks, out.begin + i));
        wrong += memcmp((const char *)call.out.base + (size_t)i * size, right, size) != 0;
    }
    return wrong;
}
