/* The sync interface: what makes data-parallel ranks agree, as one set of named stages.
 *
 *   plan batch -> scatter inputs -> begin forward -> forward, with need(i) before the first use of
 *   parameter i -> place outputs -> loss -> scatter the output gradient -> backward, with ready(i)
 *   after the last operation that writes gradient i -> finish
 *
 * Where an engine moves parameters in and out of memory (sync_requirements.each_pass), each pass has its own
 * need(i), before the first operation that reads parameter i or writes its gradient, and release(i) after the
 * last.
 *
 * An engine owns the reduction, the averaging, the loss's normalizer, and who runs the optimizer. One
 * train loop drives `none`, `ring` and `ps` alike; models do not know any of them.
 *
 * Threads: the rank's compute thread calls the stages. It computes, packs, copies, and (none, ring, dp)
 * updates; for communication it posts work to the agent (agent.h) and waits for a fence. The agent drives
 * the engine's state machine and owns its sockets and collectives; each server has an agent of its own.
 *
 * On a device that plans (device_info.plans) an engine is alone: it has no peers and waits for none,
 * and its stages do to the ledger what they do elsewhere.
 *
 * The files of this folder, in the order of the flow: straggler.h (--slow), engine.h, queue.h (from the
 * compute thread to the agent), agent.h, staging.h (between a GPU and the host), staged.h, none.c, anatomy.h
 * (what a step was spent on). */
#ifndef COMMON_SYNC_ENGINE_H
#define COMMON_SYNC_ENGINE_H

#include "common/base/options.h"
#include "common/device/device.h"
#include "common/memory/ledger.h"
#include "common/net/link.h"
#include "common/nn/params.h"
#include "common/optim/optimizer.h"
#include "common/sync/anatomy.h"

/* ---- options that every engine reads alike ---- */

/* Where the mean over the ranks is taken: a true division by their number. */
typedef enum shared_divide {
    SHARED_DIVIDE_POLICY, /* as the policy has it */
    SHARED_DIVIDE_BEFORE, /* each rank's gradient, before the sum */
    SHARED_DIVIDE_AFTER   /* the sum */
} shared_divide;

typedef struct shared_options {
    int divide; /* shared_divide */
    int64_t stall_timeout_ns;
    const char *link; /* net_link_parse(), or NULL */
    const char *slow; /* straggler.h: "RANK:FACTOR", or NULL */
} shared_options;

extern const option_table shared_option_table;

/* ---- an engine ---- */

typedef struct sync_engine sync_engine;

/* What lies where, for engines that move batches and outputs between ranks. The owner fills it in before the
 * stage that reads it; what an engine sets is marked. Sizes are of one sample, in bytes. */
typedef struct sync_exchange {
    device_memory *input, *target; /* the batch; where a rank loads for all: of all ranks, in rank order */
    int64_t input_bytes, target_bytes, output_bytes;
    int64_t loss_output_bytes; /* in the loss's type: more than output_bytes where activations are bfloat16 */
    int64_t ahead_bytes;       /* all: of the next batch, which this rank has ahead; 0: none */
    dtype target_type;
    int64_t targets_each;           /* targets of a sample */
    int64_t largest;                /* samples of the largest batch that one rank loads for all */
    int64_t loaded;                 /* samples that this rank has loaded */
    int64_t samples, targets;       /* of this rank's part and its targets that count: as loaded, unless
                                     * scatter_inputs sets them */
    void *output, *output_gradient; /* of this rank's part */
    void *all_outputs,
        *all_gradients; /* set by open where this rank computes the loss over all ranks' outputs */
} sync_exchange;

/* The owner records what the compute stream is given between two stages, once, and launches the record later.
 * What an engine launches there in ready() belongs to it; what cannot (signals, waits, marks, copies from or
 * to the host) stands between leave() and enter(), and is done every time. */
typedef struct sync_recorder {
    bool replays; /* what the engine would launch on the compute stream is in the record: it leaves it out */
    status (*leave)(struct sync_recorder *r); /* what was recorded so far is launched */
    status (*enter)(struct sync_recorder *r);
} sync_recorder;

/* What an engine is given. Everything is borrowed and outlives the engine. In the ledger the owner has
 * entered parameters, activations and batch; gradients, buckets and optimizer state are the engine's to
 * enter. */
