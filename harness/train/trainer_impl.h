/* The internals of a trainer, for the files of this folder.
 *
 * `current` is the state of the present micro-batch. A pending step is between trainer_begin_step() and
 * trainer_end_step(). The lane is the compute stream or, on a CPU, the compute thread
 * (common/sync/anatomy.h). */
#ifndef HARNESS_TRAIN_TRAINER_IMPL_H
#define HARNESS_TRAIN_TRAINER_IMPL_H

#include "harness/train/trainer.h"

typedef struct trainer_pipeline trainer_pipeline; /* stages.h */
typedef struct trainer_devices trainer_devices;
typedef struct trainer_remote trainer_remote;

/* A recorded pass (--cuda-graph). A record is launched only with the scalars that it was recorded with. */
typedef struct trainer_record {
    device_record *record; /* NULL until the pass is recorded */
    op_scalars scalars;
    bool seen; /* true once the pass has run, for the first time in step `first_step` */
    int64_t first_step;
} trainer_record;

/* A program and its prepared kernels for one batch size. */
typedef struct trainer_program_slot {
    int64_t batch;
    nn_program *program;
    nn_instance *instance;
    trainer_record records[2][2][NN_PASSES]; /* [accumulates][synchronizes][pass] */
} trainer_program_slot;

/* Device memory of a batch. */
typedef struct trainer_tensors {
    device_memory input, target, index; /* index: int32 rows that have targets, if the loss is masked */
} trainer_tensors;

/* The batch that is copied to the device before its step (--prefetch). */
typedef struct trainer_prefetch {
    bool on;
    device_stream *stream;
    /* Fences that count the batches copied to the device, and the batches taken by the compute stream. */
    device_fence *copied, *taken;
    trainer_tensors tensors;
    batch_source *source;
    batch_view batch;   /* last batch copied */
    int64_t step, rows; /* step of `batch`; rows of `batch` with targets if the loss is masked, else 0 */
    int64_t next;       /* step to copy next, or -1 */
    uint64_t number;    /* number of batches copied so far */
    bool ahead, lent;   /* `batch` is not used yet; the host buffer of `batch` is not returned yet */
} trainer_prefetch;

/* Limits: steps under way, and micro-batches per step whose marks are kept. */
enum { TRAINER_DEPTH = 2, TRAINER_KEPT_BATCHES = 8 };
_Static_assert(TRAINER_DEPTH *TRAINER_KEPT_BATCHES *STEP_MARKS <= SYNC_MARK_UPDATE,
               "marks that are the owner's");

/* Number of anatomy phases. A micro-batch has the phases data, other, forward, other, backward, other. A
 * step adds `other` before the first micro-batch, and `optimizer` and `other` after the last one. */
enum { PHASES_OF_BATCH = 6, PHASES_OF_STEP = 3 };

/* Shape of a batch, and the memory for its copies to the device. */
typedef struct trainer_data {
    trainer_prefetch prefetch;
    void *pinned[TRAINER_MAX_BUFFERS];
    int pinned_count;
    int32_t *rows,
        *row_targets;     /* rows with targets, and their targets, if the loss is masked; on the host */
    int64_t row_count;    /* number of rows with targets, at least 1, if the loss is masked; else 0 */
    int64_t input_sample; /* elements per sample */
    dtype input_type;
} trainer_data;

/* Data about a micro-batch that trainer_end_step() needs. */
typedef struct trainer_kept_batch {
    double loss_normalizer;
    uint64_t copied; /* trainer_prefetch.number of the batch, or 0 if the batch was not prefetched */
    bool loss_here;  /* true if this rank computed the loss */
} trainer_kept_batch;

/* A step between trainer_begin_step() and trainer_end_step(). */
typedef struct pending_step {
    sync_step step;
    trainer_kept_batch batches[TRAINER_KEPT_BATCHES];
    double (*losses)[2]; /* [TRAINER_KEPT_BATCHES] LOSS_SUMS, in `own` or, on a GPU, in pinned memory */
    double own[TRAINER_KEPT_BATCHES][2];
    /* Sums over the micro-batches. */
    struct {
        int64_t copy; /* time of prefetch copies, ns */
        int64_t samples, targets;
        bool has_loss;
        double loss;
    } sums;
} pending_step;

/* State of the present micro-batch. */
typedef struct trainer_running {
    trainer_program_slot *slot; /* NULL if this rank has no samples */
    nn_observer observer;
    op_scalars scalars;
    sync_step step;
    int64_t load; /* number of samples that this rank's loader provides */
    batch_view batch;
    bool has_batch, loss_here; /* `has_batch`: `batch` is on loan; `loss_here`: this rank computes the loss */
    uint64_t copied;           /* as in trainer_kept_batch */
    int64_t batch_bytes;       /* bytes of the batch in the ledger */
    int64_t micro;             /* index of the micro-batch in the step */
    bool has_gradients;        /* true if an earlier micro-batch of the step wrote gradients */
} trainer_running;

