/* Operands whose reductions are exact in every type, and the expected results. */
#include "common/reduce/half.h"
#include "ring/bench/bench_impl.h"

#include <string.h>

/* Small integers; for products mostly ones, so that float16 holds the product of 16 ranks. */
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

/* Element i of what rank `me` ends up with. */
static double result_at(const bench_case *c, int me, int ranks, int64_t i)
{
    int64_t begin = collective_part_begin(c->count, ranks, me), part = collective_part_count(c->count, ranks, me);
    switch (c->kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
        return reduced(c, ranks, i);
    case COLLECTIVE_REDUCE_SCATTER:
        return reduced(c, ranks, begin + i);
    case COLLECTIVE_BROADCAST:
        return operand(c, c->root, i);
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_GATHER:
        return operand(c, owner_of(c, ranks, i), i);
    case COLLECTIVE_SCATTER:
        return operand(c, c->root, begin + i);
    case COLLECTIVE_ALL_TO_ALL:
        return operand(c, (int)(i / part), begin + i % part);
    default:
        return 0;
    }
}

static void store(dtype type, void *base, int64_t i, double v)
{
    switch (type) {
    case DTYPE_F64:
        ((double *)base)[i] = v;
        break;
    case DTYPE_F32:
        ((float *)base)[i] = (float)v;
        break;
    case DTYPE_F16:
        ((uint16_t *)base)[i] = f16_from_float((float)v);
        break;
    case DTYPE_BF16:
        ((uint16_t *)base)[i] = bf16_from_float((float)v);
        break;
    case DTYPE_I64:
        ((int64_t *)base)[i] = (int64_t)v;
        break;
    case DTYPE_I32:
        ((int32_t *)base)[i] = (int32_t)v;
        break;
    default:
        ((uint8_t *)base)[i] = (uint8_t)(int)v;
    }
}

/* Elements of `in` and `out` on this rank, and which element of the whole each begins with. */
typedef struct extents {
    int64_t in_count, in_first, out_count, out_first;
} extents;

static extents extents_of(const bench_case *c, int rank, int ranks)
{
    int64_t begin = collective_part_begin(c->count, ranks, rank), part = collective_part_count(c->count, ranks, rank);
    int64_t at_root = rank == c->root ? c->count : 0;
    switch (c->kind) {
    case COLLECTIVE_ALL_REDUCE:
        return (extents){c->count, 0, c->count, 0};
    case COLLECTIVE_REDUCE:
        return (extents){c->count, 0, at_root, 0};
    case COLLECTIVE_BROADCAST:
        return (extents){at_root, 0, c->count, 0};
    case COLLECTIVE_ALL_GATHER:
        return (extents){part, begin, c->count, 0};
    case COLLECTIVE_REDUCE_SCATTER:
        return (extents){c->count, 0, part, begin};
    case COLLECTIVE_GATHER:
        return (extents){part, begin, at_root, 0};
    case COLLECTIVE_SCATTER:
        return (extents){at_root, 0, part, begin};
    case COLLECTIVE_ALL_TO_ALL:
        return (extents){c->count, 0, ranks * part, 0};
    default:
        return (extents){0};
    }
}

collective_call bench_call(const bench_rank *b, const bench_case *c, int rank, int ranks)
{
    extents e = extents_of(c, rank, ranks);
    int size = dtype_size(c->type);
    char *in = b->memory.data, *out = in + (c->in_place ? 0 : b->half_bytes);
    return (collective_call){
        .kind = c->kind,
        .op = c->op,
        .type = c->type,
        .root = c->root,
        .count = c->count,
        .in.base = in + e.in_first * size,
        .out.base = out + e.out_first * size,
    };
}

void bench_fill(const bench_rank *b, const bench_case *c, int rank, int ranks)
{
    extents e = extents_of(c, rank, ranks);
    collective_call call = bench_call(b, c, rank, ranks);
    for (int64_t i = 0; i < e.in_count; i++) store(c->type, call.in.base, i, operand(c, rank, e.in_first + i));
}

int64_t bench_count_wrong(const bench_rank *b, const bench_case *c, int rank, int ranks)
{
    extents e = extents_of(c, rank, ranks);
    collective_call call = bench_call(b, c, rank, ranks);
    size_t size = (size_t)dtype_size(c->type);
    int64_t wrong = 0;
    for (int64_t i = 0; i < e.out_count; i++) {
        char right[8];
        store(c->type, right, 0, result_at(c, rank, ranks, i));
        wrong += memcmp((const char *)call.out.base + (size_t)i * size, right, size) != 0;
    }
    return wrong;
}