typedef struct sync_context {
    int rank, world;      /* in the group of the data axis */
    int first, job_world; /* its rank 0 is rank `first` of the job's `job_world`; 0, 0: it is the job */
    uint64_t job_token;
    device *device;
    device_stream *compute;
    param_set *params;
    const nn_program *program; /* the training program: order of readiness, sizes */
    optimizer *optimizer;
    ledger *ledger;
    sync_exchange *exchange; /* NULL where nobody moves batches: in tests */
    struct rank_slot *slot;  /* this rank's status slot; never NULL */
    const struct status_table
        *table;          /* Shows the progress of other ranks, from which the stall limit counts. Or NULL. */
    const void *options; /* the engine's own option struct (sync_engine_type.options) */
    const char *policy;  /* a name from the engine's policy table */
    int64_t stall_timeout_ns;
    int64_t connect_timeout_ns; /* of libraries that connect the ranks; 0: the one above */
    bool share_gpu;             /* ranks may share a GPU */
    bool inline_progress;       /* no communication thread: the compute thread progresses while it waits */
    int divide;                 /* shared_divide: of shared_options */
    int micro_batches;          /* per step; 0 counts as 1 */
    net_link link;              /* that the engine's transports are to be paced like */
    sync_recorder *recorder;    /* NULL: nothing is recorded */
    struct trace *trace;        /* of this rank; NULL: nothing is recorded */
    anatomy *anatomy;          /* of this rank, from sync_open(); NULL: of a server in a process of its own */
    struct transport_hub *hub; /* of ranks that are threads of one process; NULL: every rank has a process */
    /* This rank cannot go on, and the compute thread may be stuck in a library: publishes the error. Any
     * thread; then the process ends with the error's exit code. NULL where ranks are threads: the error comes
     * from the engine's next call. */
    void (*lost)(void *context, const error_record *why);
    void *lost_context;
    /* Returns true if the other ranks will not connect, and then records the error. sync_connect() calls it
     * several times per second and returns STATUS_STOPPED. NULL: never. */
    bool (*canceled)(void *context);
    void *canceled_context;
    int64_t clock_ahead_ns; /* this rank's clock less rank 0's; the owner sets it before sync_connect() */
    const struct sync_context
        *front; /* on a staged copy (staged.h): the device in front of it; NULL: there is none */
} sync_context;

/* One step as the train loop sees it. */
typedef struct sync_step {
    int64_t index; /* from 0, over the whole run */
    int64_t
        skipped; /* updates that were left out before this process started: of the optimizer's step number */
    int64_t samples; /* of this rank's batch; 0: it takes part without data */
    int64_t targets; /* of this rank's batch that count in the loss (rows or elements) */
    double learning_rate;
    bool synchronize; /* false: a micro-batch that only accumulates */
} sync_step;

/* What a rank loads and trains on in a step. */
typedef struct sync_batch {
    int64_t load;  /* samples its loader provides */
    int64_t train; /* samples it runs forward and backward on */
} sync_batch;

/* All since the start. */
typedef struct sync_counters {
    int64_t update_aside_ns; /* this rank's agent or server updated parameters, on another thread than the
                                compute thread */
    int64_t agents_cpu_ns;   /* processor time of this rank's agents' threads */
    int64_t bytes_sent, bytes_received; /* payload over links between ranks */
    int64_t messages_sent, messages_received;
    int64_t updates_skipped;  /* --on-nonfinite skip */
    int64_t pushes_overtaken; /* of a worker: that left after one whose gradients were ready later */
} sync_counters;

typedef struct sync_blob {
    void *data;
    size_t bytes;
} sync_blob;

/* Which memory an engine works on, where the host cannot reach the device's. */
typedef enum sync_reach {
    SYNC_REACH_HOST,   /* host memory: it gets a staged copy there (staged.h) */
    SYNC_REACH_DEVICE, /* the device's own */
    SYNC_REACH_EITHER  /* the device's own, unless ranks share one or open() says STATUS_UNAVAILABLE */
} sync_reach;

/* The requirements that an engine puts on arenas, asked before they are allocated. */
typedef struct sync_requirements {
    sync_reach reach;
    device_memory_kind param_kind, grad_kind, buffer_kind;
    ledger_class param_class; /* PARAMETERS, or REPLICAS where this rank holds a copy of another's */
    bool shares_buffers; /* the first forward pass of a step starts from the buffers of rank 0 on every rank
                          * (with
                          * --join, of the lowest rank that has data) */
    bool whole_batch;    /* rank 0 loads the batches of all ranks, and scatter_inputs hands them out */
    bool one_loss;       /* rank 0 computes one loss over the outputs of all ranks: programs end before it */
    device_memory_kind batch_kind;
    int alike_from;      /* ranks from this one on hold the same memory */
    int optimizer_ranks; /* ranks 0 .. optimizer_ranks - 1 update parameters; 0: all may */
    bool each_pass; /* need() and release() in the forward pass and in the backward pass; else need() in the
                     * forward pass */
    param_shards_config
        shards;            /* what of the state is cut among the ranks, and how; `rank` is the caller's */
    bool replicates;       /* After flush() the parameters of all ranks are bit-identical replicas. */
    bool updates_in_front; /* on a staged copy: parameters are updated by the device in front of it */
    const char
        *unrecorded; /* why its passes cannot be recorded (sync_recorder); NULL: in device memory they can */
    const char *virtual_only; /* why real devices cannot run it, as an error's text; NULL: they can */
} sync_requirements;

