/* Noise with the form of real data, for measurements: nothing can be learned from it, and nothing is
 * stored. Every value is a function of (seed, stream, index) as random.h draws it; the streams are
 * "data.PART.input", "data.PART.target" and "data.PART.mask" with PART train or test.
 *
 *   pixel i (in h, w, c order) of sample n   byte i % 8 of the bits at n * ceil(pixels / 8) + i / 8
 *   feature i of sample n                    r(n * features + i), uniform in [-1, 1)
 *   token i of sample n                      below the vocabulary, at n * sequence + i
 *   class of sample n                        below the classes, at n
 *   value i of sample n (regression)         r(n * classes + i)
 *   next-token targets                       tokens are drawn at n * (sequence + 1) + i, for one position
 *                                            more; the target of position i is token i + 1
 *   masked targets                           position i has a target where u(n * sequence + i) of the mask
 *                                            is below 0.15, or, where that leaves the sample without one,
 *                                            at one position; it is a token drawn at n * sequence + i, of
 *                                            which the input shows nothing: as BERT's masking would leave
 *                                            it with a random token in its place (Devlin et al., 2019) */
#ifndef COMMON_DATA_DATASET_SYNTHETIC_H
#define COMMON_DATA_DATASET_SYNTHETIC_H

#include "common/data/dataset.h"

#define SYNTHETIC_MASKED 0.15

/* What follows "synthetic:" ("3x32x32:10", "13:3", "128"; NULL for nothing) together with the model's form
 * (NULL where not known) gives the form of the data. A single number is a number of tokens where the model
 * takes tokens, else of features. STATUS_USAGE, STATUS_CONFIG. */
status synthetic_form(const char *argument, const data_form *model, data_form *out);

#endif
