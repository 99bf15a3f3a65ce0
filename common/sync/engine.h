/* The interface of engines. An engine makes data-parallel ranks agree on gradients and parameters. The
 * engines are `none`, `ring` and `ps`. One train loop drives every engine, with these calls:
 *
 *   begin_forward    exchange parameters or buffers that the forward pass needs
 *   forward pass     need(i) before the first use of parameter i
 *   end_forward      send buffers
 *   backward pass    ready(i) after the last operation that writes gradient i
 *   reduce           complete the averages of the gradients
 *   norm, update     run the optimizer, on ranks that have one
 *
 * Under the policy `dp`, rank 0 also loads the batches of all ranks, and may compute one loss over the
 * outputs of all ranks (sync_scatter).
 *
 * Some engines move parameters in and out of memory (sync_requirements.each_pass). If each_pass is set, each
 * pass calls need(i) before the first operation that reads parameter i or writes gradient i, and release(i)
 * after the last of these operations.
 *
 * An engine decides how gradients are reduced and averaged, how the loss is normalized, and which ranks run
 * the optimizer. Models do not depend on engines.
 *
 * The compute thread of a rank makes these calls. During the calls the compute thread computes, packs and
 * copies. It also updates parameters if the rank runs the optimizer. For communication the compute thread
 * posts work to the engine's agent (agent.h) and waits for a fence. The agent drives the engine's state
 * machine, and owns the engine's sockets and collectives. A parameter server has a separate agent.
 *
 * On a device that only plans (device_info.plans), an engine has no peers and never waits, but the calls
 * change the ledger as on any other device.
 *
 * The files of this folder:
 *   straggler.h   option --slow
 *   engine.h      this interface
 *   queue.h       passes events from the compute thread to the agent
 *   agent.h       the thread that communicates
 *   staging.h     copies between a GPU and the host
 *   average.h     averages of tensors that ranks have sent
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

/* ---- options that all engines have ---- */

/* Says which values are divided by the number of ranks. */
typedef enum shared_divide {
    SHARED_DIVIDE_POLICY, /* the policy decides which values are divided */
    SHARED_DIVIDE_BEFORE, /* each rank's gradient, before the sum */
    SHARED_DIVIDE_AFTER   /* the sum of the gradients */
} shared_divide;

typedef struct shared_options {
    int divide; /* a shared_divide */
    int64_t stall_timeout_ns;
    const char *link; /* text for net_link_parse(), or NULL */
    const char *slow; /* text for straggler_factor(), or NULL */
} shared_options;

extern const option_table shared_option_table;

/* ---- an engine ---- */

typedef struct sync_engine sync_engine;

/* Batch, outputs and output gradients of this rank, for engines that move these tensors between ranks. The
 * owner sets each field before the call that reads the field, unless the comment of the field says that the
 * engine sets it. */
typedef struct sync_exchange {
    /* Inputs and targets of this rank. If this rank loads the batches of all ranks, they contain the
     * samples of all ranks in rank order. */
    device_memory *input, *target;
    int64_t input_bytes, target_bytes, output_bytes; /* bytes per sample */
    /* Bytes of the output of a sample in the type in which the loss reads it. More than output_bytes if
     * activations are bfloat16. */
    int64_t loss_output_bytes;
    int64_t ahead_bytes; /* bytes of the next batch if it is prefetched, else 0 */
    dtype target_type;
    int64_t targets_each; /* number of targets per sample */
    int64_t largest;      /* number of samples of the largest batch for which `input` has room */
    int64_t loaded;       /* number of samples that this rank has loaded */
    /* Number of samples that this rank trains on, and number of their targets that count in the loss.
     * sync_scatter.inputs() of the engine may change both numbers. */
    int64_t samples, targets;
    void *output, *output_gradient; /* output of this rank's samples, and the gradient of this output */
    /* Outputs of all ranks and the gradients of these outputs, if this rank computes the loss of all ranks.
     * Set by the engine's open(). */
    void *all_outputs, *all_gradients;
} sync_exchange;

/* The environment of an engine. All pointers are borrowed and outlive the engine. The owner adds the memory
 * of parameters, activations and batches to the ledger. The engine adds the memory of gradients, buckets and
 * optimizer state. */