/* One row of a policy table as `harness policies` prints it. */
typedef struct sync_policy_info {
    const char *name;
    const char *source; /* the system and version that behaves so, and where that was read */
    const char *summary;
} sync_policy_info;

/* An engine: one const instance each, every slot set. */
typedef struct sync_engine_type {
    const char *name; /* "none", "ring", "ps" */
    const option_table *options;
    size_t options_size;
    const sync_policy_info *policies;
    int policy_count;

    /* Fails with STATUS_USAGE or STATUS_CONFIG where policy and options do not fit together. */
    status (*requirements)(const void *options, const char *policy, int world, sync_requirements *out);

    /* Set-up in three steps, so that nothing blocks: open; make a handshake, which holds what the peers need;
     * connect with the handshakes of all ranks (handshakes[rank]). The harness exchanges them. */
    status (*open)(const sync_context *context, sync_engine **out);
    status (*handshake)(sync_engine *e, sync_blob *out); /* borrowed until connect returns */
    status (*connect)(sync_engine *e, const sync_blob *handshakes);
    void (*close)(sync_engine *e);

    /* The stages. */
    status (*plan_batch)(sync_engine *e, const sync_step *step, int64_t batch, sync_batch *out);
    status (*scatter_inputs)(sync_engine *e, const sync_step *step);
    status (*begin_forward)(sync_engine *e, const sync_step *step);
    status (*need)(sync_engine *e, int param);
    status (*release)(sync_engine *e, int param); /* only with each_pass */
    status (*place_outputs)(sync_engine *e, const sync_step *step);
    status (*loss)(sync_engine *e, const sync_step *step, double *normalizer, bool *here);
    status (*scatter_output_gradient)(sync_engine *e, const sync_step *step);
    status (*ready)(sync_engine *e, int param);
    /* All gradients are handed over; afterwards the averages are there. */
    status (*reduce)(sync_engine *e, const sync_step *step);

    /* The update, on ranks that run the optimizer (sync_engine.updates). norm() adds the squared norm of
     * the averages to square_norm, and update() ends with sync_end_update(). */
    status (*norm)(sync_engine *e);
    status (*update)(sync_engine *e, const sync_step *step, double scale, bool skipped);

    /* Ends what is in flight such that every rank has the same parameters, and rank 0's buffers: before an
     * evaluation, a checkpoint, the end. */
    status (*flush)(sync_engine *e);
    /* After that: every rank holds whole parameters until the next step, where they are cut among ranks.
     * Before an evaluation, a checkpoint, a hash; all ranks call it. */
    status (*gather_parameters)(sync_engine *e);

    /* For layers that need other ranks: sums `count` float64 over the ranks, in stream order. */
    status (*group_sum)(sync_engine *e, double *values, int count);

    /* An arena laid out like the parameters in which `owned` holds the averaged gradient of the step
     * that finished last; NULL where this rank has none of it. For verification, in settled state. */
    const void *(*reduced_gradients)(sync_engine *e, piece_list *owned);

    /* The compute stream has passed the end of the oldest step: its waits whose causes are known only now get
     * their names (anatomy.h). */
    void (*end_step)(sync_engine *e);

    void (*counters)(sync_engine *e, sync_counters *out);
} sync_engine_type;

struct sync_engine {
    const sync_engine_type *type;
    sync_context context;
    struct sync_staged *staged; /* staged.h; NULL: the engine works on the rank's own device */
    int64_t update_begin_ns;    /* of the present update */
    double square_norm;         /* The squared norm of the gradients, if the present update needs it. */
    bool updates;               /* this rank runs the optimizer: set by open() */
    bool updated;               /* it has done so */
    bool enqueues; /* set by open: a GPU's stages only enqueue, so that the next step may begin before this
                      one has ended */
};

/* How an engine is called: the functions of its type, above. Where it has a staged copy (staged.h), that is
 * kept in step. */