/* Memory of a live micro-batch, whose forward pass has begun and whose backward pass has not ended. A rank
 * with the whole model has one live micro-batch. In a stage micro-batch i uses element i mod `live`. */
typedef struct trainer_live {
    nn_memory memory; /* all live micro-batches share the workspace */
    trainer_tensors tensors;
    trainer_program_slot slots[TRAINER_MAX_SIZES + 1]; /* training programs; the first has the full batch */
    trainer_running after_forward;                     /* state at the end of the forward pass, in a stage */
} trainer_live;

/* Only the rank's compute thread uses a trainer. */
struct trainer {
    trainer_config config;
    device *device;
    device_stream *stream;
    param_set *params;
    optimizer *optimizer;
    sync_engine *engine;
    sync_requirements needs;
    sync_exchange exchange;
    ledger ledger;
    step_log log;
    int64_t slowed_ns; /* in virtual time, slowdown by communication up to the end of the previous step */
    /* Processor time of the compute thread in steps up to the last reading of the thread's clock, and the
     * value of this reading. */
    int64_t cpu_ns, cpu_read_ns;
    int64_t called_ns;   /* begin of the first micro-batch of the step */
    int64_t last_end_ns; /* end of the previous step; 0 if the next step begins at its call */
    double slowdown;     /* factor of --slow */
    int64_t skipped;     /* updates that the run skipped before this process started */
    bool loss_reported;  /* the warning about a loss that is not finite is logged */
    bool lost_parts_reported;
    float *kept;         /* arena of trainer_keep_gradients(), or NULL */
    trainer_live *lives; /* [live] */
    int live;
    int slot_count; /* training programs */
    trainer_program_slot evaluation;
    /* Loss over the outputs of all ranks or of the remote stage. NULL if the programs compute the loss. */
    device_kernel *loss_kernel;
    trainer_data data;
    trainer_running current;
    trainer_pipeline *pipeline; /* NULL if the rank has the whole model */
    trainer_devices *devices;   /* NULL unless stages are on devices of this process */
    trainer_remote *remote;     /* NULL if there is no remote stage */
    bool runs_ahead; /* true if steps are only enqueued, so that the next may begin before this one ends */
    device_memory losses; /* pinned memory of pending_step.losses */
    pending_step pending[TRAINER_DEPTH];
    int64_t begun, ended;  /* number of steps begun, and number of steps ended */
    anatomy_phase *phases; /* [phase_count] phases of the step that ends next */
    int phase_count;
};

/* ---- step.c ---- */

int64_t trainer_micro_batches(const trainer *t);
/* Returns the index in `pending` of the current step, which is about to begin or is running. */
static inline int trainer_current_step(const trainer *t)
{
    return (int)(t->begun % TRAINER_DEPTH);
}
static inline int trainer_mark_of(int step, int64_t micro, step_mark mark)
{
    return (step * TRAINER_KEPT_BATCHES + (int)(micro % TRAINER_KEPT_BATCHES)) * STEP_MARKS + (int)mark;
}
static inline int trainer_current_mark(const trainer *t, step_mark mark)
{
    return trainer_mark_of(trainer_current_step(t), t->current.micro, mark);
}
/* Returns the memory of the present micro-batch. */
static inline trainer_live *trainer_current_live(const trainer *t)
{
    return &t->lives[t->current.micro % t->live];
}
static inline bool trainer_is_last_micro_batch(const trainer *t)
{
    return t->current.micro + 1 >= trainer_micro_batches(t);
}
/* Implements nn_observer.group_sum. */
status trainer_group_sum(void *context, double *values, int count);

/* The parts of a micro-batch, from which each kind of step is made. */

/* Sets the state of the present micro-batch. */
void trainer_begin_batch(trainer *t, int64_t index);
/* Loads, copies and scatters the batch, and chooses the program for its size. */
status trainer_load_batch(trainer *t, batch_source *source, int64_t batch_step);
/* Gathers the outputs, if the engine does, and computes the loss. */
status trainer_loss(trainer *t);
/* Returns true if the compute thread runs the optimizer after this micro-batch. */
bool trainer_updates(const trainer *t);
/* Runs the optimizer if trainer_updates() is true. */
status trainer_update(trainer *t);
/* Begins to copy the loss to the host. Waits for the compute stream and the copy, unless the host runs
 * ahead. */