typedef struct sync_context {
    int rank, world; /* rank in the group of ranks that train this model or stage, and size of the group */
    /* Rank 0 of the group is rank `first` of the job, and `job_world` is the number of ranks of the job.
     * Both are 0 if the group contains all ranks of the job. */
    int first, job_world;
    uint64_t job_token;
    device *device;
    device_stream *compute;
    param_set *params;
    /* training program, from which engines read sizes and the order in which gradients become ready */
    const nn_program *program;
    optimizer *optimizer;
    ledger *ledger;
    sync_exchange *exchange; /* NULL in tests that move no batches */
    struct rank_slot *slot;  /* status slot of this rank, never NULL */
    /* Status table, from which engines read the progress of other ranks, or NULL. The stall limit counts from
     * the last progress of any rank. */
    const struct status_table *table;
    const void *options; /* option struct of the engine (sync_engine_type.options) */
    const char *policy;  /* name of the policy in the engine's policy table */
    int64_t stall_timeout_ns;
    int64_t connect_timeout_ns; /* time limit for connecting through a library; 0 means stall_timeout_ns */
    bool share_gpu;             /* whether ranks may share a GPU */
    bool inline_progress;       /* whether the agent is inline (agent.h) instead of a thread */
    int divide;                 /* shared_options.divide */
    int micro_batches;          /* number of micro-batches per step; 0 means 1 */
    net_link link;              /* network that the engine's transports emulate */
    struct trace *trace;        /* trace of this rank, or NULL */
    anatomy *anatomy;           /* set by sync_open(); NULL for a server in a separate process */
    const char *host_address;   /* address for ranks on other hosts, or NULL if all ranks are on this host */
    struct transport_hub *hub;  /* hub that connects ranks if they are threads of one process, else NULL */
    /* Called if an error ends this rank while the compute thread may be stuck in a library. lost() publishes
     * the error, and the process ends with the exit code of the error. Any thread may call lost(). NULL if
     * ranks are threads. In this case the next call of the engine returns the error. */
    void (*lost)(void *context, const error_record *why);
    void *lost_context;
    /* If the run has been canceled, records the error and returns true. The other ranks of a canceled run
     * never connect. Therefore sync_connect() calls canceled() several times per second while it waits for
     * other ranks, and returns STATUS_STOPPED if the result is true. May be NULL. */
    bool (*canceled)(void *context);
    void *canceled_context;
    /* time of this rank's clock minus time of rank 0's clock; set before sync_connect() */
    int64_t clock_ahead_ns;
    /* Context on the rank's GPU if the engine works on a staged copy (staged.h), else NULL. */
    const struct sync_context *gpu;
} sync_context;

/* A step, or a micro-batch of a step. */
typedef struct sync_step {
    int64_t index; /* number of the step in the whole run, from 0 */
    /* number of updates that were skipped before this process started; the optimizer does not count skipped
     * updates */
    int64_t skipped;
    int64_t samples; /* number of samples that this rank trains on; 0 if the rank takes part without data */
    int64_t targets; /* number of targets of this rank that count in the loss (rows or elements) */
    double learning_rate;
    bool synchronize; /* false for a micro-batch that only accumulates gradients */
} sync_step;

/* Totals since the engine was opened. */
typedef struct sync_counters {
    /* time that the threads of this rank's agent or server have spent in updates */
    int64_t update_aside_ns;
    int64_t agents_cpu_ns;              /* processor time of the threads of this rank's agents */
    int64_t bytes_sent, bytes_received; /* bytes of payload that passed over links between ranks */
    int64_t messages_sent, messages_received;
    int64_t updates_skipped; /* number of updates that were skipped because of --on-nonfinite skip */
    /* number of pushes that were sent after a push whose gradients became ready later */
    int64_t pushes_overtaken;
} sync_counters;

typedef struct sync_blob {
    void *data;
    size_t bytes;
} sync_blob;

/* The memory in which an engine works if the host cannot access the device's memory. */
typedef enum sync_reach {
    SYNC_REACH_HOST,   /* a staged copy in host memory (staged.h) */
    SYNC_REACH_DEVICE, /* the device's memory */
    /* a staged copy if ranks share a GPU or open() returns STATUS_UNAVAILABLE, else the device's memory */
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
    bool whole_batch; /* rank 0 loads the batches of all ranks, and sync_scatter.inputs() scatters them */
    /* rank 0 computes one loss over the outputs of all ranks; the program of each rank ends before the
     * loss */
    bool one_loss;
    device_memory_kind batch_kind;
    int alike_from; /* ranks from alike_from to the last rank use the same amount of memory */
    /* number of ranks, from rank 0, that update parameters; 0 means that all ranks may update parameters */
    int optimizer_ranks;
    /* true if every pass calls need() and release(); false if only the forward pass calls need() */
    bool each_pass;
    param_shards_config shards; /* how the state is sharded over the ranks; the caller sets `rank` */
    bool replicates;            /* true if after flush() the parameters of all ranks are bit-identical */
    bool keeps_state;           /* other processes than the ranks keep the state of the optimizer */
    /* if there is a staged copy (staged.h), the engine updates parameters on the GPU */
    bool updates_on_gpu;
    /* Reason why passes cannot be recorded (--cuda-graph, device_record_begin()). NULL if passes can be
     * recorded when the arenas are in device memory. */
    const char *unrecorded;
    const char *virtual_only; /* error text if no real device can run the engine, else NULL */
} sync_requirements;

