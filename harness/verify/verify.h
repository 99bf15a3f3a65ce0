/* Runs a golden trajectory through an engine and compares every figure.
 *
 * The files of this folder, in the order in which data flow through them:
 *   golden            the file, and what follows from it: parameters, batches
 *   verify            ranks that train on it, and when two figures agree */
#ifndef HARNESS_VERIFY_VERIFY_H
#define HARNESS_VERIFY_VERIFY_H

#include "common/sync/engine.h"
#include "harness/verify/golden.h"

typedef enum comparison_precision {
    COMPARE_FLOAT64,
    COMPARE_FLOAT32,
    COMPARE_TF32,
    COMPARE_BFLOAT16
} comparison_precision;

/* The worst figure so far, as a share of its limit: above 1 something disagrees. */
typedef struct comparison {
    comparison_precision precision;
    double share;
    char what[GOLDEN_NAME_MAX + 64];
    double found, expected;
    int tensors, unchecked; /* unchecked: PyTorch's own float32 strays too far */
} comparison;

typedef struct verify_config {
    const golden_file *file;
    const char *device;
    int threads;
    device_precision precision; /* in which products multiply; on cuda bfloat16 is stored, too */
    bool cuda_graph;            /* passes are recorded */
    const sync_engine_type *engine;
    const void *engine_options;
    const char *policy;
    int divide; /* shared_divide */
} verify_config;

/* Runs the case with as many ranks as it says, as threads of this process. STATUS_OK whatever the
 * comparison finds: see out->share. */
status verify_run(const verify_config *config, comparison *out);

#endif
