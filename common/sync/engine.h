/* The interface of engines. An engine makes data-parallel ranks agree on gradients and parameters; the
 * engines are `none`, `ring` and `ps`. One train loop drives all of them, in these stages:
 *
 *   begin_forward    exchange parameters or buffers that the forward pass needs
 *   forward pass     need(i) before the first use of parameter i
 *   end_forward      send buffers
 *   backward pass    ready(i) after the last operation that writes gradient i
 *   reduce           complete the averages of the gradients
 *   norm, update     run the optimizer, on ranks that have one
 *
 * In DataParallel, rank 0 also loads the batches of all ranks and may compute one loss over their outputs
 * (sync_scatter).
 *
 * Some engines move parameters in and out of memory (sync_requirements.each_pass). With each_pass set, each
 * pass calls need(i) before the first operation that reads parameter i or writes gradient i, and release(i)
 * after the last of these operations.
 *
 * An engine decides how gradients are reduced and averaged, how the loss is normalized, and who runs the
 * optimizer. Models do not know the engines.
 *
 * The compute thread of a rank calls the stages, in which the thread computes, packs, copies and, if the rank
 * runs the optimizer, updates. For communication the compute thread posts work to the engine's agent
 * (agent.h) and waits for a fence. The agent drives the engine's state machine, and owns the engine's sockets
 * and collectives. A parameter server has a separate agent.
 *
 * On a device that plans (device_info.plans) an engine has no peers and waits for nobody, but the stages
 * change the ledger as on any other device.
 *
 * The files of this folder, in the order of the flow:
 *   straggler.h   option --slow
 *   engine.h      this interface
 *   queue.h       passes events from the compute thread to the agent
 *   agent.h       the thread that communicates
 *   staging.h     copies between a GPU and the host
 *   staged.h      runs an engine in host memory for a rank that computes on a GPU
 *   none.c        the engine without communication
 *   anatomy.h     parts of a step: computing, waiting, communication */
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

/* The values that are divided by the number of ranks. */
typedef enum shared_divide {
    SHARED_DIVIDE_POLICY, /* as the policy defines */
    SHARED_DIVIDE_BEFORE, /* each rank's gradient, before the sum */
    SHARED_DIVIDE_AFTER   /* the sum */
} shared_divide;

typedef struct shared_options {
    int divide; /* shared_divide */
    int64_t stall_timeout_ns;
    const char *link; /* text for net_link_parse(), or NULL */
    const char *slow; /* text for straggler_factor(), or NULL */
} shared_options;

extern const option_table shared_option_table;

/* ---- an engine ---- */

typedef struct sync_engine sync_engine;

/* Batch, outputs and output gradients of this rank, for engines that move them between ranks. The owner sets
 * each field before the stage that reads it. Comments mark the fields that the engine sets. */
typedef struct sync_exchange {
    /* The batch of this rank, or of all ranks in rank order if this rank loads for all. */
    device_memory *input, *target;
    int64_t input_bytes, target_bytes, output_bytes; /* per sample */
    /* Bytes of a sample's output as the loss reads it: more than output_bytes if activations are
     * bfloat16. */
    int64_t loss_output_bytes;
    int64_t ahead_bytes; /* bytes of the next batch if it is prefetched, else 0 */
    dtype target_type;
    int64_t targets_each; /* targets per sample */
    int64_t largest;      /* samples of the largest batch that `input` holds */
    int64_t loaded;       /* samples that this rank has loaded */
    /* Samples that this rank trains on, and their targets that count in the loss. sync_scatter.inputs() of
     * the engine may change both. */
    int64_t samples, targets;
    void *output, *output_gradient; /* of this rank's samples */
    /* Outputs of all ranks and the gradients of these outputs, if this rank computes the loss of all ranks.
     * Set by the engine's open(). */
    void *all_outputs, *all_gradients;
} sync_exchange;

/* The environment of an engine. All pointers are borrowed and outlive the engine. The owner adds parameters,
 * activations and batch to the ledger; the engine adds gradients, buckets and optimizer state. */
