/* The ledger that a run would have, without the run: trainers on the planning device, step for step. */
#ifndef HARNESS_RUN_LEDGER_PLAN_H
#define HARNESS_RUN_LEDGER_PLAN_H

#include "harness/run/plan.h"

#include <jansson.h>

/* "jobs" with, for every rank, "memory" as in the result of a run: peaks of what follows the first step, current
 * figures behind the last. The caller's. Allocates no tensor. */
status ledger_plan_make(const run_config *config, const run_plan *plan, json_t **out);

/* The ledgers of rank 0 and of the first rank, `another`, that is not as rank 0 is; 0: there is none. */
status ledger_plan_first(const run_config *config, const run_plan *plan, int engine, ledger *first, ledger *other,
                         int *another);

#endif
