/* Trains with an engine along a golden trajectory and compares every figure.
 *
 *   golden.c   the file, its parameters and batches
 *   verify.c   the ranks that train, and the comparison */
#ifndef HARNESS_VERIFY_VERIFY_H
#define HARNESS_VERIFY_VERIFY_H

#include "common/sync/engine.h"
#include "harness/verify/golden.h"

/* Result of a comparison: the figure whose deviation is the largest share of its limit. A share above 1 is a
 * failure. */
typedef struct comparison {
    bool exact;                 /* The device computes in float64. */
    device_precision precision; /* Precision of the GEMMs of any other device. */
    double share;
    char what[GOLDEN_NAME_MAX + 64];
    double found, expected;
    /* Number of tensors, and number of those that were skipped. A tensor is skipped if PyTorch's float32
     * result deviates too much from its float64 result. */
    int tensors, unchecked;
} comparison;

typedef struct verify_config {
    const golden_file *file;
    const char *device;
    int threads;
    /* Precision of GEMMs and convolutions; on cuda, bfloat16 is also the type of tensors. */
    device_precision precision;
    bool cuda_graph; /* True if passes are recorded as CUDA graphs. */
    const sync_engine_type *engine;
    const void *engine_options;
    const char *policy;
    int divide; /* a shared_divide */
} verify_config;

/* Trains with the file's number of ranks, as threads of this process, and compares the figures. Returns
 * STATUS_OK even if figures deviate: the caller checks out->share. */
status verify_run(const verify_config *config, comparison *out);

#endif