typedef struct sync_context {
    int rank, world; /* rank in the group of ranks that train this model or stage, and size of the group */
    /* Job rank of the group's rank 0, and number of ranks of the job. `first` and `job_world` are 0 if the
     * group is the job. */
    int first, job_world;
    uint64_t job_token;
    device *device;
    device_stream *compute;
    param_set *params;
    const nn_program *program; /* training program: sizes, and the order in which gradients are ready */
    optimizer *optimizer;
    ledger *ledger;
    sync_exchange *exchange; /* NULL in tests that move no batches */
    struct rank_slot *slot;  /* status slot of this rank, never NULL */
    /* Shows the progress of other ranks. The stall limit counts from the last progress of any rank. May be
     * NULL. */
    const struct status_table *table;
    const void *options; /* option struct of the engine (sync_engine_type.options) */
    const char *policy;  /* name in the engine's policy table */
    int64_t stall_timeout_ns;
    int64_t connect_timeout_ns; /* time limit for libraries that connect ranks; stall_timeout_ns if 0 */
    bool share_gpu;             /* ranks may share a GPU */
    bool inline_progress;       /* the compute thread progresses while it waits; there is no agent thread */
    int divide;                 /* shared_options.divide */
    int micro_batches;          /* per step; 0 counts as 1 */
    net_link link;              /* network to emulate in the engine's transports */
    struct trace *trace;        /* trace of this rank, or NULL */
    anatomy *anatomy;           /* set by sync_open(); NULL for a server in another process */
    struct transport_hub *hub;  /* hub of ranks that are threads of one process, else NULL */
    /* Publishes an error that ends this rank while the compute thread may be stuck in a library. After lost()
     * the process ends with the error's exit code. Any thread may call lost(). NULL if ranks are threads. If
     * NULL, the next call of the engine returns the error. */
    void (*lost)(void *context, const error_record *why);
    void *lost_context;
    /* Returns true and records the error if the other ranks will not connect. sync_connect() calls canceled()
     * several times per second, and returns STATUS_STOPPED if the result is true. May be NULL. */
    bool (*canceled)(void *context);
    void *canceled_context;
    int64_t clock_ahead_ns; /* clock of this rank minus clock of rank 0; set before sync_connect() */
    /* Context on the rank's GPU if the engine works on a staged copy (staged.h), else NULL. */
    const struct sync_context *gpu;
} sync_context;

/* A step, or a micro-batch of a step. */
typedef struct sync_step {
    int64_t index;   /* number of the step in the whole run, from 0 */
    int64_t skipped; /* updates skipped before this process started; the optimizer does not count them */
    int64_t samples; /* samples that this rank trains on; 0 if the rank takes part without data */
    int64_t targets; /* targets of this rank's samples that count in the loss (rows or elements) */
    double learning_rate;
    bool synchronize; /* false for a micro-batch that only accumulates gradients */
} sync_step;

typedef struct sync_batch {
    int64_t load;  /* samples that the rank's loader provides */
    int64_t train; /* samples that the rank runs forward and backward on */
} sync_batch;

/* Totals since the start. */
typedef struct sync_counters {
    int64_t update_aside_ns;            /* time of updates on the threads of this rank's agent or server */
    int64_t agents_cpu_ns;              /* processor time of the threads of this rank's agents */
    int64_t bytes_sent, bytes_received; /* payload over links between ranks */
    int64_t messages_sent, messages_received;
    int64_t updates_skipped;  /* by --on-nonfinite skip */
    int64_t pushes_overtaken; /* pushes that were sent after a push whose gradients became ready later */
} sync_counters;

typedef struct sync_blob {
    void *data;
    size_t bytes;
} sync_blob;

/* The memory that an engine works on if the host cannot access the device's memory. */
typedef enum sync_reach {
    SYNC_REACH_HOST,   /* a staged copy in host memory (staged.h) */
    SYNC_REACH_DEVICE, /* the device's memory */
    /* the device's memory, or a staged copy if ranks share a GPU or open() returns STATUS_UNAVAILABLE */
    SYNC_REACH_EITHER
} sync_reach;

/* The requirements of an engine, which the owner reads before it allocates arenas. */
typedef struct sync_requirements {
    sync_reach reach;
    device_memory_kind param_kind, grad_kind, buffer_kind;
    /* LEDGER_PARAMETERS, or LEDGER_REPLICAS if this rank holds a copy of another rank's parameters. */
    ledger_class param_class;
    /* On every rank the first forward pass of a step starts from the buffers of rank 0, or with --join from
     * the buffers of the lowest rank that has data. */
    bool shares_buffers;
    bool whole_batch; /* rank 0 loads the batches of all ranks, and sync_scatter.inputs() hands them out */
    bool one_loss;    /* rank 0 computes one loss of all ranks' outputs; the programs end before the loss */
    device_memory_kind batch_kind;
    int alike_from;      /* all ranks from this one on use the same amount of memory */
    int optimizer_ranks; /* ranks below this one update parameters; all may if 0 */
    /* true if every pass calls need() and release(); false if only the forward pass calls need() */
    bool each_pass;
    param_shards_config shards; /* how the state is cut among ranks; the caller sets `rank` */
    bool replicates;            /* after flush() the parameters of all ranks are bit-identical */
    bool updates_on_gpu;        /* the engine updates the parameters on the GPU if there is a staged copy
                                     (staged.h) */
    /* Reason why passes cannot be recorded (--cuda-graph, device_record_begin()). NULL if passes can be
     * recorded when the arenas are in device memory. */
    const char *unrecorded;
    const char *virtual_only; /* error text if no real device can run the engine, else NULL */
} sync_requirements;

