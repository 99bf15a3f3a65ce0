/* Selects the samples of each rank in each step.
 *
 * In each epoch the samples have an order. For training, the order is a permutation that depends only on
 * (seed + epoch), as in PyTorch's DistributedSampler. For evaluation, the order is the stored order. The
 * sampler computes which *positions* in the order belong to a rank in a step. It allocates no memory.
 *
 * The mode DISTRIBUTED does the same as torch.utils.data.DistributedSampler with one DataLoader per rank. The
 * order is padded with its first samples until its length is a multiple of the number of ranks. If drop_last
 * is set, the order is truncated instead. Rank r gets positions r, r + world, r + 2 world, ..., and uses
 * `batch` of these positions per step. For 7 samples, 2 ranks and batches of 3:
 *
 *   positions   0 1 2 3 4 5 6 (0)        rank 0: 0 2 4 | 6       rank 1: 1 3 5 | (0)
 *
 * The mode GLOBAL does the same as one DataLoader with batches of world * batch samples that torch.chunk
 * splits among the ranks, as in DataParallel. A step with m samples is split, without padding, into chunks of
 * ceil(m / world) samples. The last chunks may be smaller or empty:
 *
 *   positions   0 1 2 3 4 5 | 6          rank 0: 0 1 2 | 6       rank 1: 3 4 5 | (none)
 *
 * In both modes, drop_last also drops the last step of an epoch if its batches are not full, as in
 * DataLoader. */
#ifndef COMMON_DATA_SAMPLER_H
#define COMMON_DATA_SAMPLER_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum sampler_mode { SAMPLER_DISTRIBUTED, SAMPLER_GLOBAL } sampler_mode;

typedef struct sampler_config {
    sampler_mode mode;
    int64_t samples; /* number of samples in the data set's part; must be below 2^31 */
    int64_t batch;   /* number of samples per rank and step */
    int world;
    bool drop_last;
} sampler_config;

typedef struct sampler {
    sampler_config config;
    /* number of samples per rank and epoch, including padding; used only with DISTRIBUTED */
    int64_t rank_samples;
    int64_t steps;
} sampler;

/* The samples of a rank in a step. They are at positions first, first + stride, ... of the order. */
typedef struct sampler_span {
    int64_t first, stride;
    int64_t count;   /* number of samples; may be 0 with GLOBAL */
    int64_t padding; /* number of samples at the end that repeat the beginning of the order */
} sampler_span;

/* Returns STATUS_CONFIG if there are more ranks than samples, or if drop_last is set and there are not enough
 * samples for one full batch. The error message contains both numbers. */
status sampler_init(sampler *s, const sampler_config *config);

/* Returns the samples of `rank` in step `step` of an epoch, with 0 <= rank < world and 0 <= step <
 * s->steps. */
sampler_span sampler_span_of(const sampler *s, int rank, int64_t step);

static inline int64_t sampler_position(const sampler *s, const sampler_span *span, int64_t i)
{
    int64_t position = span->first + i * span->stride;
    return position < s->config.samples ? position : position - s->config.samples;
}

/* Computes the order of an epoch. Sets order[position] to the index of a sample. `order` must have room for
 * all samples. */
void sampler_shuffle(const sampler *s, uint64_t seed, int64_t epoch, int32_t *order);

/* ---- permutations as functions of a seed ---------------------------------------------------------- */

/* Writes a permutation of 0 .. count - 1, which the Fisher-Yates shuffle computes (Knuth, TAOCP 2, 3.4.2,
 * algorithm P). For i = count - 1 down to 1, the shuffle exchanges out[i] with out[random_below(start, i, i +
 * 1)]. `start` is the start of a random stream (random.h). */
void permutation_fill(int32_t *out, int64_t count, uint64_t start);

/* Holds out a fifth of the samples, rounded up, for evaluation. Both parts have the same proportions of the
 * classes, as in scikit-learn's train_test_split(test_size=0.2, stratify=labels). The exact share of a class
 * in the held-out part may not be an integer. Each class first gets the integer part of its share. The
 * remaining samples go to the classes whose shares have the largest fractional parts. If fractional parts are
 * equal, the class with the lower number comes first. `seed` determines which samples of a class are held
 * out. The function writes the training samples and then the held-out samples to picks [count], both in
 * ascending order. Returns STATUS_SYSTEM if memory is short. */
status stratified_split(const uint8_t *labels, int64_t count, uint64_t seed, int32_t *picks,
                        int64_t *train_count);

#endif
