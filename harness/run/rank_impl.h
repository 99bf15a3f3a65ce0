/* A rank between set-up and end, for rank.c and rank_result.c. */
#ifndef HARNESS_RUN_RANK_IMPL_H
#define HARNESS_RUN_RANK_IMPL_H

#include "common/net/rendezvous.h"
#include "harness/run/rank.h"
#include "harness/run/record.h"
#include "harness/run/run_result.h"

/* With --stages-on devices: a further stage of the rank, with a device of its own. */
typedef struct rank_device {
    nn_model *stage;
    pipeline_place place;
    trainer *trainer;
    record record;
    record_seen seen;
    overlap overlap;
    rank_trace trace;
} rank_device;

typedef struct rank_state {
    const run_config *config;
    const rank_place *place;
    rank_slot *slot;
    run_job *out;
    dataset *set;
    nn_model *model;
    nn_model *stage;  /* of it that this rank trains, with --stages; else NULL */
    nn_model *remote; /* the rest of it, which a remote stage has, with --remote-stage; else NULL */
    nn_cut cut;       /* with --stages or --remote-stage */
    pipeline_place stage_place;
    rank_device
        *devices; /* [device_count] with the stages after `stage`; what follows is of the first device */
    int device_count;
    batch_source *shared; /* by all stages: of `batches` */
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
    int64_t
        trained_ns; /* in steps, measured or not: without evaluations, checkpoints and other jobs' turns */
    clock_bounds clock_at_begin; /* of the steps */
    clock_alignment clock;
    bool takes_turns; /* other jobs run at the same time: blocks alternate */
    uint32_t block;
    bool stopped;        /* before the last step */
    bool stop_is_agreed; /* by all ranks of unbounded lead */
    record_seen seen;
    agreement agreement;
    rank_checkpoint checkpoint;
    int64_t checkpoint_step; /* from which the run goes on; 0 without --load */
    int64_t saved_steps, saves;
    int64_t lead;         /* steps that a rank may be ahead of another; JOB_UNBOUNDED: any number */
    int64_t batch_offset; /* of the source's batches against the run's */
} rank_state;

/* Until when a collective call between steps may wait for the other ranks. */
int64_t rank_deadline(const rank_state *s);

/* rank_devices.c: with --stages-on devices the further devices of the rank; else nothing. In the order of a
 * run; the configuration is that of the first device. */
status rank_devices_open(rank_state *s, const trainer_config *config);
status rank_devices_connect(rank_state *s);
status rank_devices_record(rank_state *s, int64_t evaluations);
void rank_devices_begin_step(rank_state *s, int64_t index);
/* *loss becomes the last stage's. */
status rank_devices_end_step(rank_state *s, int64_t index, bool measured, double *loss);
void rank_devices_begin_anew(rank_state *s);
void rank_devices_count(rank_state *s, bool measured);
status rank_devices_flush(rank_state *s);
void rank_devices_leave(rank_state *s);
void rank_devices_close(rank_state *s);

/* rank_compare.c: version and commit of the program, or a hash of its sources if the commit is not known. */
extern const char program_identity[];
/* Appends lines "name = value" about the data, the model and the checkpoint that this rank has opened. */
status rank_describe_inputs(const rank_state *s, text_buffer *out);
/* All ranks call it, flushed. Compares the parameters of replicas. Writes out->difference if they differ, and
 * fails with it unless the run ends here. */
status rank_compare_replicas(rank_state *s, bool last);

/* All ranks connect an engine; `members` of them. */
status rank_exchange_handshakes(rank_state *s, rendezvous *r, int members, trainer *t);

/* remote.c: meets the remote stage, and connects to it; nothing without one. */
status rank_connect_remote(rank_state *s);
/* "remote_stage" of the job's JSON. */
status rank_add_remote(const rank_state *s, json_t *job);

/* rank_calls.c: all ranks call it after the last step, once clocks are aligned. Completes s->record. */
status rank_merge_calls(rank_state *s);

/* rank_result.c: all ranks call it after the last step. *out: on rank 0 the job's result, parameters and
 * trace, the caller's; elsewhere nothing. */
status rank_share_results(rank_state *s, run_job *out);

#endif
