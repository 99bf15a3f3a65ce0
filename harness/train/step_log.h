/* The phases of a step. A rank calls step_log_enter() at the begin of each phase. step_log_enter() records a
 * mark on the compute stream, sets the phase of the memory ledger, and sets the operation of the rank in the
 * status table. In virtual time step_log_enter() also counts the time of the rank's thread. */
#ifndef HARNESS_TRAIN_STEP_LOG_H
#define HARNESS_TRAIN_STEP_LOG_H

#include "common/device/device.h"
#include "common/memory/ledger.h"
#include "common/net/status_table.h"

/* The marks of a micro-batch. END is set only in the last micro-batch of a step. LOSS is set when the loss
 * is on the host. */
typedef enum step_mark {
    STEP_MARK_BEGIN,
    STEP_MARK_LOADED,
    STEP_MARK_FORWARD,
    STEP_MARK_FORWARD_END,
    STEP_MARK_BACKWARD,
    STEP_MARK_BACKWARD_END,
    STEP_MARK_END,
    STEP_MARK_LOSS,
    STEP_MARKS
} step_mark;

/* Columns: phase, mark at the begin of the phase (STEP_MARKS if none), phase of the ledger (COUNT if
 * unchanged), operation in the status table, row of the job's `host_costs` for the time of the phase (or
 * NULL). */
#define STEP_PHASES(X)                                                                                       \
    X(LOAD, STEP_MARK_BEGIN, COUNT, LOAD_BATCH, NULL) /* waits for the loader */                             \
    X(COPY, STEP_MARKS, SCATTER, LOAD_BATCH, "copy")                                                         \
    X(SCATTER, STEP_MARK_LOADED, SCATTER, LOAD_BATCH, "scatter")                                             \
    X(BEGIN_FORWARD, STEP_MARK_FORWARD, BEGIN, FORWARD, "replicate")                                         \
    X(FORWARD, STEP_MARKS, FORWARD, FORWARD, "forward")                                                      \
    X(GATHER_OUTPUTS, STEP_MARKS, PLACE, FORWARD, "gather")                                                  \
    X(LOSS, STEP_MARKS, LOSS, FORWARD, "loss")                                                               \
    X(SCATTER_GRADIENT, STEP_MARKS, SCATTER_GRADIENT, FORWARD, "scatter_gradient")                           \
    X(END_FORWARD, STEP_MARK_FORWARD_END, SCATTER_GRADIENT, FORWARD, NULL)                                   \
    X(BACKWARD, STEP_MARK_BACKWARD, BACKWARD, BACKWARD, "backward")                                          \
    X(REDUCE, STEP_MARK_BACKWARD_END, REDUCE, WAIT, "reduce_and_update")                                     \
    X(DRAIN, STEP_MARKS, COUNT, WAIT, NULL)          /* waits until the compute stream is empty */           \
    X(PREFETCH, STEP_MARKS, COUNT, LOAD_BATCH, NULL) /* begins to copy the next batch, if it is ready */     \
    X(END, STEP_MARK_END, AFTER, WAIT, NULL)                                                                 \
    X(EVALUATE, STEP_MARKS, EVALUATE, EVALUATE, NULL)

#define STEP_PHASE_ENUM(name, mark, memory, operation, cost) STEP_PHASE_##name,
typedef enum step_phase { STEP_PHASES(STEP_PHASE_ENUM) STEP_PHASE_COUNT } step_phase;
#undef STEP_PHASE_ENUM

const char *step_phase_cost(step_phase phase);

/* State of the log, stored by the caller, who sets the first six fields. Used only by the compute thread. */
typedef struct step_log {
    device_stream *compute;
    device *device;
    ledger *ledger;
    rank_slot *slot;
    bool separates; /* true to wait for the compute stream before each pass, to time each pass alone */
    bool counts;    /* true to count spent_ns, in virtual time */
    int first_mark; /* first mark of the present micro-batch */
    step_phase phase;
    int64_t since_ns;
    int64_t spent_ns[STEP_PHASE_COUNT]; /* virtual time that the rank's thread has spent in each phase */
} step_log;

status step_log_enter(step_log *l, step_phase phase);

#endif
