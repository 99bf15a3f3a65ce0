/* What only the parameter server has to tell: the staleness of reads, and the memory of `dp` by phase beside
 * DataParallel's formula. docs/results.md describes every key. */
#ifndef HARNESS_RUN_PS_RESULT_H
#define HARNESS_RUN_PS_RESULT_H

#include "common/sync/engine.h"
#include "ps/dp/dp_memory.h"

#include <jansson.h>

/* A rank's "staleness"; null under other engines. NULL without memory. In settled state. */
json_t *ps_result_staleness(sync_engine *e);

/* Of the job: who sums and updates, "gpu" or "host"; null under other engines. */
json_t *ps_result_updates(const sync_engine *e);

/* On rank 0: the sizes of `dp`; false under other policies and engines. */
bool ps_result_sizes(sync_engine *e, ps_dp_sizes *out);

/* The job's "dataparallel_memory" from the ranks' ledgers; null where `sizes` is NULL. */
status ps_result_add_memory(json_t *job, const json_t *ranks, const ps_dp_sizes *sizes);

#endif
