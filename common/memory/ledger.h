/* The memory ledger of a rank: the allocated bytes of each class, now and at the peak.
 *
 * The ledger counts lifetimes of planned ranges, not calls of malloc, so the logical bytes of a configuration
 * are the same on every device. The logical bytes of a tensor are the number of elements times the element
 * size. Reserved bytes also include alignment, and the gaps that a planner leaves between ranges. Buffers
 * inside libraries and transports are not included; ledger_external measures the whole process.
 *
 * Only the thread that runs the rank's stages writes a ledger. */
#ifndef COMMON_MEMORY_LEDGER_H
#define COMMON_MEMORY_LEDGER_H

#include "common/base/status.h"

#include <stdint.h>

/* Columns: name, name in reports and JSON. */
#define LEDGER_CLASS_LIST(X)                                                                                 \
    X(PARAMETERS, "parameters") /* parameters and buffers of the model */                                    \
    X(GRADIENTS, "gradients")                                                                                \
    X(OPTIMIZER, "optimizer_state")                                                                          \
    X(ACTIVATIONS, "activations")  /* activations and their gradients */                                     \
    X(OUTPUTS, "outputs_and_loss") /* gathered outputs, the loss and its gradient */                         \
    X(REPLICAS, "replicas")                                                                                  \
    X(GATHERED, "gathered_units") /* all-gathered parameters of sharded units */                             \
    X(BUCKETS, "buckets")         /* flattened gradients to be sent, and the sums of a server */             \
    X(WORKSPACE, "workspace")                                                                                \
    X(BATCH, "batch")

#define LEDGER_CLASS_ENUM(name, text) LEDGER_##name,
typedef enum ledger_class { LEDGER_CLASS_LIST(LEDGER_CLASS_ENUM) LEDGER_CLASS_COUNT } ledger_class;
#undef LEDGER_CLASS_ENUM

/* The phases of a step, in order. The ledger records the peak of each phase. */
#define LEDGER_PHASE_LIST(X)                                                                                 \
    X(SETUP, "setup")                                                                                        \
    X(SCATTER, "scatter_inputs")                                                                             \
    X(BEGIN, "begin_forward") /* the engine replicates or pulls parameters, and broadcasts buffers */        \
    X(FORWARD, "forward")                                                                                    \
    X(PLACE, "place_outputs")                                                                                \
    X(LOSS, "loss")                                                                                          \
    X(LOSS_GRADIENT, "loss_gradient") /* DataParallel computes the loss over the outputs of all ranks */     \
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
    int64_t current, peak;                   /* logical bytes now and at the peak */
    int64_t reserved_current, reserved_peak; /* reserved bytes now and at the peak */
    ledger_phase peak_phase;
} ledger_account;

/* The caller provides the memory of a ledger. A ledger whose bytes are all zero is empty. */
typedef struct ledger {
    ledger_account classes[LEDGER_CLASS_COUNT];
    ledger_account total;
    ledger_phase phase;
    int64_t peak_classes[LEDGER_CLASS_COUNT]; /* bytes of each class at the peak of `total` */
    int64_t phase_peak[LEDGER_PHASE_COUNT];   /* peak of `total` in each phase */
    /* bytes of each class at the peak of the phase */
    int64_t phase_peak_classes[LEDGER_PHASE_COUNT][LEDGER_CLASS_COUNT];
    int64_t phase_end[LEDGER_PHASE_COUNT]; /* `total` at the end of each phase */
    int64_t phase_end_classes[LEDGER_PHASE_COUNT][LEDGER_CLASS_COUNT];
} ledger;

const char *ledger_class_name(ledger_class c);
const char *ledger_phase_name(ledger_phase phase);

/* Returns `rc`. If `rc` is a failure, first adds to the error message that an allocation of class `c`
 * failed. */
status ledger_blame(ledger_class c, status rc);

void ledger_enter(ledger *l, ledger_phase phase);

/* ledger_acquire() begins the lifetime of `logical` bytes of class `c`, and ledger_release() ends it. The
 * bytes occupy `reserved` >= `logical` bytes. */
void ledger_acquire(ledger *l, ledger_class c, int64_t logical, int64_t reserved);
void ledger_release(ledger *l, ledger_class c, int64_t logical, int64_t reserved);

/* Resets the peaks. Called after warm-up. */
void ledger_reset_peaks(ledger *l);

/* Memory of this process in bytes: the resident set size, and the proportional set size
 * (/proc/self/smaps_rollup). The proportional set size counts a shared page as 1/n page if n processes map
 * it. Each size is -1 if it cannot be read. */
typedef struct ledger_external {
    int64_t resident, proportional;
} ledger_external;
ledger_external ledger_measure_process(void);

#endif
