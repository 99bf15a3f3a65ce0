/* Permutations as functions of a seed. */
#ifndef COMMON_DATA_PERMUTATION_H
#define COMMON_DATA_PERMUTATION_H

#include "common/base/status.h"

#include <stdint.h>

/* A permutation of 0 .. count - 1: Fisher and Yates' shuffle (Knuth, TAOCP 2, 3.4.2, algorithm P) of the
 * identity, for i = count - 1 down to 1 exchanging i with random_below(start, i, i + 1). `start` is that
 * of a stream of random.h. */
void permutation_fill(int32_t *out, int64_t count, uint64_t start);

/* Holds back a fifth of the samples, rounded up, for evaluation, with the classes in proportion: each
 * gets the whole part of its share, and the largest fractions (of equal ones the lower class) the rest,
 * as scikit-learn's train_test_split(test_size=0.2, stratify=labels) does. Which samples of a class is a
 * function of `seed`. picks [count] becomes the training samples in ascending order, then the samples
 * held back in ascending order. STATUS_SYSTEM without memory for `count` bytes. */
status permutation_split(const uint8_t *labels, int64_t count, uint64_t seed, int32_t *picks,
                         int64_t *train_count);

#endif
