/* The batches of a golden trajectory: functions of (seed, step, rank, index). */
#ifndef HARNESS_VERIFY_GOLDEN_SOURCE_H
#define HARNESS_VERIFY_GOLDEN_SOURCE_H

#include "common/data/batch_source.h"
#include "harness/verify/golden.h"

/* The batches of ranks first .. first + ranks - 1, one after another. */
status golden_source_open(const golden_file *file, const nn_model *model, int first, int ranks, batch_source **out);

#endif
