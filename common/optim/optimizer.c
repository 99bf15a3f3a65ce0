#include "common/optim/optimizer.h"

#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

const char *const optimizer_names[] = {"sgd", "adam", "adamw", NULL};
static const char *const nonfinite_names[] = {"stop", "skip", "warn", NULL};
static const char *const schedule_names[] = {"constant", "step", "cosine", "linear", NULL};

#define FIELD(name) offsetof(optimizer_options, name)
static const option optimizer_option_list[] = {
    {"optimizer", OPTION_CHOICE, FIELD(kind), .initial = "sgd", .choices = optimizer_names,
     .help = "update rule, with PyTorch's semantics and defaults"},
    {"lr", OPTION_DOUBLE, FIELD(lr), .alias = "learning-rate", .argument = "X",
     .help = "learning rate, by default PyTorch's [0.001, or 0.01 for sgd]"},
    {"momentum", OPTION_DOUBLE, FIELD(momentum), .argument = "X", .help = "sgd [0]"},
    {"dampening", OPTION_DOUBLE, FIELD(dampening), .argument = "X", .low = -1e9, .high = 1e9,
     .help = "sgd [0]", .level = OPTION_RARE},
    {"nesterov", OPTION_FLAG, FIELD(nesterov), .help = "use Nesterov's momentum with sgd",
     .level = OPTION_RARE},
    {"weight-decay", OPTION_DOUBLE, FIELD(weight_decay), .argument = "X",
     .help = "L2 penalty, decoupled for adamw [0, or 0.01 for adamw]"},
    {"beta1", OPTION_DOUBLE, FIELD(beta1), .argument = "X", .high = 0.999999999, .help = "adam, adamw [0.9]",
     .level = OPTION_RARE},
    {"beta2", OPTION_DOUBLE, FIELD(beta2), .argument = "X", .high = 0.999999999,
     .help = "adam, adamw [0.999]", .level = OPTION_RARE},
    {"eps", OPTION_DOUBLE, FIELD(eps), .argument = "X", .help = "adam, adamw [1e-8]", .level = OPTION_RARE},
    {"lr-schedule", OPTION_CHOICE, FIELD(schedule), .initial = "constant", .choices = schedule_names,
     .help = "schedule of the learning rate"},
    {"lr-warmup", OPTION_INT, FIELD(warmup_steps), .level = OPTION_RARE, .argument = "STEPS", .initial = "0",
     .help = "steps of linear warm-up before the schedule"},
    {"lr-steps", OPTION_INT, FIELD(schedule_steps), .argument = "STEPS", .initial = "0", .level = OPTION_RARE,
     .help = "step: steps between decays; cosine, linear: length of the schedule (0 for the whole run)"},
    {"lr-gamma", OPTION_DOUBLE, FIELD(gamma), .argument = "X", .initial = "0.1",
     .help = "step: factor of each decay", .level = OPTION_RARE},
    {"clip-norm", OPTION_DOUBLE, FIELD(clip_norm), .argument = "X", .initial = "0",
     .help = "scale gradients so that their norm is at most X (0 to turn it off)"},
    {"on-nonfinite", OPTION_CHOICE, FIELD(on_nonfinite), .initial = "stop", .choices = nonfinite_names,
     .help = "gradient or loss infinite or NaN: stop with exit code 79, skip the update on all ranks, or "
             "warn once"},
};

const option_table optimizer_option_table = {"Optimizer", optimizer_option_list,
                                             sizeof optimizer_option_list / sizeof optimizer_option_list[0]};

optimizer_options optimizer_defaults(optimizer_kind kind)
{
    return (optimizer_options){.kind = kind,
                               .lr = kind == OPTIMIZER_SGD ? 0.01 : 0.001,
                               .weight_decay = kind == OPTIMIZER_ADAMW ? 0.01 : 0,
                               .beta1 = 0.9,
                               .beta2 = 0.999,
                               .eps = 1e-8,
                               .gamma = 0.1};
}

