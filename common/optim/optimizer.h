/* Optimizers with PyTorch's exact semantics (torch.optim.SGD, Adam, AdamW), one pass over an arena.
 *
 * An optimizer owns its state arenas, laid out like the parameters, and updates any list of pieces, so
 * it serves a rank that updates everything and a server that owns a shard. Learning-rate schedules and
 * clipping are the same for both, since each computes them from the step number. */
#ifndef COMMON_OPTIM_OPTIMIZER_H
#define COMMON_OPTIM_OPTIMIZER_H

#include "common/base/options.h"
#include "common/device/device.h"
#include "common/memory/ledger.h"
#include "common/memory/piece.h"

typedef enum optimizer_kind { OPTIMIZER_SGD, OPTIMIZER_ADAM, OPTIMIZER_ADAMW } optimizer_kind;
/* The response to a gradient that is not finite. */
typedef enum nonfinite_rule { NONFINITE_STOP, NONFINITE_SKIP, NONFINITE_WARN } nonfinite_rule;
typedef enum lr_schedule { LR_CONSTANT, LR_STEP, LR_COSINE, LR_LINEAR } lr_schedule;

/* PyTorch's names. */
typedef struct optimizer_options {
    int kind; /* optimizer_kind */
    double lr, momentum, dampening, weight_decay, beta1, beta2, eps;
    bool nesterov;
    int schedule;         /* lr_schedule */
    int64_t warmup_steps; /* linear from 0: step s of the warm-up has lr (s+1)/warmup */
    int64_t
        schedule_steps; /* STEP: lr * gamma every schedule_steps; COSINE, LINEAR: steps to 0; 0: the run's */
    double gamma;
    double clip_norm; /* 0: none. torch.nn.utils.clip_grad_norm_ over all parameters */
    int on_nonfinite; /* nonfinite_rule */
} optimizer_options;

extern const option_table optimizer_option_table;

/* PyTorch's defaults of a kind. */
optimizer_options optimizer_defaults(optimizer_kind kind);

/* Sets options that the user did not give to PyTorch's defaults for the chosen kind; `binding` binds
 * optimizer_option_table to an optimizer_options. STATUS_USAGE for combinations that PyTorch refuses
 * (Nesterov without momentum or with dampening). */
status optimizer_resolve(const option_binding *binding);

/* The learning rate of step `step` (from 0) of a run of `total_steps`. */
double optimizer_learning_rate(const optimizer_options *options, int64_t step, int64_t total_steps);

/* State bytes per parameter byte: 0, 1 (momentum) or 2 (Adam). */
int optimizer_state_count(const optimizer_options *options);

typedef struct optimizer optimizer;

/* `elements` of one arena; `logical` elements without padding (for the ledger, class OPTIMIZER). */
status optimizer_open(device *d, const optimizer_options *options, dtype type, int64_t elements,
                      int64_t logical, ledger *l, optimizer **out);
/* For a rank that never updates: no state. */
status optimizer_open_idle(device *d, const optimizer_options *options, dtype type, int64_t elements,
                           int64_t logical, ledger *l, optimizer **out);
void optimizer_close(optimizer **o);
const optimizer_options *optimizer_get_options(const optimizer *o);

/* Enters the state in the ledger: at the first step, when PyTorch creates it. Called by the thread that
 * writes the ledger; further calls do nothing. */
void optimizer_begin_state(optimizer *o);
/* The same where only a shard of the parameters is updated here: `logical` elements, `elements` with padding.
 */
void optimizer_begin_shard(optimizer *o, int64_t logical, int64_t elements);

/* Updates the pieces of `params` from `grads` as step number `step` (from 0) with learning rate `lr`. Adam's
 * count of steps and the first step of momentum leave out the updates that optimizer_skip() has counted.
 * Every element must be updated once per step; several calls with disjoint pieces make one step. Gradients
 * are multiplied by `scale` first (clipping); 1 leaves them as they are. Any thread; on a host device several
 * threads at a time with disjoint pieces. */
status optimizer_update(optimizer *o, device_stream *s, void *params, const void *grads, piece_list pieces,
                        int64_t step, double lr, double scale);

/* Also writes the new values as bfloat16 to `bf16`, an arena laid out like `params`: on devices that store
 * bfloat16 (device_info.bf16). */
status optimizer_update_bf16(optimizer *o, device_stream *s, void *params, void *bf16, const void *grads,
                             piece_list pieces, int64_t step, double lr, double scale);

/* Adds the squared norm of the gradients' pieces to *sum, on the host; it waits for the stream where the
 * device is asynchronous. One call at a time. */
status optimizer_sum_squares(optimizer *o, device_stream *s, const void *grads, piece_list pieces,
                             double *sum);

/* torch.nn.utils.clip_grad_norm_'s factor: min(1, max_norm / (norm + 1e-6)). */
double optimizer_clip_scale(double max_norm, double sum_squares);

/* Skips the update of a step: parameters and state stay unchanged. */
void optimizer_skip(optimizer *o);
int64_t optimizer_skipped(const optimizer *o);
/* Whether an update has read a gradient that is not finite. Every update checks while it reads gradients; on
 * a GPU the answer is as of the last synchronization of the stream. Never on devices without bytes. */
bool optimizer_found_nonfinite(const optimizer *o);
/* On a GPU, once the stream has passed update `step`, and before update `step` + 2: an element of the first
 * parameter in whose gradient that update, or one before it, has found such a value; -1: none has. */
int64_t optimizer_first_nonfinite(const optimizer *o, int64_t step);
/* Whether to report that: always where the run stops, else the first time. */
bool optimizer_reports_nonfinite(optimizer *o);

/* State arenas for checkpoints: index 0 .. optimizer_state_count() - 1; without data where there is no state.
 */
device_memory *optimizer_state(optimizer *o, int index);

#endif