/* One row of a policy table as `harness policies` prints it. */
typedef struct sync_policy_info {
    const char *name;
    /* System whose behavior the policy reproduces, its version, and a document that describes the system. */
    const char *source;
    const char *summary;
} sync_policy_info;

/* Additional functions of an engine in which rank 0 loads the batches of all ranks, as in DataParallel. */
typedef struct sync_scatter {
    /* Begins a micro-batch, and returns the number of samples that this rank loads. `batch` is the number of
     * samples per rank. */
    int64_t (*plan)(sync_engine *e, const sync_step *step, int64_t batch);
    /* Scatters the batch that rank 0 has loaded. */
    status (*inputs)(sync_engine *e, const sync_step *step);
    /* Gathers the outputs on rank 0 if rank 0 computes one loss. Called after end_forward(). */
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

    /* Sets *out to the requirements. Fails with STATUS_USAGE or STATUS_CONFIG if policy and options
     * contradict each other. */
    status (*requirements)(const void *options, const char *policy, int world, sync_requirements *out);

    /* An engine is set up in three steps, of which only connect() waits for peers. First the harness calls
     * open(). Then it calls handshake(), which returns the data that the peers need, and exchanges these
     * handshakes. Finally it calls connect() with the handshakes of all ranks; handshakes[r] is the handshake
     * of rank r. */
    status (*open)(const sync_context *context, sync_engine **out);
    status (*handshake)(sync_engine *e, sync_blob *out); /* *out is borrowed until connect() returns */
    status (*connect)(sync_engine *e, const sync_blob *handshakes);
    void (*close)(sync_engine *e);

    /* The calls of a step, in the order of the list at the top of this file. */
    status (*begin_forward)(sync_engine *e, const sync_step *step);
    /* Called before the first operation of a pass that reads the parameter. On a GPU, the compute stream
     * waits, and the host does not. If parameters are sharded, the first call for a parameter of a unit waits
     * for the whole unit.
     */
    status (*need)(sync_engine *e, int param);
    status (*release)(sync_engine *e, int param); /* called only if each_pass is set */
    status (*end_forward)(sync_engine *e, const sync_step *step);
    status (*ready)(sync_engine *e, int param);
    /* Ends the reduction. Called after ready() has been called for every gradient. */
    status (*reduce)(sync_engine *e, const sync_step *step);

    /* The update. Called only on ranks that run the optimizer (sync_engine.updates). norm() adds the squared
     * norm of the averages to sync_engine.square_norm. update() must call sync_end_update() at the end. */
    status (*norm)(sync_engine *e);
    status (*update)(sync_engine *e, const sync_step *step, double scale, bool skipped);

    /* Completes the work in flight. Afterwards all ranks have the same parameters, and the buffers of rank 0.
     * Called before evaluations and checkpoints, and at the end of the run. */
    status (*flush)(sync_engine *e);
    /* If parameters are sharded, makes every rank hold whole parameters until the next step. All ranks call
     * gather_parameters() after flush(), before evaluations, checkpoints and hashes. */
    status (*gather_parameters)(sync_engine *e);

    /* Sums `count` values of type float64 over the ranks, in stream order. Used by layers that need values of
     * other ranks. */
    status (*group_sum)(sync_engine *e, double *values, int count);

    /* Returns an arena with the layout of the parameters, and sets *owned to the pieces of the arena that
     * hold averaged gradients of the last step. Returns NULL if this rank has no part of the average.
     * Verification calls this function after flush(). */
    const void *(*reduced_gradients)(sync_engine *e, piece_list *owned);

    /* Records the causes of the waits of the oldest step in flight (anatomy.h). Called when the compute
     * stream has passed the end of this step. */
    void (*end_step)(sync_engine *e);

    void (*counters)(sync_engine *e, sync_counters *out);

    const sync_scatter *scatter; /* NULL unless rank 0 loads the batches of all ranks */
} sync_engine_type;

