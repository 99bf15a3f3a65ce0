/* What only the parameter server has to tell: the staleness of reads, and the memory of `dp` by phase beside
 * DataParallel's formula. docs/results.md describes every key. */
#ifndef HARNESS_RUN_PS_RESULT_H
#define HARNESS_RUN_PS_RESULT_H

#include "common/sync/engine.h"

#include <jansson.h>

/* A rank's "staleness"; null under other engines. NULL without memory. In settled state. */
json_t *ps_result_staleness(sync_engine *e);

/* On rank 0: the job's "dataparallel_memory" from the ranks' ledgers; null where there is nothing to compare. */
status ps_result_add_memory(json_t *job, const json_t *ranks, sync_engine *e);

#endif
