#include "common/data/sampler.h"

#include "common/base/random.h"
#include "common/data/permutation.h"

#include <assert.h>
#include <inttypes.h>

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

status sampler_init(sampler *s, const sampler_config *config)
{
    int64_t n = config->samples, world = config->world, batch = config->batch;
    assert(world >= 1 && batch >= 1);
    if (n > INT32_MAX)
        return fail(STATUS_CONFIG, "data set: found %" PRId64 " samples, allowed is at most %d", n,
                    INT32_MAX);
    if (n < world)
        return fail(STATUS_CONFIG,
                    "data set: found %" PRId64 " samples for %" PRId64
                    " ranks, allowed is at least one sample a rank",
                    n, world);
    *s = (sampler){.config = *config};
    s->rank_samples = config->drop_last ? n / world : divide_up(n, world);
    int64_t cut = config->mode == SAMPLER_GLOBAL ? n : s->rank_samples;
    int64_t whole = config->mode == SAMPLER_GLOBAL ? world * batch : batch;
    s->steps = config->drop_last ? cut / whole : divide_up(cut, whole);
    if (s->steps == 0)
        return fail(STATUS_CONFIG,
                    "--drop-last: found %" PRId64 " samples for %" PRId64 " ranks with batches of %" PRId64
                    ", allowed is at least one full batch for every rank",
                    n, world, batch);
    return STATUS_OK;
}

static sampler_span distributed_span(const sampler *s, int rank, int64_t step)
{
    int64_t world = s->config.world, batch = s->config.batch, begin = step * batch;
    sampler_span span = {.first = begin * world + rank, .stride = world};
    span.count = smaller(batch, s->rank_samples - begin);
    /* Less than `world` positions are padding, so it is a rank's last sample or none. */
    int64_t last = span.first + (span.count - 1) * world;
    span.padding = last >= s->config.samples;
    return span;
}

static sampler_span global_span(const sampler *s, int rank, int64_t step)
{
    int64_t whole = s->config.world * s->config.batch, begin = step * whole;
    int64_t count = smaller(whole, s->config.samples - begin), chunk = divide_up(count, s->config.world);
    int64_t from = smaller(rank * chunk, count), to = smaller(from + chunk, count);
    return (sampler_span){.first = begin + from, .stride = 1, .count = to - from};
}

sampler_span sampler_span_of(const sampler *s, int rank, int64_t step)
{
    assert(rank >= 0 && rank < s->config.world && step >= 0 && step < s->steps);
    return s->config.mode == SAMPLER_GLOBAL ? global_span(s, rank, step) : distributed_span(s, rank, step);
}

void sampler_shuffle(const sampler *s, uint64_t seed, int64_t epoch, int32_t *order)
{
    permutation_fill(order, s->config.samples,
                     random_start(seed + (uint64_t)epoch, random_fnv1a64("data.order")));
}
