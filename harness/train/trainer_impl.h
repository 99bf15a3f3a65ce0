/* The inside of a trainer, for the files of this folder. */
#ifndef HARNESS_TRAIN_TRAINER_IMPL_H
#define HARNESS_TRAIN_TRAINER_IMPL_H

#include "harness/train/trainer.h"

/* --cuda-graph: a pass that was recorded, and with which scalars. */
typedef struct trainer_record {
    device_graph **graphs; /* its stretches, between which the engine works; count 0: not yet */
    int count, capacity;
    op_scalars scalars;
    bool seen; /* the pass has run: first in `first_step` */
    int64_t first_step;
} trainer_record;

/* The pass that is being recorded, or launched from its record. */
typedef struct trainer_recorder {
    sync_recorder base;
    device_stream *stream;
    trainer_record *record; /* NULL: none */
    bool replaying, within; /* a stretch has begun */
    int at;                 /* replaying: the next stretch */
} trainer_recorder;

/* A program with its kernels, for one batch size. */
typedef struct trainer_program_slot {
    int64_t batch;
    nn_program *program;
    nn_instance *instance;
    trainer_record records[2][2][NN_PASSES]; /* [accumulates][synchronizes] */
} trainer_program_slot;

/* A batch on the device. */
typedef struct trainer_tensors {
    device_memory input, target, index; /* index: which rows have targets, where the loss is masked */
} trainer_tensors;

/* --prefetch: the batch that is copied to the device ahead of its step. */
typedef struct trainer_prefetch {
    bool on;
    device_stream *stream;
    device_fence *copied, *taken; /* batches copied to the device, and taken by the compute stream */
    trainer_tensors tensors;
    batch_source *source;
    batch_view batch;   /* the last one copied */
    int64_t step, rows; /* its step; masked: its rows with targets */
    int64_t next;       /* the step to copy next; -1: none */
    uint64_t number;    /* batches copied */
    bool ahead, lent;   /* the last one has not been used; its buffer has not been returned */
} trainer_prefetch;

/* Steps that may have begun before the oldest of them has ended, and their micro-batches whose marks are
 * kept. */
enum { TRAINER_DEPTH = 2, TRAINER_KEPT_BATCHES = 8 };
_Static_assert(TRAINER_DEPTH *TRAINER_KEPT_BATCHES *STEP_MARKS <= SYNC_MARK_UPDATE,
               "marks that are the owner's");

/* What the lane executes in a micro-batch: data, other, forward, other, backward, other. In a step besides:
 * other before the first, and optimizer, other after the last. */
enum { PHASES_OF_BATCH = 6, PHASES_OF_STEP = 3 };

/* Programs for each batch size, and the memory that they share. */
typedef struct trainer_programs {
    trainer_program_slot slots[TRAINER_MAX_SIZES + 1]; /* training; the first is the full batch */
    int slot_count;
    trainer_program_slot evaluation;
    nn_memory memory;
    nn_bindings bindings;       /* of all */
    device_kernel *loss_kernel; /* over the outputs of all ranks; NULL: the program has the loss */
    trainer_recorder recorder;  /* --cuda-graph */
} trainer_programs;

/* What a batch is copied to, and its shape. */
typedef struct trainer_data {
    trainer_tensors tensors; /* one batch */
    trainer_prefetch prefetch;
    void *pinned[TRAINER_MAX_BUFFERS];
    int pinned_count;
    int32_t *rows, *row_targets;         /* masked: which rows have targets, and those; host memory */
    int64_t row_count;                   /* masked: of the batch, at least 1; else 0 */
    int64_t input_sample, target_sample; /* elements per sample */
    dtype input_type, target_type;
} trainer_data;

/* A micro-batch of a step that has not ended. */
typedef struct trainer_kept_batch {
    double loss_normalizer;
    uint64_t copied; /* the number of its copy ahead of the step; 0: there was none */
    bool loss_here;
} trainer_kept_batch;

/* A step from its begin to its end. */
typedef struct trainer_flight {
    sync_step step;
    trainer_kept_batch batches[TRAINER_KEPT_BATCHES];
    double (
        *losses)[2]; /* [TRAINER_KEPT_BATCHES] LOSS_SUMS of the batches: `own`, or on a GPU pinned memory */
    double own[TRAINER_KEPT_BATCHES][2];
    struct {
        int64_t copy; /* ns */
        int64_t samples, targets, correct;
        bool has_loss;
        double loss;
    } sums; /* over the micro-batches */
} trainer_flight;

/* The micro-batch that is running. */
typedef struct trainer_running {
    trainer_program_slot *slot; /* NULL: no samples for this rank */
    nn_observer observer;
    op_scalars scalars;
    sync_step step;
    sync_batch plan;
    batch_view batch;
    bool has_batch, loss_here;
    uint64_t copied; /* the number of the batch's copy ahead of the step; 0: there was none */
    int64_t batch_bytes;
    int64_t micro;      /* the present micro-batch */
    bool has_gradients; /* an earlier micro-batch of the step has written them */
} trainer_running;

