/* Opens sources of batches over small synthetic sets, and records the batches. */
#ifndef TESTS_COMMON_DATA_BATCHES_FIXTURE_H
#define TESTS_COMMON_DATA_BATCHES_FIXTURE_H

#include "tests/common/data/fixture.h"

#include "common/data/batches.h"

enum { SAMPLES = 23, TESTS = 11, FEATURES = 3, PICTURE = 8 * 8 * 3, BATCH = 4 };

extern const data_form vector_form;  /* vectors of FEATURES values, 5 classes */
extern const data_form picture_form; /* 3x8x8, 5 classes */

/* Opens a set of SAMPLES training samples and TESTS test samples, drawn with seed 5. */
dataset *open_synthetic(const data_form *form);

/* Returns a configuration for batches of BATCH training samples in the form of the set, with seed 11 and one
 * thread. */
batches_config training(const dataset *set, int rank, int world);

batch_source *open_source(const batches_config *config);

/* Return the bytes of a batch's inputs and of its targets. */
size_t input_bytes(const batch_source *s, const batch_view *b);
size_t target_bytes(const batch_source *s, const batch_view *b);

/* For each batch of steps [first, end): the numbers that describe the batch, its inputs, and its targets. */
typedef struct recording {
    uint8_t bytes[1 << 18];
    size_t size;
} recording;
/* Bytes of the numbers that stand before the inputs of each batch. */
enum { RECORDED_FIGURES = 6 * sizeof(int64_t) };

void record(const batches_config *config, int64_t first, int64_t end, recording *out);
void expect_same(const recording *found, const recording *wanted);

#endif