/* One row of a policy table as `harness policies` prints it. */
typedef struct sync_policy_info {
    const char *name;
    /* System and version that have this policy, and the document that describes the policy. */
    const char *source;
    const char *summary;
} sync_policy_info;

/* The further functions of an engine whose rank 0 loads the batches of all ranks, as DataParallel does. */
typedef struct sync_scatter {
    /* Chooses how many samples this rank loads and trains on; `batch` is the number per rank. */
    status (*plan)(sync_engine *e, const sync_step *step, int64_t batch, sync_batch *out);
    /* Scatters the batch that rank 0 has loaded. */
    status (*inputs)(sync_engine *e, const sync_step *step);
    /* Gathers the outputs on rank 0 if it computes one loss. After end_forward(). */
    status (*gather_outputs)(sync_engine *e, const sync_step *step);
    /* Sets the number of targets over which the loss is a mean, and whether this rank computes a loss. */
    void (*loss)(sync_engine *e, const sync_step *step, int64_t *targets, bool *here);
    /* Scatters the gradients of the outputs. */
    status (*output_gradient)(sync_engine *e, const sync_step *step);
} sync_scatter;

/* The functions of an engine. Each engine has one const instance. Every field except `scatter` is set. */
typedef struct sync_engine_type {
    const char *name; /* "none", "ring", "ps" */
    const option_table *options;
    size_t options_size;
    const sync_policy_info *policies;
    int policy_count;

    /* Fails with STATUS_USAGE or STATUS_CONFIG if policy and options do not fit together. */
    status (*requirements)(const void *options, const char *policy, int world, sync_requirements *out);

    /* Setup has three steps, of which only connect() waits for peers. open() comes first. handshake() returns
     * the data that the peers need. The harness exchanges the handshakes. connect() receives the handshakes
     * of all ranks: handshakes[rank]. */
    status (*open)(const sync_context *context, sync_engine **out);
    status (*handshake)(sync_engine *e, sync_blob *out); /* *out is borrowed until connect() returns */
    status (*connect)(sync_engine *e, const sync_blob *handshakes);
    void (*close)(sync_engine *e);

    /* The stages of a step, in the order of the list at the top of this file. */
    status (*begin_forward)(sync_engine *e, const sync_step *step);
    /* Called before the first operation of a pass that reads the parameter. On a GPU the compute stream
     * waits, and the host goes on. If parameters are sharded, the first call for a unit waits for the unit.
     */
    status (*need)(sync_engine *e, int param);
    status (*release)(sync_engine *e, int param); /* only with each_pass */
    status (*end_forward)(sync_engine *e, const sync_step *step);
    status (*ready)(sync_engine *e, int param);
    /* Ends the reduction, after ready() was called for every gradient. */
    status (*reduce)(sync_engine *e, const sync_step *step);

    /* The update, on ranks that run the optimizer (sync_engine.updates). norm() adds the squared norm of the
     * averages to square_norm. update() ends with sync_end_update(). */
    status (*norm)(sync_engine *e);
    status (*update)(sync_engine *e, const sync_step *step, double scale, bool skipped);

    /* Completes the work in flight, so that all ranks have the same parameters and the buffers of rank 0.
     * Called before evaluations and checkpoints, and at the end. */
    status (*flush)(sync_engine *e);
    /* Makes every rank hold whole parameters until the next step, if parameters are cut among ranks. All
     * ranks call gather_parameters() before evaluations, checkpoints and hashes, and after flush(). */
    status (*gather_parameters)(sync_engine *e);

    /* Sums `count` float64 over the ranks in stream order, for layers that need other ranks' values. */
    status (*group_sum)(sync_engine *e, double *values, int count);

    /* Returns an arena with the layout of the parameters; its pieces `owned` hold the averaged gradient of
     * the last step. Returns NULL if this rank has no part of the average. Verification calls this function
     * after flush(). */
    const void *(*reduced_gradients)(sync_engine *e, piece_list *owned);

    /* Names the causes of the oldest step's waits (anatomy.h), after the compute stream has passed the end
     * of the step. */
    void (*end_step)(sync_engine *e);

    void (*counters)(sync_engine *e, sync_counters *out);

    const sync_scatter *scatter; /* NULL unless rank 0 loads the batches of all ranks */
} sync_engine_type;

struct sync_engine {
    const sync_engine_type *type;
    sync_context context;
    struct sync_staged *staged; /* NULL if the engine works on the rank's own device */
    int64_t update_begin_ns;    /* begin of the present update */
    double square_norm;         /* squared norm of the gradients, if the present update needs it */
    bool updates;               /* true if this rank runs the optimizer; set by open() */
    bool updated;               /* an update was done and not skipped */
    /* The stages only enqueue work on a GPU, so that the next step may begin before this one has ended. Set
     * by open(). */
    bool enqueues;
};