/* The micro-batches of a stage whose backward pass has not ended: micro-batch i uses number i mod `live`. */
typedef struct trainer_live {
    nn_memory memory; /* workspace is shared by all */
    trainer_tensors tensors;
    trainer_program_slot slot; /* its program is that of `programs.slots` */
    trainer_running now;       /* as the forward pass has left it */
} trainer_live;

/* A rank that has a stage of the model: trainer_pipeline.c. */
typedef struct trainer_pipeline {
    pipeline *messages; /* NULL: the rank has the whole model */
    trainer_live *lives;
    int live;
    int64_t before;    /* micro-batches of the steps before */
    int64_t asked;     /* inputs that have been asked for, over all steps */
    int64_t evaluated; /* inputs of evaluations, which are numbered with those of steps */
} trainer_pipeline;

/* Stages on devices of this process take turns; before each a device has waited for another. */
typedef enum trainer_turn {
    TURN_FORWARD,
    TURN_BACKWARD,
    TURN_REDUCE,
    TURN_UPDATE,
    TURN_END,
    TRAINER_TURNS
} trainer_turn;

/* A rank whose stages are on devices of its process: trainer_devices.c. */
typedef struct trainer_devices {
    trainer *stages[NN_MOST_STAGES]; /* all of the rank */
    int count;                       /* 0: it has one, or the whole model */
    batch_source *source;            /* of this stage */
    int waits[TRAINER_TURNS]; /* of the present micro-batch, by the turn that they precede (anatomy.h); -1:
                                 none */
    bool updated;             /* in this micro-batch */
    bool has_norm;            /* of its gradients, squared: */
    double norm;
    device_fence *passed; /* what the compute stream has reached, for copies to other devices */
    uint64_t passes;
    device_memory arrived; /* a gradient that another stage has too */
} trainer_devices;

/* A rank whose model has its second half elsewhere: trainer_remote.c. */
typedef struct trainer_remote {
    remote_stage *stage;
    device_memory output, gradient; /* of the second half, one batch */
} trainer_remote;

/* Only the rank's compute thread uses it. */
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
    int64_t slowed_ns;           /* virtual time: by communication, up to the end of the previous step */
    int64_t cpu_ns, cpu_read_ns; /* processor time of the compute thread in steps up to the last reading, and
                                    that reading */
    int64_t called_ns;           /* the first micro-batch of the step began */
    int64_t last_end_ns;         /* of the previous step; 0: the next one begins when it is called */
    double slowdown;             /* --slow: the factor */
    int64_t skipped;             /* updates that the run skipped before this process started */
    bool loss_reported;          /* that it is not finite */
    bool lost_parts_reported;
    float *kept; /* trainer_keep_gradients() */
    trainer_programs programs;
    trainer_data data;
    trainer_running now;
    trainer_pipeline pipeline;
    trainer_devices devices;
    trainer_remote remote;
    bool runs_ahead;      /* steps are only enqueued: the next one may begin before the end of this one */
    device_memory losses; /* of the flights; pinned */
    trainer_flight flights[TRAINER_DEPTH];
    int64_t begun, ended;  /* steps */
    anatomy_phase *phases; /* [PHASES_OF_BATCH per micro-batch, and PHASES_OF_STEP] of the step that ends */
    int phase_count;
};

/* trainer_step.c */
int64_t trainer_micro_batches(const trainer *t);
/* Of the step that is running. */
static inline int trainer_flight_now(const trainer *t)
{
    return (int)(t->begun % TRAINER_DEPTH);
}
static inline int trainer_mark_of(int flight, int64_t micro, step_mark mark)
{
    return (flight * TRAINER_KEPT_BATCHES + (int)(micro % TRAINER_KEPT_BATCHES)) * STEP_MARKS + (int)mark;
}
/* A mark of the present micro-batch. */
static inline int trainer_mark_now(const trainer *t, step_mark mark)
{
    return trainer_mark_of(trainer_flight_now(t), t->now.micro, mark);
}
/* Of the model; else the rank has all of it. */
static inline bool trainer_is_stage(const trainer *t)
{
    return t->config.place != NULL;
}
/* Its stages are on devices of this process. */
static inline bool trainer_drives_devices(const trainer *t)
{
    return t->config.place && t->config.place->devices;
}
/* The observer's sum over the ranks. */
status trainer_group_sum(void *context, double *values, int count);
/* The parts of a micro-batch that all steps have. */
void trainer_begin_batch(trainer *t, int64_t index);
/* Loads, copies and scatters it, and chooses the program. */
status trainer_load_batch(trainer *t, batch_source *source, int64_t batch_step);
status trainer_loss(trainer *t);
/* Whether this rank runs the optimizer after this micro-batch. */
bool trainer_updates(const trainer *t);
status trainer_update(trainer *t);
/* The compute stream has ended it, unless the host runs ahead; its loss is or will be on the host. */
status trainer_end_batch(trainer *t, batch_source *source);
void trainer_count_batch(trainer *t);
status trainer_report_batch(trainer *t, int flight, int64_t micro);

