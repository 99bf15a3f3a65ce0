/* The samples of each rank in each step.
 *
 * An epoch goes through an order of the samples: a permutation that is a function only of (seed + epoch),
 * as with PyTorch's DistributedSampler, or, for evaluation, the samples in stored order. The sampler cuts
 * *positions* in that order into steps and ranks by arithmetic; it needs no memory.
 *
 * DISTRIBUTED, torch.utils.data.DistributedSampler with a DataLoader for each rank: the order is padded by
 * repeating its head until it divides by the ranks (drop_last: cut), rank r gets positions r, r + world,
 * r + 2 world, ..., and takes `batch` of them per step. For 7 samples, 2 ranks, batches of 3:
 *
 *   positions   0 1 2 3 4 5 6 (0)        rank 0: 0 2 4 | 6       rank 1: 1 3 5 | (0)
 *
 * GLOBAL, one DataLoader with batches of world * batch, each cut by torch.chunk as DataParallel does: a
 * step's m samples in chunks of ceil(m / world), the last ones smaller or absent; nothing is padded:
 *
 *   positions   0 1 2 3 4 5 | 6          rank 0: 0 1 2 | 6       rank 1: 3 4 5 | (none)
 *
 * drop_last also drops a last step with less than full batches, as DataLoader's does. */
#ifndef COMMON_DATA_SAMPLER_H
#define COMMON_DATA_SAMPLER_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum sampler_mode { SAMPLER_DISTRIBUTED, SAMPLER_GLOBAL } sampler_mode;

typedef struct sampler_config {
    sampler_mode mode;
    int64_t samples; /* in the part of the data set; below 2^31 */
    int64_t batch;   /* samples per rank and step */
    int world;       /* ranks */
    bool drop_last;
} sampler_config;

typedef struct sampler {
    sampler_config config;
    int64_t rank_samples; /* DISTRIBUTED: of each rank and epoch, padding included */
    int64_t steps;        /* in an epoch */
} sampler;

/* A rank's samples in a step: positions first, first + stride, ... of the order. */
typedef struct sampler_span {
    int64_t first, stride;
    int64_t count;   /* 0 is possible with GLOBAL */
    int64_t padding; /* of these, the last ones, which repeat the head of the order */
} sampler_span;

/* STATUS_CONFIG names both numbers: more ranks than samples, or not one full batch with drop_last. */
status sampler_init(sampler *s, const sampler_config *config);

/* 0 <= rank < world, 0 <= step < s->steps. */
sampler_span sampler_span_of(const sampler *s, int rank, int64_t step);

/* Position in the order of sample `i` of a span. */
static inline int64_t sampler_position(const sampler *s, const sampler_span *span, int64_t i)
{
    int64_t position = span->first + i * span->stride;
    return position < s->config.samples ? position : position - s->config.samples;
}

/* The order of an epoch: order[position] is the sample, [samples]. A permutation_fill(). */
void sampler_shuffle(const sampler *s, uint64_t seed, int64_t epoch, int32_t *order);

/* ---- permutations as functions of a seed ---------------------------------------------------------- */

/* A permutation of 0 .. count - 1: Fisher and Yates' shuffle (Knuth, TAOCP 2, 3.4.2, algorithm P) of the
 * identity, for i = count - 1 down to 1 exchanging i with random_below(start, i, i + 1). `start` is that
 * of a stream of random.h. */
void permutation_fill(int32_t *out, int64_t count, uint64_t start);

/* Holds out a fifth of the samples, rounded up, for evaluation, with the classes in proportion: each
 * gets the whole part of its share, and the largest fractions (of equal ones the lower class) the rest,
 * as scikit-learn's train_test_split(test_size=0.2, stratify=labels) does. Which samples of a class is a
 * function of `seed`. picks [count] becomes the training samples in ascending order, then the samples
 * held out in ascending order. STATUS_SYSTEM without memory for `count` bytes. */
status stratified_split(const uint8_t *labels, int64_t count, uint64_t seed, int32_t *picks,
                        int64_t *train_count);

#endif
