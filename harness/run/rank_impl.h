/* A rank between set-up and end, for rank.c and rank_result.c. */
#ifndef HARNESS_RUN_RANK_IMPL_H
#define HARNESS_RUN_RANK_IMPL_H

#include "common/net/rendezvous.h"
#include "harness/run/rank.h"
#include "harness/run/record.h"
#include "harness/run/run_result.h"

typedef struct rank_state {
    const run_config *config;
    const rank_place *place;
    rank_slot *slot;
    dataset *set;
    nn_model *model;
    nn_model *stage;      /* of it that this rank trains, with --stages; else NULL */
    pipeline_place stage_place;
    rendezvous *rendezvous;
    uint64_t token; /* of the job, drawn for this run */
    trainer *trainer;
    rank_batches batches;
    record record;
    overlap overlap;
    rank_trace trace;
    step_plan steps;
    int64_t next_step, eval_every;
    bool measured[2]; /* of the steps under way, by their index */
    int64_t trained_ns; /* in steps, measured or not: without evaluations, checkpoints and other jobs' turns */
    clock_bounds clock_at_begin; /* of the steps */
    clock_alignment clock;
    bool takes_turns;     /* other jobs run at the same time: blocks alternate */
    uint32_t block;
    bool stopped;        /* before the last step */
    bool stop_is_agreed; /* by all ranks */
    record_seen seen;
    agreement agreement;
    rank_checkpoint checkpoint;
    int64_t checkpoint_step; /* from which the run goes on; 0 without --load */
    int64_t saved_steps, saves;
    int64_t lead;         /* steps that a rank may be ahead of another */
    int64_t batch_offset; /* of the source's batches against the run's */
} rank_state;

/* Until when a collective call between steps may wait for the other ranks. */
int64_t rank_deadline(const rank_state *s);

/* rank_calls.c: all ranks call it after the last step, once clocks are aligned. Completes s->record. */
status rank_merge_calls(rank_state *s);

/* rank_result.c: all ranks call it after the last step. *out: on rank 0 the job's result, parameters and trace, the caller's;
 * elsewhere nothing. */
status rank_share_results(rank_state *s, run_job *out);

#endif
