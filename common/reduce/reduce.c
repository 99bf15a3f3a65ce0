#include "common/reduce/reduce.h"

#include "common/reduce/reduce_impl.h"

#include <assert.h>
#include <string.h>

/* Returns the kernels for the last instruction set in the list that this processor supports. */
static const reduce_kernels *kernels(void)
{
    const reduce_kernels *best = NULL;
#define CONSIDER(name)                                                                                       \
    if (processor_has_##name()) best = &reduce_kernels_##name;
    PROCESSOR_ISA_LIST(CONSIDER)
#undef CONSIDER
    return best;
}

const char *reduce_op_name(reduce_op op)
{
#define OP_NAME(name, text) [REDUCE_##name] = text,
    static const char *const names[] = {REDUCE_OP_LIST(OP_NAME)};
#undef OP_NAME
    return names[op];
}

bool reduce_has_type(dtype type)
{
    return kernels()->convert[type][type] != NULL;
}

bool reduce_converts(dtype to, dtype from)
{
    return kernels()->convert[to][from] != NULL;
}

void reduce_pair(dtype type, reduce_op op, void *out, const void *a, const void *b, int64_t count)
{
    kernels()->pair[type][op](out, a, b, count);
}

void reduce_many(dtype type, reduce_op op, void *const *outs, int out_count, const void *const *ins,
                 int in_count, int64_t count)
{
    assert(in_count > 0 && out_count > 0);
    kernels()->many[type][op](outs, out_count, ins, in_count, count, op == REDUCE_MEAN ? in_count : 1);
}

void reduce_divide(dtype type, void *out, const void *in, int64_t count, double divisor)
{
    if (divisor != 1)
        kernels()->convert[type][type](out, in, count, divisor);
    else if (out != in)
        memcpy(out, in, (size_t)(count * dtype_size(type)));
}

void reduce_average(dtype type, void *out, const void *const *ins, int in_count, int64_t count, double before,
                    double after)
{
    enum { BLOCK_BYTES = 4096 };
    _Alignas(64) char divided[BLOCK_BYTES];
    int64_t size = dtype_size(type), block = BLOCK_BYTES / size;
    if (before == 1) {
        kernels()->many[type][REDUCE_MEAN](&out, 1, ins, in_count, count, (int64_t)after);
        return;
    }
    for (int64_t at = 0; at < count; at += block) {
        int64_t some = count - at < block ? count - at : block;
        char *to = (char *)out + at * size;
        reduce_divide(type, to, (const char *)ins[0] + at * size, some, before);
        for (int k = 1; k < in_count; k++) {
            reduce_divide(type, divided, (const char *)ins[k] + at * size, some, before);
            reduce_pair(type, REDUCE_SUM, to, to, divided, some);
        }
        reduce_divide(type, to, to, some, after);
    }
}

void reduce_convert(dtype to, void *out, dtype from, const void *in, int64_t count, double divisor)
{
    if (to == from)
        reduce_divide(to, out, in, count, divisor);
    else
        kernels()->convert[to][from](out, in, count, divisor);
}

const char *reduce_instruction_set(void)
{
    return kernels()->name;
}
