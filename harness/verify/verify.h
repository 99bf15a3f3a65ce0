/* Runs a golden trajectory through an engine and compares every figure. */
#ifndef HARNESS_VERIFY_VERIFY_H
#define HARNESS_VERIFY_VERIFY_H

#include "common/sync/engine.h"
#include "harness/verify/compare.h"

typedef struct verify_config {
    const golden_file *file;
    const char *device;
    int threads;
    bool bf16; /* products multiply in bfloat16; on cuda activations are stored in it */
    bool cuda_graph; /* passes are recorded */
    const sync_engine_type *engine;
    const void *engine_options;
    const char *policy;
    int divide; /* shared_divide */
} verify_config;

/* Runs the case with as many ranks as it says, as threads of this process. STATUS_OK whatever the
 * comparison finds: see out->share. */
status verify_run(const verify_config *config, comparison *out);

#endif