status optimizer_resolve(const option_binding *binding)
{
    optimizer_options *o = binding->storage;
    optimizer_options initial = optimizer_defaults((optimizer_kind)o->kind);
    if (!options_given(binding, "lr")) o->lr = initial.lr;
    if (!options_given(binding, "weight-decay")) o->weight_decay = initial.weight_decay;
    if (!options_given(binding, "beta1")) o->beta1 = initial.beta1;
    if (!options_given(binding, "beta2")) o->beta2 = initial.beta2;
    if (!options_given(binding, "eps")) o->eps = initial.eps;
    if (o->nesterov && (o->momentum <= 0 || o->dampening != 0))
        return fail(STATUS_USAGE, "--nesterov: expected --momentum above 0 and --dampening 0, got %g and %g",
                    o->momentum, o->dampening);
    if (options_given(binding, "lr-gamma") && o->schedule != LR_STEP)
        return fail(STATUS_USAGE, "--lr-gamma: expected --lr-schedule step");
    if (options_given(binding, "lr-steps") && o->schedule == LR_CONSTANT)
        return fail(STATUS_USAGE, "--lr-steps: expected --lr-schedule step, cosine or linear");
    if (options_given(binding, "dampening") && o->dampening != 0 && o->kind == OPTIMIZER_SGD &&
        o->momentum <= 0)
        return fail(STATUS_USAGE, "--dampening: expected --momentum above 0");
    static const char *const of_sgd[] = {"momentum", "dampening", "nesterov"};
    static const char *const of_adam[] = {"beta1", "beta2", "eps"};
    for (int i = 0; i < 3; i++) {
        const char *foreign = o->kind == OPTIMIZER_SGD ? of_adam[i] : of_sgd[i];
        if (options_given(binding, foreign))
            return fail(STATUS_USAGE, "--%s: not used by the optimizer %s", foreign,
                        optimizer_names[o->kind]);
    }
    return STATUS_OK;
}

double optimizer_learning_rate(const optimizer_options *o, int64_t step, int64_t total_steps)
{
    if (step < o->warmup_steps) return o->lr * (double)(step + 1) / (double)o->warmup_steps;
    double at = (double)(step - o->warmup_steps);
    int64_t length = o->schedule_steps ? o->schedule_steps : total_steps - o->warmup_steps;
    if (length < 1) length = 1;
    double part = at < (double)length ? at / (double)length : 1.0;
    if (o->schedule == LR_STEP) return o->lr * pow(o->gamma, floor(at / (double)length));
    if (o->schedule == LR_COSINE) return o->lr * 0.5 * (1.0 + cos(3.14159265358979323846 * part));
    return o->schedule == LR_LINEAR ? o->lr * (1.0 - part) : o->lr;
}

int optimizer_state_count(const optimizer_options *o)
{
    if (o->kind != OPTIMIZER_SGD) return 2;
    return o->momentum != 0 ? 1 : 0;
}

struct optimizer {
    device *device;
    optimizer_options options;
    device_kernel *update, *sum_squares;
    device_kernel *update_bf16; /* NULL if the device stores no bfloat16 */
    device_memory state[2];
    device_memory workspace; /* workspace of sum_squares */
    /* [1] float64: result of sum_squares. Used only if the host cannot address device memory. */
    device_memory sum;
    device_memory flag; /* [1] int32 in device memory: the flag that updates set */
    /* [2] int32 in host memory: copies of `flag` after the last even step and after the last odd step. */
    device_memory flags;
    /* Replaces `flag` on a device that computes in host memory. Accessed atomically, because several threads
     * may call optimizer_update() at the same time. */
    int32_t nonfinite;
    bool real;
    atomic_bool warned;
    _Atomic int64_t skipped;
    int state_count;
    int64_t elements, logical;
    int element_size;
    ledger *ledger;
    bool state_counted;
};