/* trainer_result.c. The lane's phases and the sums of a micro-batch whose marks have been reached. */
void trainer_report_forward(trainer *t, int flight, int64_t micro);
status trainer_report_backward(trainer *t, int flight, int64_t micro);
/* Of the step that ends; all of its micro-batches have been reported. */
void trainer_report_step(trainer *t, int flight, step_result *out);
/* Stops the rank whose loss it is: afterwards the average would hide the rank. */
status trainer_check_loss(trainer *t, const sync_step *step, const double *sums);
/* Reads the compute thread's clock where a stretch of steps begins or ends (`in_steps`): a reading takes as
 * long as a small step's bookkeeping. */
void trainer_count_cpu(trainer *t, bool in_steps);

/* Samples that the memory of a batch must hold; bytes of so many. */
int64_t trainer_largest_batch(const trainer *t);
int64_t trainer_batch_bytes(const trainer *t, int64_t samples);
/* `out` has no memory before; the caller closes it, also after a failure. */
status trainer_open_tensors(trainer *t, device_memory_kind kind, trainer_tensors *out);
void trainer_close_tensors(trainer *t, trainer_tensors *tensors);

/* Copies a batch's tensors in order of `s`; *rows: masked, how many rows have targets, else 0. */
status trainer_copy_batch(trainer *t, device_stream *s, const batch_view *b, const trainer_tensors *to,
                          int64_t *rows);
/* Copies a batch to the device and enters it in the ledger. */
status trainer_upload(trainer *t, const batch_view *b);
void trainer_hold_batch(trainer *t, int64_t samples);
void trainer_drop_batch(trainer *t);
/* Sets t->batch to that of `step`; `last`: of the run. */
status trainer_borrow_batch(trainer *t, batch_source *source, int64_t step, bool last);
/* Returns the batch to its source as soon as the device has it: at the end of the step at the latest. */
status trainer_return_batch(trainer *t, batch_source *source, bool ended);

/* trainer_pipeline.c: nothing where the rank has the whole model. */
status trainer_pipeline_open(trainer *t);
void trainer_pipeline_close(trainer *t);
/* Likewise. Of the batch that is evaluated: its input arrives; its output leaves the memory of the program.
 */
status trainer_receive_evaluated(trainer *t);
status trainer_send_evaluated(trainer *t);
void trainer_end_evaluation(trainer *t);
/* The rest only where it has a stage (config.place). Of the present micro-batch: its program, the memory of
 * its loss, and where its batch is copied to. */
trainer_program_slot *trainer_slot_now(const trainer *t);
double *trainer_loss_now(const trainer *t);
const trainer_tensors *trainer_tensors_now(const trainer *t);
void trainer_hold_gradient(trainer *t);
bool trainer_defers_ready(const trainer *t, int param);
/* A step; and its parts, as devices of one process have them, too. */
status trainer_run_pipeline(trainer *t, batch_source *source, int64_t index, int64_t batch_step);
status trainer_stage_forward(trainer *t, batch_source *source, int64_t index, int64_t batch_step);
status trainer_stage_backward(trainer *t);
status trainer_stage_reduce(trainer *t);

/* trainer_devices.c: the same where the stages are on devices of this process. */
status trainer_devices_open(trainer *t);
void trainer_devices_close(trainer *t);
status trainer_run_devices(trainer *first, batch_source *source, int64_t index, int64_t batch_step);
status trainer_copy_input(trainer *t);
status trainer_copy_gradient(trainer *t);
status trainer_copy_evaluated(trainer *t);
status trainer_sum_shared(trainer *t);

/* trainer_remote.c: nothing where the rank has no remote stage. */
status trainer_remote_open(trainer *t);
void trainer_remote_close(trainer *t);
/* A step, where it has one. */
status trainer_run_remote(trainer *t, batch_source *source, int64_t index, int64_t batch_step);
/* Has the loss: the model, or the second half of it. */
static inline const nn_model *trainer_last_model(const trainer *t)
{
    return t->config.remote ? t->config.remote : t->config.model;
}

/* trainer_prefetch.c. open() leaves it off where nothing can be copied ahead. */
status trainer_prefetch_open(trainer *t);
void trainer_prefetch_close(trainer *t);
/* Sets t->batch to that of `step`: prefetched, or copied now. */
status trainer_prefetch_fetch(trainer *t, batch_source *source, int64_t step, bool last);
/* The compute stream copies it to where programs read it; it is entered in the ledger. */
status trainer_prefetch_take(trainer *t);
/* With prefetching on: begins the copy of the next step's batch if that is ready and there is room, and
 * returns a buffer whose copy has ended. */
status trainer_prefetch_copy_next(trainer *t);
static inline status trainer_prefetch_next(trainer *t)
{
    return t->data.prefetch.on ? trainer_prefetch_copy_next(t) : STATUS_OK;
}
/* Waits until nothing is read from the host any more. */
status trainer_prefetch_flush(trainer *t);
/* How long the copy of that number took, in ns. */
int64_t trainer_prefetch_time(const trainer *t, uint64_t number);

/* Runs a pass of the present program: operations one by one, or as they were recorded. */
status trainer_run_pass(trainer *t, nn_pass pass);
void trainer_recorder_init(trainer *t);
void trainer_close_records(trainer_program_slot *slot);

#endif
