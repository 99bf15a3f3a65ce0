/* The memory ledger of one rank: how many bytes of each class are allocated, now and at the peak.
 *
 * It counts lifetimes, not calls of malloc: its events are the acquisition and release of planned ranges, so
 * the same configuration gives the same logical ledger on every device. Logical bytes are shape times
 * element size; reserved bytes add alignment and a planner's gaps between ranges. Buffers inside
 * libraries and transports are not included: they are measured (see ledger_external).
 *
 * One thread writes a ledger: the one that runs the rank's stages. */
#ifndef COMMON_MEMORY_LEDGER_H
#define COMMON_MEMORY_LEDGER_H

#include "common/base/status.h"

#include <stdint.h>

/* name, name in reports and JSON */
#define LEDGER_CLASS_LIST(X)                                                                                 \
    X(PARAMETERS, "parameters") /* and a model's buffers */                                                  \
    X(GRADIENTS, "gradients")                                                                                \
    X(OPTIMIZER, "optimizer_state")                                                                          \
    X(ACTIVATIONS, "activations")  /* and the gradients of activations */                                    \
    X(OUTPUTS, "outputs_and_loss") /* gathered outputs, the loss and its gradient */                         \
    X(REPLICAS, "replicas")                                                                                  \
    X(GATHERED, "gathered_units") /* whole parameters of units whose parameters are cut among ranks */       \
    X(BUCKETS, "buckets")         /* flattened gradients in flight, a server's sums */                       \
    X(WORKSPACE, "workspace")                                                                                \
    X(BATCH, "batch")

#define LEDGER_CLASS_ENUM(name, text) LEDGER_##name,
typedef enum ledger_class { LEDGER_CLASS_LIST(LEDGER_CLASS_ENUM) LEDGER_CLASS_COUNT } ledger_class;
#undef LEDGER_CLASS_ENUM

/* The stages of a step, in order; the ledger records the one with the peak. */
#define LEDGER_PHASE_LIST(X)                                                                                 \
    X(SETUP, "setup")                                                                                        \
    X(SCATTER, "scatter_inputs")                                                                             \
    X(BEGIN, "begin_forward") /* replicate, pull, broadcast of buffers */                                    \
    X(FORWARD, "forward")                                                                                    \
    X(PLACE, "place_outputs")                                                                                \
    X(LOSS, "loss")                                                                                          \
    X(LOSS_GRADIENT, "loss_gradient") /* DataParallel's, over the outputs of all ranks */                    \
    X(SCATTER_GRADIENT, "scatter_output_gradient")                                                           \
    X(BACKWARD, "backward")                                                                                  \
    X(REDUCE, "reduce")                                                                                      \
    X(OPTIMIZER_STEP, "optimizer")                                                                           \
    X(AFTER, "after_step")                                                                                   \
    X(EVALUATE, "evaluate")

#define LEDGER_PHASE_ENUM(name, text) LEDGER_PHASE_##name,
typedef enum ledger_phase { LEDGER_PHASE_LIST(LEDGER_PHASE_ENUM) LEDGER_PHASE_COUNT } ledger_phase;
#undef LEDGER_PHASE_ENUM

typedef struct ledger_account {
    int64_t current, peak;                   /* logical bytes */
    int64_t reserved_current, reserved_peak; /* with alignment and gaps */
    ledger_phase peak_phase;
} ledger_account;

/* Caller's storage; zero-initialized is empty. */
typedef struct ledger {
    ledger_account classes[LEDGER_CLASS_COUNT];
    ledger_account total;
    ledger_phase phase;
    int64_t peak_classes[LEDGER_CLASS_COUNT];                           /* each class when `total` peaked */
    int64_t phase_peak[LEDGER_PHASE_COUNT];                             /* of the total */
    int64_t phase_peak_classes[LEDGER_PHASE_COUNT][LEDGER_CLASS_COUNT]; /* each class at that time */
    int64_t phase_end[LEDGER_PHASE_COUNT]; /* of the total, at the end of the phase */
    int64_t phase_end_classes[LEDGER_PHASE_COUNT][LEDGER_CLASS_COUNT];
} ledger;

const char *ledger_class_name(ledger_class c);
const char *ledger_phase_name(ledger_phase phase);

/* Returns `rc`; if it is a failure, adds to the message that an allocation of class `c` failed. */
status ledger_blame(ledger_class c, status rc);

/* Leaves the current phase and enters `phase`. */
void ledger_enter(ledger *l, ledger_phase phase);

/* Begins or ends the lifetime of `logical` bytes of class `c`, which occupy `reserved` >= logical bytes. */
void ledger_acquire(ledger *l, ledger_class c, int64_t logical, int64_t reserved);
void ledger_release(ledger *l, ledger_class c, int64_t logical, int64_t reserved);

/* Resets the peaks: after warm-up. */
void ledger_reset_peaks(ledger *l);

/* Memory of this process in bytes: resident set size, and proportional set size (shared pages divided by the
 * number of processes that map them; /proc/self/smaps_rollup). -1 where it cannot be read. */
typedef struct ledger_external {
    int64_t resident, proportional;
} ledger_external;
ledger_external ledger_measure_process(void);

#endif