static status prepare_kernels(optimizer *o, dtype type)
{
    const optimizer_options *p = &o->options;
    op_desc op = {.kind = p->kind == OPTIMIZER_SGD ? OP_sgd : OP_adam,
                  .type = type,
                  .u.optimizer = {.count = o->elements,
                                  .momentum = p->momentum,
                                  .dampening = p->dampening,
                                  .beta1 = p->beta1,
                                  .beta2 = p->beta2,
                                  .eps = p->eps,
                                  .nesterov = p->nesterov,
                                  .decoupled = p->kind == OPTIMIZER_ADAMW}};
    TRY(device_prepare(o->device, &op, NULL, &o->update));
    const device_info *info = device_get_info(o->device);
    op.u.optimizer.bf16 = true;
    if (info->bf16) TRY(device_prepare(o->device, &op, NULL, &o->update_bf16));
    op.u.optimizer.bf16 = false;
    op.kind = OP_sum_squares;
    TRY(device_prepare(o->device, &op, NULL, &o->sum_squares));
    o->real = info->real;
    if (info->real && !info->host_addressable) {
        TRY(device_allocate(o->device, DEVICE_MEMORY_PRIVATE, sizeof(double), &o->sum));
        TRY(device_allocate(o->device, DEVICE_MEMORY_PRIVATE, sizeof(int32_t), &o->flag));
        TRY(device_allocate(o->device, DEVICE_MEMORY_STAGING, 2 * sizeof(int32_t), &o->flags));
    }
    size_t workspace = device_kernel_workspace(o->sum_squares);
    return workspace ? device_allocate(o->device, DEVICE_MEMORY_PRIVATE, workspace, &o->workspace)
                     : STATUS_OK;
}

status optimizer_open_idle(device *d, const optimizer_options *options, dtype type, int64_t elements,
                           int64_t logical, ledger *l, optimizer **out)
{
    optimizer *o = *out = calloc(1, sizeof *o);
    if (!o) return fail(STATUS_SYSTEM, "no memory for an optimizer");
    *o = (optimizer){.device = d,
                     .options = *options,
                     .state_count = optimizer_state_count(options),
                     .elements = elements,
                     .logical = logical,
                     .element_size = dtype_size(type),
                     .ledger = l};
    status rc = prepare_kernels(o, type);
    if (rc != STATUS_OK) optimizer_close(out);
    return rc;
}

status optimizer_open(device *d, const optimizer_options *options, dtype type, int64_t elements,
                      int64_t logical, ledger *l, optimizer **out)
{
    size_t bytes = (size_t)(elements * dtype_size(type));
    status rc = optimizer_open_idle(d, options, type, elements, logical, l, out);
    for (int i = 0; rc == STATUS_OK && i < optimizer_state_count(options); i++)
        rc = ledger_blame(LEDGER_OPTIMIZER,
                          device_allocate(d, DEVICE_MEMORY_PRIVATE, bytes, &(*out)->state[i]));
    if (rc != STATUS_OK) optimizer_close(out);
    return rc;
}

void optimizer_close(optimizer **pointer)
{
    optimizer *o = *pointer;
    if (!o) return;
    device_release(&o->update);
    device_release(&o->update_bf16);
    device_release(&o->sum_squares);
    for (int i = 0; i < 2; i++) device_free(o->device, &o->state[i]);
    device_free(o->device, &o->workspace);
    device_free(o->device, &o->sum);
    device_free(o->device, &o->flag);
    device_free(o->device, &o->flags);
    free(o);
    *pointer = NULL;
}

const optimizer_options *optimizer_get_options(const optimizer *o)
{
    return &o->options;
}

void optimizer_begin_shard(optimizer *o, int64_t logical, int64_t elements)
{
    if (o->state_counted) return;
    o->state_counted = true;
    for (int i = 0; i < o->state_count; i++)
        ledger_acquire(o->ledger, LEDGER_OPTIMIZER, logical * o->element_size, elements * o->element_size);
}

void optimizer_begin_state(optimizer *o)
{
    optimizer_begin_shard(o, o->logical, o->elements);
}

/* Returns the host's copy of the flag after update `step`. Update `step` + 2 overwrites this copy. */
static int32_t *flag_of(const optimizer *o, int64_t step)
{
    return (int32_t *)o->flags.data + (step & 1);
}