struct sync_engine {
    const sync_engine_type *type;
    sync_context context;
    struct sync_staged *staged; /* NULL if the engine works in the memory of the rank's device */
    int64_t update_begin_ns;    /* time at which the current update began */
    double square_norm;         /* squared norm of the gradients; set if the current update needs the norm */
    bool updates;               /* true if this rank runs the optimizer; set by open() */
    bool updated;               /* true if at least one update was not skipped */
    /* True if the calls of a step only enqueue work on a GPU, so that the next step may begin before the
     * current step has ended. Set by open(). */
    bool enqueues;
};

/* These functions call the functions of the engine's type. If there is a staged copy (staged.h), these
 * functions also copy data between the staged copy and the GPU. */
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
/* Labels the instants of the oldest step in flight (anatomy.h). Called when the compute stream has passed
 * the end of this step. */
void sync_end_step(sync_engine *e, anatomy_span step, const anatomy_phase *phases, int phase_count,
                   anatomy_figures *out);
void sync_read_counters(sync_engine *e, sync_counters *out);

/* Default functions of an engine, which do nothing. */
status sync_default_call(sync_engine *e, const sync_step *step);
status sync_default_param(sync_engine *e, int param);
status sync_default_flush(sync_engine *e);
void sync_default_end_step(sync_engine *e);

/* The engine without communication. It is the baseline of every comparison. */
extern const sync_engine_type sync_none;

/* sync_hold_gradients() adds the gradient arena to the ledger. An engine calls it in open().
 * sync_drop_gradients() removes the arena from the ledger. An engine calls it in close(). */
void sync_hold_gradients(sync_engine *e);
void sync_drop_gradients(sync_engine *e);

/* Ranges of the marks on the compute stream. The owner of the engine uses the marks below
 * SYNC_MARK_UPDATE. */
enum {
    SYNC_MARK_UPDATE = 128,
    SYNC_MARK_WAITS = SYNC_MARK_UPDATE + 4, /* first mark that anatomy.c uses */
    /* first mark for engines, which may use all marks from here to the last mark */
    SYNC_MARK_ENGINE = DEVICE_MARKS - 256,
};

/* Returns the mark at which the update of step `index` begins. The update ends at the next mark. Two steps
 * may be in flight. */
int sync_mark_update(int64_t index);

/* The functions of the update, which are called only on ranks that run the optimizer. The owner calls
 * sync_begin_update(), sync_take_norm() and sync_update(), in this order. sync_take_norm() computes the
 * squared norm of the gradients if clipping or --on-nonfinite skip needs the norm.
 *
 * If a rank has only one stage of the model, the owner waits for the squared norms of the other stages after
 * sync_take_norm(), and adds these squared norms to square_norm. Then the owner calls sync_begin_update()
 * again, before sync_update().
 *
 * --on-nonfinite chooses what happens with gradients that are not finite. On a GPU sync_check_update()
 * handles "stop" and "warn". */
status sync_begin_update(sync_engine *e, const sync_step *step);
/* Returns true if updates wait for the norm of all gradients. Updates wait if gradients are clipped, or if
 * steps with gradients that are not finite are skipped. */
bool sync_update_needs_norm(const sync_context *c);
/* Returns true if steps with gradients that are not finite are skipped. Always returns false in virtual time,
 * because gradients have no values there. */
bool sync_skips_nonfinite(const sync_context *c);
status sync_take_norm(sync_engine *e);
status sync_update(sync_engine *e, const sync_step *step);

/* Default functions for engines that update all parameters from the gradient arena. */
status sync_default_norm(sync_engine *e);
status sync_default_update(sync_engine *e, const sync_step *step, double scale, bool skipped);
/* Ends an update. Called at the end of update(). */
status sync_end_update(sync_engine *e, const sync_step *step, bool skipped);
/* On a GPU, reports gradients of step i that are not finite. Called after the compute stream has passed step
 * i, and before the update of step i + 2. */
status sync_check_update(sync_engine *e, const sync_step *step);

/* Searches `pieces` of `grads` for elements that are not finite. Sets *name to the name of the first
 * parameter whose gradient contains one, or to NULL if all elements are finite. Must not run at the same time
 * as another use of the optimizer. */
status sync_find_nonfinite(optimizer *o, device_stream *s, const param_set *set, const void *grads,
                           piece_list pieces, const char **name);
/* Fails with STATUS_NONFINITE, or prints a warning such as "step 7: rank 1: gradient of conv1.weight is not
 * finite". `rank` is the rank that computed the gradient, or SYNC_AVERAGE for the average over the ranks. If
 * `rank` is SYNC_THIS_RANK, the message contains no rank. `name` is NULL if the parameter is not known. */
enum { SYNC_AVERAGE = -1, SYNC_THIS_RANK = -2 };
status sync_report_nonfinite(optimizer *o, int64_t step, int rank, const char *name);

#endif