status trainer_end_batch(trainer *t, batch_source *source);
/* Adds the samples and targets to the sums of the step. */
void trainer_count_batch(trainer *t);
/* Calls trainer_report_forward() and trainer_report_backward(). */
status trainer_report_batch(trainer *t, int step, int64_t micro);

/* ---- result.c ---- */

/* Add the phases, times and loss of a micro-batch to its step. The device must have reached the marks. */
void trainer_report_forward(trainer *t, int step, int64_t micro);
status trainer_report_backward(trainer *t, int step, int64_t micro);
/* Writes the result of a step whose micro-batches have all been reported. */
void trainer_report_step(trainer *t, int step, step_result *out);
/* Checks that the loss of this rank is finite. Returns STATUS_NONFINITE with --on-nonfinite stop, else warns
 * once. The error names the rank, which an average over the ranks would not show. */
status trainer_check_loss(trainer *t, const sync_step *step, const double *sums);
/* Reads the compute thread's clock, and adds the time since the last reading if `in_steps` is true. Called
 * only before and after a series of steps, because a reading takes as long as a small step's bookkeeping. */
void trainer_count_cpu(trainer *t, bool in_steps);

/* ---- batch.c ---- */

/* Computes the addresses of a program that works on the memory of a micro-batch. */
status trainer_bind(trainer_live *l, nn_instance *instance);
/* Allocates private memory of the device. A failure names `class`. */
status trainer_allocate(trainer *t, ledger_class class, int64_t bytes, device_memory *out);
/* Returns the number of samples for which the memory of a batch has room. */
int64_t trainer_largest_batch(const trainer *t);
int64_t trainer_batch_bytes(const trainer *t, int64_t samples);
/* Allocates the tensors of a batch. `out` must hold no memory. The caller closes `out`, also on failure. */
status trainer_open_tensors(trainer *t, device_memory_kind kind, trainer_tensors *out);
void trainer_close_tensors(trainer *t, trainer_tensors *tensors);

/* Copies a batch to `to` in the order of stream `s`. *rows becomes the number of rows with targets if the
 * loss is masked, else 0. */
status trainer_copy_batch(trainer *t, device_stream *s, const batch_view *b, const trainer_tensors *to,
                          int64_t *rows);
/* Copies a batch to the device on the compute stream, and adds the batch to the ledger. */
status trainer_upload(trainer *t, const batch_view *b);
/* Add the batch to the ledger, and remove it. */
void trainer_hold_batch(trainer *t, int64_t bytes);
void trainer_drop_batch(trainer *t);
/* Sets t->current.batch to the batch of `step`. `last` is true for the last batch of the run. */
status trainer_borrow_batch(trainer *t, batch_source *source, int64_t step, bool last);
/* Returns the batch to its source. If the copy to the device may still be running and `ended` is false, does
 * nothing. If `ended` is true, waits for the copy, or leaves the batch to prefetching. */
status trainer_return_batch(trainer *t, batch_source *source, bool ended);

/* Returns true if tensors have values. Tensors have no values in virtual time, and if the device only
 * plans. */
static inline bool trainer_has_values(const trainer *t)
{
    return device_get_info(t->device)->real;
}

/* Returns true on a GPU, where work ends after the call that has launched it. */
static inline bool trainer_is_asynchronous(const trainer *t)
{
    return trainer_has_values(t) && !device_get_info(t->device)->host_addressable;
}

/* Returns the model that ends in the loss: the second half if there is a remote stage, else the model. */
static inline const nn_model *trainer_last_model(const trainer *t)
{
    return t->config.remote ? t->config.remote : t->config.model;
}

/* ---- prefetch.c ---- */

/* Leaves prefetching off if the option, the device or the rank's part in loading rules prefetching out. */
status trainer_prefetch_open(trainer *t);
void trainer_prefetch_close(trainer *t);
/* Sets t->current.batch to the batch of `step`. Copies the batch now if it is not prefetched. */
status trainer_prefetch_fetch(trainer *t, batch_source *source, int64_t step, bool last);
/* Copies the prefetched batch, on the compute stream, to the memory that programs read, and adds the batch to
 * the ledger. */
status trainer_prefetch_take(trainer *t);
/* If prefetching is on, returns the last batch to its source if its copy has ended, and begins to copy the
 * next batch if there is room and the source has the batch ready. */
status trainer_prefetch_next(trainer *t);
/* Waits until no copy reads host memory. */
status trainer_prefetch_flush(trainer *t);
/* Returns the time that copy `number` took, in ns. */
int64_t trainer_prefetch_time(const trainer *t, uint64_t number);

/* ---- graph.c ---- */

/* Runs a pass of the present program, operation by operation or from its record. */
status trainer_run_pass(trainer *t, nn_pass pass);
void trainer_close_records(trainer_program_slot *slot);

#endif