status optimizer_update_bf16(optimizer *o, device_stream *s, void *params, void *bf16, const void *grads,
                             piece_list pieces, int64_t step, double lr, double scale)
{
    const optimizer_options *p = &o->options;
    int64_t made = step - optimizer_skipped(o);
    double t = (double)(made + 1);
    void *operands[OP_MAX_OPERANDS] = {[OPT_PARAM] = params,
                                       [OPT_GRAD] = (void *)grads,
                                       [OPT_STATE1] = o->state[0].data,
                                       [OPT_STATE2] = o->state[1].data,
                                       [OPT_BF16] = bf16};
    op_scalars scalars = {.learning_rate = lr,
                          .weight_decay = p->weight_decay,
                          .gradient_scale = scale,
                          .bias_correction1 = 1.0 - pow(p->beta1, t),
                          .bias_correction2 = 1.0 - pow(p->beta2, t),
                          .nonfinite = o->flag.data ? o->flag.data
                                       : o->real    ? &o->nonfinite
                                                    : NULL,
                          .first_step = made == 0,
                          .pieces = pieces.pieces,
                          .piece_count = pieces.count};
    TRY(device_launch(s, bf16 ? o->update_bf16 : o->update, operands, &scalars, NULL));
    if (!o->flag.data) return STATUS_OK;
    return device_download(s, flag_of(o, step), o->flag.data, DTYPE_I32, DTYPE_I32, 1);
}

status optimizer_update(optimizer *o, device_stream *s, void *params, const void *grads, piece_list pieces,
                        int64_t step, double lr, double scale)
{
    return optimizer_update_bf16(o, s, params, NULL, grads, pieces, step, lr, scale);
}

status optimizer_sum_squares(optimizer *o, device_stream *s, const void *grads, piece_list pieces,
                             double *sum)
{
    op_scalars scalars = {.pieces = pieces.pieces, .piece_count = pieces.count};
    void *operands[OP_MAX_OPERANDS] = {
        [SUMSQ_X] = (void *)grads, [SUMSQ_OUT] = o->sum.data ? o->sum.data : sum};
    if (!o->sum.data) return device_launch(s, o->sum_squares, operands, &scalars, o->workspace.data);
    double found = 0;
    TRY(device_clear(s, o->sum.data, sizeof found));
    TRY(device_launch(s, o->sum_squares, operands, &scalars, o->workspace.data));
    TRY(device_download(s, &found, o->sum.data, DTYPE_F64, DTYPE_F64, 1));
    TRY(device_stream_synchronize(s));
    *sum += found;
    return STATUS_OK;
}

double optimizer_clip_scale(double max_norm, double sum_squares)
{
    double scale = max_norm / (sqrt(sum_squares) + 1e-6);
    return scale < 1.0 ? scale : 1.0;
}

void optimizer_skip(optimizer *o)
{
    atomic_fetch_add_explicit(&o->skipped, 1, memory_order_relaxed);
}

int64_t optimizer_skipped(const optimizer *o)
{
    return atomic_load_explicit(&o->skipped, memory_order_relaxed);
}

bool optimizer_found_nonfinite(const optimizer *o)
{
    if (!o->flags.data) return __atomic_load_n(&o->nonfinite, __ATOMIC_RELAXED) != 0;
    return __atomic_load_n(flag_of(o, 0), __ATOMIC_RELAXED) ||
           __atomic_load_n(flag_of(o, 1), __ATOMIC_RELAXED);
}

int64_t optimizer_first_nonfinite(const optimizer *o, int64_t step)
{
    int32_t found = o->flags.data ? __atomic_load_n(flag_of(o, step), __ATOMIC_RELAXED) : 0;
    return found ? ((int64_t)INT32_MAX - found) * OP_NONFINITE_UNIT : -1;
}

bool optimizer_reports_nonfinite(optimizer *o)
{
    return o->options.on_nonfinite == NONFINITE_STOP ||
           !atomic_exchange_explicit(&o->warned, true, memory_order_relaxed);
}

device_memory *optimizer_state(optimizer *o, int index)
{
    return &o->state[index];
}
