#include "common/data/sampler.h"

#include "common/base/least.h"
#include "common/base/random.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

status sampler_init(sampler *s, const sampler_config *config)
{
    int64_t n = config->samples, world = config->world, batch = config->batch;
    assert(world >= 1 && batch >= 1);
    if (n > INT32_MAX)
        return fail(STATUS_CONFIG, "data set: expected at most %d samples, got %" PRId64, INT32_MAX, n);
    if (n < world)
        return fail(STATUS_CONFIG,
                    "data set: expected at least one sample per rank, got %" PRId64 " for %" PRId64 " ranks",
                    n, world);
    *s = (sampler){.config = *config};
    s->rank_samples = config->drop_last ? n / world : divide_up(n, world);
    int64_t cut = config->mode == SAMPLER_GLOBAL ? n : s->rank_samples;
    int64_t whole = config->mode == SAMPLER_GLOBAL ? world * batch : batch;
    s->steps = config->drop_last ? cut / whole : divide_up(cut, whole);
    if (s->steps == 0)
        return fail(STATUS_CONFIG,
                    "--drop-last: expected at least one full batch per rank, got %" PRId64
                    " samples for %" PRId64 " ranks with batches of %" PRId64,
                    n, world, batch);
    return STATUS_OK;
}

static sampler_span distributed_span(const sampler *s, int rank, int64_t step)
{
    int64_t world = s->config.world, batch = s->config.batch, begin = step * batch;
    sampler_span span = {.first = begin * world + rank, .stride = world};
    span.count = least(batch, s->rank_samples - begin);
    /* Fewer than `world` samples are padding, so each rank has at most one, which is its last sample. */
    int64_t last = span.first + (span.count - 1) * world;
    span.padding = last >= s->config.samples;
    return span;
}

static sampler_span global_span(const sampler *s, int rank, int64_t step)
{
    int64_t whole = s->config.world * s->config.batch, begin = step * whole;
    int64_t count = least(whole, s->config.samples - begin), chunk = divide_up(count, s->config.world);
    int64_t from = least(rank * chunk, count), to = least(from + chunk, count);
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

/* ---- permutations ------------------------------------------------------------------------------- */

enum { CLASSES = 256, HELD_OUT = 5 /* one of HELD_OUT samples is held out */ };

void permutation_fill(int32_t *out, int64_t count, uint64_t start)
{
    for (int64_t i = 0; i < count; i++) out[i] = (int32_t)i;
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t j = (int64_t)random_below(start, (uint64_t)i, (uint64_t)i + 1);
        int32_t moved = out[i];
        out[i] = out[j];
        out[j] = moved;
    }
}

/* Divides `total` samples among the classes in proportion to their sizes, by the largest-remainder method. */
static void share_out(const int64_t *class_counts, int64_t count, int64_t total, int64_t *quota)
{
    int64_t remainder[CLASSES], left = total;
    for (int c = 0; c < CLASSES; c++) {
        quota[c] = total * class_counts[c] / count;
        remainder[c] = total * class_counts[c] % count;
        left -= quota[c];
    }
    for (; left > 0; left--) {
        int best = 0;
        for (int c = 1; c < CLASSES; c++)
            if (remainder[c] > remainder[best]) best = c;
        quota[best]++;
        remainder[best] = -1;
    }
}

status stratified_split(const uint8_t *labels, int64_t count, uint64_t seed, int32_t *picks,
                        int64_t *train_count)
{
    int64_t class_counts[CLASSES] = {0}, quota[CLASSES];
    for (int64_t i = 0; i < count; i++) class_counts[labels[i]]++;
    int64_t test_count = (count + HELD_OUT - 1) / HELD_OUT;
    share_out(class_counts, count, test_count, quota);

    bool *held_out = calloc((size_t)count, sizeof *held_out);
    if (!held_out) return fail(STATUS_SYSTEM, "no memory to split %" PRId64 " samples", count);
    permutation_fill(picks, count, random_start(seed, random_fnv1a64("data.split")));
    for (int64_t i = 0; i < count; i++) {
        if (quota[labels[picks[i]]] == 0) continue;
        quota[labels[picks[i]]]--;
        held_out[picks[i]] = true;
    }
    *train_count = count - test_count;
    int64_t train = 0, test = *train_count;
    for (int64_t i = 0; i < count; i++) picks[held_out[i] ? test++ : train++] = (int32_t)i;
    free(held_out);
    return STATUS_OK;
}