/* Call the functions of the engine's type, and keep a staged copy (staged.h) up to date. */
status sync_open(const sync_engine_type *type, const sync_context *context, sync_engine **out);
status sync_handshake(sync_engine *e, sync_blob *out);
status sync_connect(sync_engine *e, const sync_blob *handshakes);
void sync_close(sync_engine **e);
status sync_begin_forward(sync_engine *e, const sync_step *step);
status sync_need(sync_engine *e, int param);
status sync_end_forward(sync_engine *e, const sync_step *step);
status sync_ready(sync_engine *e, int param);
status sync_reduce(sync_engine *e, const sync_step *step);
status sync_flush(sync_engine *e);
status sync_gather_parameters(sync_engine *e);
status sync_group_sum(sync_engine *e, double *values, int count);
const void *sync_reduced_gradients(sync_engine *e, piece_list *owned);
/* Sweeps the oldest step (anatomy.h), after the compute stream has passed the end of the step. */
void sync_end_step(sync_engine *e, anatomy_span step, const anatomy_phase *phases, int phase_count,
                   anatomy_figures *out);
void sync_read_counters(sync_engine *e, sync_counters *out);

/* Default functions of an engine, which do nothing. */
status sync_default_stage(sync_engine *e, const sync_step *step);
status sync_default_param(sync_engine *e, int param);
status sync_default_flush(sync_engine *e);
void sync_default_end_step(sync_engine *e);

/* The engine without communication, the baseline of every comparison. */
extern const sync_engine_type sync_none;

/* Add the gradient arena to the ledger, in open(), and remove it, in close(). */
void sync_hold_gradients(sync_engine *e);
void sync_drop_gradients(sync_engine *e);

/* Marks of the compute stream. The owner of the engine uses the marks below SYNC_MARK_UPDATE. */
enum {
    SYNC_MARK_UPDATE = 128,
    SYNC_MARK_WAITS = SYNC_MARK_UPDATE + 4, /* first mark of anatomy.h */
    SYNC_MARK_ENGINE = DEVICE_MARKS - 256,  /* first mark of the engines, which have all further marks */
};

/* Returns the mark at which the update of step `index` begins. The update ends at the next mark. Two steps
 * may be in flight. */
int sync_mark_update(int64_t index);

/* The update, only on ranks that run the optimizer. The owner calls sync_begin_update(), sync_take_norm() and
 * sync_update(). sync_take_norm() computes the squared norm of the gradients if clipping or --on-nonfinite
 * skip needs the norm.
 *
 * After sync_take_norm() a rank that has one stage of the model waits for the norms of the other stages and
 * adds the norms to square_norm. After the wait the owner calls sync_begin_update() again, before
 * sync_update().
 *
 * --on-nonfinite chooses what happens with gradients that are not finite. On a GPU sync_check_update()
 * handles "stop" and "warn". */
status sync_begin_update(sync_engine *e, const sync_step *step);
/* Returns true if updates wait for the norm of all gradients: with clipping, or if steps with gradients that
 * are not finite are skipped. In virtual time no gradient has values, so none is skipped. */
bool sync_update_needs_norm(const sync_context *c);
bool sync_skips_nonfinite(const sync_context *c);
status sync_take_norm(sync_engine *e);
status sync_update(sync_engine *e, const sync_step *step);

/* Default functions for engines that update all parameters from the gradient arena. */
status sync_default_norm(sync_engine *e);
status sync_default_update(sync_engine *e, const sync_step *step, double scale, bool skipped);
/* Ends the update of an engine. */
status sync_end_update(sync_engine *e, const sync_step *step, bool skipped);
/* Reports gradients that are not finite, on a GPU. Called when the compute stream has passed the step, and
 * before the update of the step after the next. */
status sync_check_update(sync_engine *e, const sync_step *step);

/* Searches `pieces` of `grads` for elements that are not finite. Sets *name to the parameter of the first
 * one, or to NULL if all elements are finite. Must not run at the same time as another use of the
 * optimizer. */
status sync_find_nonfinite(optimizer *o, device_stream *s, const param_set *set, const void *grads,
                           piece_list pieces, const char **name);
/* Fails with STATUS_NONFINITE or warns: "step 7: rank 1: gradient of conv1.weight is not finite". `rank` is
 * the rank that computed the gradient. SYNC_AVERAGE stands for the average over the ranks. SYNC_THIS_RANK
 * leaves the rank out of the message. `name` is NULL if the parameter is not known. */
enum { SYNC_AVERAGE = -1, SYNC_THIS_RANK = -2 };
status sync_report_nonfinite(optimizer *o, int64_t step, int rank, const char *name);

#endif
