/* Optimizers with PyTorch's exact semantics (torch.optim.SGD, Adam, AdamW), in one pass over an arena.
 *
 * An optimizer owns arenas of state with the same layout as the parameters. It can update any list of
 * pieces, so a rank that updates all parameters and a server that owns a shard use the same code. Learning
 * rates depend only on the step number, so they are equal on ranks and servers. */
#ifndef COMMON_OPTIM_OPTIMIZER_H
#define COMMON_OPTIM_OPTIMIZER_H

#include "common/base/options.h"
#include "common/device/device.h"
#include "common/memory/ledger.h"
#include "common/memory/piece.h"

typedef enum optimizer_kind { OPTIMIZER_SGD, OPTIMIZER_ADAM, OPTIMIZER_ADAMW } optimizer_kind;
extern const char *const optimizer_names[]; /* "sgd", ..., then NULL */
/* Response to a gradient that is not finite. */
typedef enum nonfinite_rule { NONFINITE_STOP, NONFINITE_SKIP, NONFINITE_WARN } nonfinite_rule;
typedef enum lr_schedule { LR_CONSTANT, LR_STEP, LR_COSINE, LR_LINEAR } lr_schedule;

/* Fields have PyTorch's names. */
typedef struct optimizer_options {
    int kind; /* optimizer_kind */
    double lr, momentum, dampening, weight_decay, beta1, beta2, eps;
    bool nesterov;
    int schedule;         /* lr_schedule */
    int64_t warmup_steps; /* step s of the warm-up has learning rate lr (s+1)/warmup_steps */
    /* Number of steps between two decays by gamma (LR_STEP), or until the learning rate is 0 (LR_COSINE,
     * LR_LINEAR). 0 stands for all steps after the warm-up. */
    int64_t schedule_steps;
    double gamma;
    /* Largest permitted norm of the gradients of all parameters, as in torch.nn.utils.clip_grad_norm_. 0 if
     * gradients are not clipped. */
    double clip_norm;
    int on_nonfinite; /* nonfinite_rule */
} optimizer_options;

extern const option_table optimizer_option_table;

/* Returns PyTorch's defaults for `kind`. */
optimizer_options optimizer_defaults(optimizer_kind kind);

/* For every option that the user did not give, sets PyTorch's default for the chosen kind. `binding` binds
 * optimizer_option_table to an optimizer_options. Returns STATUS_USAGE for combinations that PyTorch refuses
 * (Nesterov without momentum or with dampening), and for options that the chosen kind or schedule does not
 * use. */
status optimizer_resolve(const option_binding *binding);

/* Returns the learning rate of step `step` (from 0) in a run of `total_steps`. */
double optimizer_learning_rate(const optimizer_options *options, int64_t step, int64_t total_steps);

/* Returns the number of state arenas: 0, 1 (momentum) or 2 (Adam). */
int optimizer_state_count(const optimizer_options *options);

typedef struct optimizer optimizer;

/* Allocates state for arenas of `elements` elements. `logical` is the number of elements without padding, for
 * the ledger. */
status optimizer_open(device *d, const optimizer_options *options, dtype type, int64_t elements,
                      int64_t logical, ledger *l, optimizer **out);
/* Opens an optimizer without state, for a rank that never updates parameters. */
status optimizer_open_idle(device *d, const optimizer_options *options, dtype type, int64_t elements,
                           int64_t logical, ledger *l, optimizer **out);
void optimizer_close(optimizer **o);
const optimizer_options *optimizer_get_options(const optimizer *o);

/* Records the state in the ledger. The thread that writes the ledger calls this function at the first step,
 * because PyTorch creates its state in this step. Further calls do nothing. */
void optimizer_begin_state(optimizer *o);
/* Records the state of a shard in the ledger. The shard has `logical` elements, or `elements` with
 * padding. Further calls do nothing. */
void optimizer_begin_shard(optimizer *o, int64_t logical, int64_t elements);

/* Updates the pieces of `params` from `grads` as step number `step` (from 0) with learning rate `lr`. A step
 * for which optimizer_skip() was called does not count in Adam's bias correction, and is not the first step
 * of SGD's momentum. Every element must be updated exactly once per step, by one call or by several calls
 * with disjoint pieces. Gradients are first multiplied by `scale` (clipping). Any thread may call. On a host
 * device several threads may call at the same time with disjoint pieces. */
status optimizer_update(optimizer *o, device_stream *s, void *params, const void *grads, piece_list pieces,
                        int64_t step, double lr, double scale);

/* Updates `params` and also writes the new values as bfloat16 to `bf16`, an arena with the same layout. May
 * be called only for devices that store bfloat16 (device_info.bf16). */
status optimizer_update_bf16(optimizer *o, device_stream *s, void *params, void *bf16, const void *grads,
                             piece_list pieces, int64_t step, double lr, double scale);

/* Adds the sum of the squares of the gradients in the pieces to *sum on the host. Waits for the stream if the
 * device is asynchronous. Only one call may run at a time. */
status optimizer_sum_squares(optimizer *o, device_stream *s, const void *grads, piece_list pieces,
                             double *sum);

/* Returns the factor of torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)). */
double optimizer_clip_scale(double max_norm, double sum_squares);

/* Skips the update of a step: parameters and state stay unchanged. */
void optimizer_skip(optimizer *o);
int64_t optimizer_skipped(const optimizer *o);
/* Returns true if an update has read a gradient that is not finite. On a GPU the answer covers the updates
 * before the last synchronization of the stream. The answer is always false on devices without tensor
 * bytes. */
bool optimizer_found_nonfinite(const optimizer *o);
/* Returns the index of an element in the first parameter whose gradient is not finite, or -1 if all gradients
 * are finite. The result covers a GPU's updates up to and including `step`. May be called between the end of
 * update `step` on the stream and update `step` + 2. */
int64_t optimizer_first_nonfinite(const optimizer *o, int64_t step);
/* Returns true if the caller must report a gradient that is not finite. If gradients that are not finite
 * do not stop the run, only the first call returns true. */
bool optimizer_reports_nonfinite(optimizer *o);

/* Returns state arena `index` for checkpoints. `index` must be below optimizer_state_count(). The arena has
 * no data if the optimizer was opened without state. */
device_memory *optimizer_state(optimizer *o, int index);

#endif
