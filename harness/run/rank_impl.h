/* State of a rank between set-up and end. */
#ifndef HARNESS_RUN_RANK_IMPL_H
#define HARNESS_RUN_RANK_IMPL_H

#include "common/net/rendezvous.h"
#include "harness/run/rank.h"
#include "harness/run/record.h"
#include "harness/run/run_result.h"

/* Stage of a rank on a device after the first one, with --stages-on devices. */
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
    nn_model *stage;  /* stage that this rank trains, or NULL if the model is not cut */
    nn_model *remote; /* second half of the model, on a remote stage, or NULL */
    nn_cut cut;       /* cut of the model with --stages or --remote-stage */
    pipeline_place stage_place;
    /* Stages after `stage` [device_count], each on a device. The fields below are of the first device. */
    rank_device *devices;
    int device_count;
    batch_source *shared; /* source of `batches` for all stages */
    rendezvous *rendezvous;
    uint64_t token; /* token of the job, drawn for this run */
    trainer *trainer;
    rank_batches batches;
    record record;
    overlap overlap;
    rank_trace trace;
    step_plan steps;
    int64_t next_step, eval_every;
    bool measured[2]; /* whether the steps under way are measured, by index mod 2 */
    /* Time in steps, measured or not, without evaluations, checkpoints and other jobs' turns. */
    int64_t trained_ns;
    clock_bounds clock_at_begin; /* before the first step */
    clock_alignment clock;
    bool takes_turns; /* blocks of steps alternate with blocks of other jobs */
    uint32_t block;
    bool stopped;        /* the rank has stopped before its last step */
    bool stop_is_agreed; /* all ranks of unbounded lead have agreed to stop */
    record_seen seen;
    agreement agreement;
    rank_checkpoint checkpoint;
    int64_t checkpoint_step; /* step at which the run continues, or 0 without --load */
    int64_t saved_steps, saves;
    int64_t lead;         /* steps that a rank may be ahead of another, or JOB_UNBOUNDED */
    int64_t batch_offset; /* number of a batch in the source minus its number in the run */
} rank_state;

/* Returns the deadline of a collective call between steps. */
int64_t rank_deadline(const rank_state *s);

/* rank_devices.c: the devices of the rank after the first one, with --stages-on devices. The functions, which
 * are listed in the order in which a run calls them, do nothing if the rank has one device. `config` is the
 * configuration of the first device. */
status rank_devices_open(rank_state *s, const trainer_config *config);
status rank_devices_connect(rank_state *s);
status rank_devices_record(rank_state *s, int64_t evaluations);
void rank_devices_begin_step(rank_state *s, int64_t index);
/* Sets *loss to the loss of the last stage. */
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
/* Compares the parameters of replicas. All ranks call this function after a flush. If the parameters
 * differ, writes out->difference, and fails unless the run ends here (`last`). */
status rank_compare_replicas(rank_state *s, bool last);

/* Connects the engine with the handshakes of all `members`. Servers in separate processes join a
 * rendezvous only for the handshakes. */
status rank_exchange_handshakes(rank_state *s, rendezvous *r, int members, trainer *t);

/* remote.c: joins the rendezvous of the remote stage and connects to the stage. Does nothing if there is
 * no remote stage. */
status rank_connect_remote(rank_state *s);
/* Adds "remote_stage" to the job's JSON. */
status rank_add_remote(const rank_state *s, json_t *job);

/* rank_calls.c: completes s->record. All ranks call this function after the last step, when clocks are
 * aligned. */
status rank_merge_calls(rank_state *s);

/* rank_result.c: gathers the results. All ranks call this function after the last step. On rank 0 *out has
 * the job's result, parameters and trace, which the caller frees. */
status rank_share_results(rank_state *s, run_job *out);

#endif
