/* A rank's time line of some steps (--trace): recorded by engine and train loop, gathered on rank 0. */
#ifndef HARNESS_RUN_RANK_TRACE_H
#define HARNESS_RUN_RANK_TRACE_H

#include "common/net/rendezvous.h"
#include "common/trace/trace.h"
#include "harness/run/run_options.h"
#include "harness/train/trainer.h"

typedef struct rank_trace {
    trace *recorder;    /* NULL: no --trace */
    int64_t begin, end; /* steps [begin, end) of the run; end 0: not chosen yet */
} rank_trace;

/* Room for the steps of --trace-steps. */
status rank_trace_open(const run_config *config, const nn_model *model, rank_trace *out);
/* Where no steps were chosen, the first measured ones are. */
void rank_trace_choose(rank_trace *t, int64_t first_measured);
void rank_trace_close(rank_trace *t);

/* Before and after each step. */
void rank_trace_begin_step(rank_trace *t, int64_t step);
void rank_trace_end_step(rank_trace *t, const step_result *result, const ledger *ledger);

/* With --trace all ranks call it. *text on rank 0, the caller's: all ranks' events, each followed by
 * a comma; NULL elsewhere. */
status rank_trace_gather(rank_trace *t, rendezvous *r, int engine, int rank, int64_t deadline_ns, int world,
                         char **text);

#endif