status sync_open(const sync_engine_type *type, const sync_context *context, sync_engine **out);
status sync_handshake(sync_engine *e, sync_blob *out);
status sync_connect(sync_engine *e, const sync_blob *handshakes);
void sync_close(sync_engine **e);
status sync_plan_batch(sync_engine *e, const sync_step *step, int64_t batch, sync_batch *out);
status sync_scatter_inputs(sync_engine *e, const sync_step *step);
status sync_begin_forward(sync_engine *e, const sync_step *step);
status sync_need(sync_engine *e, int param);
status sync_release(sync_engine *e, int param);
status sync_place_outputs(sync_engine *e, const sync_step *step);
status sync_loss(sync_engine *e, const sync_step *step, double *normalizer, bool *here);
status sync_scatter_output_gradient(sync_engine *e, const sync_step *step);
status sync_ready(sync_engine *e, int param);
status sync_reduce(sync_engine *e, const sync_step *step);
status sync_flush(sync_engine *e);
status sync_gather_parameters(sync_engine *e);
status sync_group_sum(sync_engine *e, double *values, int count);
const void *sync_reduced_gradients(sync_engine *e, piece_list *owned);
/* From now on the stages are those of another step, though the lane has not yet passed the end of the one
 * before. */
void sync_lead(sync_engine *e);
/* The lane has passed the end of the oldest step with these phases: sweeps it (anatomy.h). */
void sync_end_step(sync_engine *e, anatomy_span step, const anatomy_phase *phases, int phase_count,
                   anatomy_figures *out);
void sync_read_counters(sync_engine *e, sync_counters *out);

/* Defaults for engines that override little: own batch, own loss, nothing to scatter. */
status sync_default_plan_batch(sync_engine *e, const sync_step *step, int64_t batch, sync_batch *out);
status sync_default_stage(sync_engine *e, const sync_step *step);
status sync_default_param(sync_engine *e, int param);
status sync_default_loss(sync_engine *e, const sync_step *step, double *normalizer, bool *here);
status sync_default_flush(sync_engine *e);
void sync_default_end_step(sync_engine *e);

/* No communication: the baseline of every comparison. Several ranks train each by itself. */
extern const sync_engine_type sync_none;

/* Within a recorded pass: leaves the record, enters it again; otherwise nothing. */
status sync_leave_record(const sync_context *context);
status sync_enter_record(const sync_context *context);
/* What would be launched on the compute stream is in the record. */
bool sync_replays(const sync_context *context);

/* The gradient arena begins (open) or ends (close) to live in the ledger. */
void sync_hold_gradients(sync_engine *e);
void sync_drop_gradients(sync_engine *e);

/* Marks of the lane: those below SYNC_MARK_UPDATE are the owner's. */
enum {
    SYNC_MARK_UPDATE = 128,
    SYNC_MARK_WAITS = SYNC_MARK_UPDATE + 4, /* anatomy.h's, from here on */
    SYNC_MARK_ENGINE = DEVICE_MARKS - 256,  /* engines' own, to the last */
};

/* The mark at which the update of step `index` begins; it ends at the next mark. Two steps may be under way.
 */
int sync_mark_update(int64_t index);

/* The optimizer's step on this rank; nothing where others update. Begins it and takes the squared norm of the
 * gradients, if clipping or --on-nonfinite skip needs it. A rank with a stage of the model adds the norms of
 * the other stages to square_norm, and begins again: it has waited. Then the update. Gradients that are not
 * finite follow --on-nonfinite; on a GPU "stop" and "warn" are up to sync_check_update(). */
status sync_begin_update(sync_engine *e, const sync_step *step);
bool sync_update_needs_norm(const sync_engine *e);
status sync_take_norm(sync_engine *e);
status sync_update(sync_engine *e, const sync_step *step);

/* For engines: of all parameters, from the gradients in their arena; and the end of an update. */
status sync_default_norm(sync_engine *e);
status sync_default_update(sync_engine *e, const sync_step *step, double scale, bool skipped);
status sync_end_update(sync_engine *e, const sync_step *step, bool skipped);
/* On a GPU, once the compute stream has passed the step, and before the update of the next step but one. */
status sync_check_update(sync_engine *e, const sync_step *step);

/* The first parameter with an element in `pieces` of `grads` that is not finite; NULL: there is none. One
 * caller at a time, of those who use the optimizer. */
status sync_find_nonfinite(optimizer *o, device_stream *s, const param_set *set, const void *grads,
                           piece_list pieces, const char **name);
/* STATUS_NONFINITE, or a warning: "step 7: rank 1: gradient of conv1.weight is not finite". `rank`: whose
 * gradient it is, where another finds it; `name` NULL: of a parameter that is not known here. */
enum { SYNC_AVERAGE = -1, SYNC_THIS_RANK = -2 /* it is named by what shows the message */ };
status sync_report_nonfinite(optimizer *o, int64_t step, int rank, const char *name);

#endif
