/* A rank that has all stages of the model (common/nn/stages.h) on devices of its process. In PyTorch this is
 * DistributedDataParallel around a module that is spread over several GPUs.
 *
 * Each stage has a trainer with a device, stream, parameters and engine. One thread drives the trainers
 * in turns (trainer_run_devices()):
 *
 *   forward    first to last stage; each copies the activations of the stage before
 *   backward   last to first stage; each copies the gradient from the stage after, and launches full buckets
 *   reduce     last to first stage
 *   update     last to first stage
 *
 * One device computes at a time, but the reductions of a stage overlap the backward passes of the stages
 * before. A bucket holds parameters of one stage, and the ranks reduce each stage in a separate group.
 *
 * If several stages have a parameter, the last of these stages sums the gradients before engines reduce
 * them. */
#include "common/memory/plan.h"
#include "common/trace/trace.h"
#include "harness/train/stages.h"

#include <stdlib.h>

static const char *const copy_names[] = {
    [TURN_FORWARD] = "activations received", [TURN_BACKWARD] = "gradient received"};

static int stage_of(const trainer *t)
{
    return t->config.place->stage;
}

/* Returns the stage that is `by` stages after this one, or NULL if there is none. */
static trainer *neighbor(const trainer *t, int by)
{
    int stage = stage_of(t) + by;
    return stage >= 0 && stage < t->devices->count ? t->devices->stages[stage] : NULL;
}

void trainer_join_devices(trainer *const *stages, batch_source *const *sources, int count)
{
    for (int s = 0; s < count; s++) {
        trainer_devices *d = stages[s]->devices;
        for (int i = 0; i < count; i++) d->stages[i] = stages[i];
        d->count = count;
        d->source = sources[s];
    }
}

/* ---- waits --------------------------------------------------------------------------------------- */

static status begin_idle(trainer *t)
{
    return anatomy_begin_wait(t->engine->context.anatomy);
}

static status end_idle(trainer *t, trainer_turn turn)
{
    int number;
    TRY(anatomy_end_wait(t->engine->context.anatomy, &number));
    if (number >= 0) t->devices->waits[turn] = number;
    return STATUS_OK;
}

/* ---- copies between devices --------------------------------------------------------------------- */

/* Copies between devices, after all work launched by `from` so far and before later work of `to`. */
static status copy(trainer *to, void *target, trainer *from, const void *source, dtype type, int64_t count)
{
    trainer_devices *d = from->devices;
    TRY(device_stream_signal(from->stream, d->passed, ++d->passes));
    TRY(device_stream_wait(to->stream, d->passed, d->passes));
    return device_copy_from(to->stream, target, from->device, source, type, count);
}

static status copy_value(trainer *to, const trainer_program_slot *ours, int value, trainer *from,
                         const trainer_program_slot *theirs, int source)
{
    const nn_value *v = &ours->program->values[value];
    return copy(to, nn_instance_value(ours->instance, value), from,
                nn_instance_value(theirs->instance, source), v->type, v->bytes / dtype_size(v->type));
}

status trainer_copy_evaluated(trainer *t)
{
    trainer *before = neighbor(t, -1);
    return copy_value(t, &t->evaluation, t->evaluation.program->input_value, before, &before->evaluation,
                      before->evaluation.program->output_value);
}

status trainer_copy_input(trainer *t)
{
    trainer *before = neighbor(t, -1);
    if (before)
        TRY(copy_value(t, t->current.slot, t->current.slot->program->input_value, before,
                       before->current.slot, before->current.slot->program->output_value));
    return end_idle(t, TURN_FORWARD);
}

status trainer_copy_gradient(trainer *t)
{
    trainer *after = neighbor(t, 1);
    if (after)
        TRY(copy_value(t, t->current.slot, t->current.slot->program->output_gradient_value, after,
                       after->current.slot, after->current.slot->program->input_gradient_value));
    return end_idle(t, TURN_BACKWARD);
}

/* ---- gradients of several stages ---------------------------------------------------------------- */

/* Returns true if several stages have the parameter, and this stage is the last one. */
static bool sums(const trainer *t, const nn_param *p)
{
    return trainer_is_shared(p) && p->stages >> stage_of(t) == 1;
}

static void *gradient_of(const trainer *t, const nn_param *p)
{
    return param_set_gradient(t->params, nn_find_param(t->config.model, p->name));
}

/* Adds the gradients of earlier stages to the gradient of this stage, in the order of the stages, and copies
 * the sum back to these stages. */
static status sum_shared(trainer *t, int param)
{
    const nn_param *p = &t->config.model->params[param];
    int64_t count = t->params->pieces[param].count;
    dtype type = t->params->type;
    void *sum = param_set_gradient(t->params, param);
    for (int s = 0; s < stage_of(t); s++) {
        trainer *other = t->devices->stages[s];
        if (!(p->stages >> s & 1)) continue;
        TRY(copy(t, t->devices->arrived.data, other, gradient_of(other, p), type, count));
        TRY(device_add(t->stream, sum, sum, t->devices->arrived.data, type, count));
    }
    for (int s = 0; s < stage_of(t); s++) {
        trainer *other = t->devices->stages[s];
        if (!(p->stages >> s & 1)) continue;
        TRY(copy(other, gradient_of(other, p), t, sum, type, count));
    }
    return STATUS_OK;
}

status trainer_sum_shared(trainer *t)
{
    const nn_model *m = t->config.model;
    for (int i = 0; i < m->param_count; i++)
        if (sums(t, &m->params[i])) TRY(sum_shared(t, i));
    return STATUS_OK;
}

/* ---- the norm of all gradients ------------------------------------------------------------------ */

static status give_norm(trainer *t)
{
    trainer_devices *d = t->devices;
    d->norm = trainer_has_values(t) ? t->engine->square_norm : 0;
    return device_stream_signal(t->stream, d->passed, ++d->passes);
}

static status add_norms(trainer *t)
{
    trainer_devices *d = t->devices;
    double sum = 0;
    TRY(begin_idle(t));
    for (int s = 0; s < d->count; s++) {
        const trainer_devices *other = d->stages[s]->devices;
        TRY(device_stream_wait(t->stream, other->passed, other->passes));
        sum += other->norm;
    }
    if (trainer_has_values(t)) t->engine->square_norm = sum;
    return end_idle(t, TURN_UPDATE);
}

/* ---- causes of waits ---------------------------------------------------------------------------- */

/* Attributes the wait before a turn to the rank of another stage, which ended its part at `ns`. */
static void name_wait(trainer *t, trainer_turn turn, const trainer *other, int64_t ns)
{
    anatomy_sent last = {.ns = ns, .rank = pipeline_rank(other->config.place, stage_of(other))};
    anatomy_name_wait(t->engine->context.anatomy, t->devices->waits[turn], last);
}

/* Splits the wait for a copy in two. Until the output of the other stage was ready, the wait is for the rank
 * of the other stage. After the output was ready, the wait is communication. */
static void name_copy(trainer *t, trainer_turn turn, const trainer *from, int mark, int64_t micro)
{
    anatomy *a = t->engine->context.anatomy;
    anatomy_span time = anatomy_wait_time(a, t->devices->waits[turn]);
    int64_t ready_ns = device_mark_ns(from->stream, mark),
            began_ns = ready_ns > time.begin_ns ? ready_ns : time.begin_ns;
    name_wait(t, turn, from, ready_ns);
    if (began_ns >= time.end_ns) return;
    anatomy_insert_span(a, began_ns, time.end_ns);
    trace_async(t->config.sync.trace, copy_names[turn], micro, micro + 1, began_ns, time.end_ns);
}

/* Names the causes of the waits of a micro-batch. The waits before the forward and the backward turn are for
 * copies. In the waits before later turns the thread drives another stage. */
static void report_waits(trainer *t, int first_mark, int64_t micro)
{
    anatomy *a = t->engine->context.anatomy;
    const trainer *other = t->devices->stages[stage_of(t) == 0];
    const trainer *before = neighbor(t, -1), *after = neighbor(t, 1);
    if (before) name_copy(t, TURN_FORWARD, before, first_mark + STEP_MARK_FORWARD_END, micro);
    if (after) name_copy(t, TURN_BACKWARD, after, first_mark + STEP_MARK_BACKWARD_END, micro);
    for (trainer_turn turn = TURN_REDUCE; turn <= TURN_END; turn++)
        name_wait(t, turn, other, anatomy_wait_time(a, t->devices->waits[turn]).end_ns);
}

/* ---- the step ----------------------------------------------------------------------------------- */

/* Returns true if the update needs the norms of all stages, and so comes after the last reduction. */
static bool awaits_norms(const trainer *t)
{
    return trainer_updates(t) && sync_update_needs_norm(&t->engine->context);
}

/* Reduces the gradients of the stage. If the update does not need the norms of other stages, updates the
 * parameters of the stage, too. */
static status reduce_on(trainer *t)
{
    /* In the forward, backward and update turns the wait ends when a copy or the norms have been enqueued. */
    TRY(end_idle(t, TURN_REDUCE));
    TRY(trainer_stage_reduce(t));
    if (awaits_norms(t)) TRY(give_norm(t));
    if (!awaits_norms(t) || stage_of(t) == 0) TRY(trainer_stage_update(t, add_norms));
    return begin_idle(t);
}

static status end_on(trainer *t)
{
    TRY(end_idle(t, TURN_END));
    TRY(trainer_end_batch(t, t->devices->source));
    report_waits(t, trainer_current_mark(t, STEP_MARK_BEGIN), t->current.micro);
    TRY(trainer_report_batch(t, trainer_current_step(t), t->current.micro));
    trainer_count_batch(t);
    return STATUS_OK;
}

/* Runs a step of all stages. The last stage reduces first, because its gradients are ready first. */
status trainer_run_devices(trainer *first, batch_source *source, int64_t index, int64_t batch_step)
{
    trainer *const *stages = first->devices->stages;
    int n = first->devices->count;
    (void)source; /* devices.source */
    for (int64_t micro = 0; micro < trainer_micro_batches(first); micro++) {
        for (int s = 0; s < n; s++) {
            stages[s]->current.micro = micro;
            for (int i = 0; i < TRAINER_TURNS; i++) stages[s]->devices->waits[i] = -1;
            TRY(begin_idle(stages[s]));
        }
        for (int s = 0; s < n; s++) {
            TRY(trainer_stage_forward(stages[s], stages[s]->devices->source, index, batch_step));
            TRY(begin_idle(stages[s]));
        }
        for (int s = n - 1; s >= 0; s--) {
            TRY(trainer_stage_backward(stages[s]));
            TRY(begin_idle(stages[s]));
        }
        for (int s = n - 1; s >= 0; s--) TRY(reduce_on(stages[s]));
        for (int s = n - 1; s > 0 && awaits_norms(first); s--) {
            TRY(trainer_stage_update(stages[s], add_norms));
            TRY(begin_idle(stages[s]));
        }
        for (int s = 0; s < n; s++) TRY(end_on(stages[s]));
    }
    for (int s = 1; s < n; s++) {
        stages[s]->current.micro = 0;
        stages[s]->begun++;
    }
    return STATUS_OK;
}

/* ---- batches ------------------------------------------------------------------------------------ */

/* A source that keeps the batch of a step on loan until the next step is requested. */
typedef struct shared_source {
    batch_source base;
    batch_source *of;
    batch_view view;
    bool holds; /* `view` is on loan from `of` */
} shared_source;

static void give_back(shared_source *s)
{
    if (s->holds) batch_source_return(s->of, &s->view);
    s->holds = false;
}

static status shared_next(batch_source *base, int64_t step, batch_view *out)
{
    shared_source *s = (shared_source *)base;
    if (!s->holds || s->view.step != step) {
        give_back(s);
        TRY(batch_source_next(s->of, step, &s->view));
        s->holds = true;
    }
    *out = s->view;
    return STATUS_OK;
}

static bool shared_ready(batch_source *base, int64_t step)
{
    const shared_source *s = (const shared_source *)base;
    return (s->holds && s->view.step == step) || batch_source_ready(s->of, step);
}

static void shared_close(batch_source *base)
{
    give_back((shared_source *)base);
    free(base);
}

static const batch_source_type shared_type = {.next = shared_next,
                                              .ready = shared_ready,
                                              .give_back = batch_source_ignore_return,
                                              .close = shared_close};

status trainer_share_source(batch_source *of, batch_source **out)
{
    shared_source *s = calloc(1, sizeof *s);
    *out = &s->base;
    if (!s) return fail(STATUS_SYSTEM, "no memory for batches");
    *s = (shared_source){.base = *of, .of = of};
    s->base.type = &shared_type;
    return STATUS_OK;
}

/* ---- open and close ----------------------------------------------------------------------------- */

status trainer_devices_open(trainer *t)
{
    const nn_model *m = t->config.model;
    int64_t largest = 0;
    t->devices = calloc(1, sizeof *t->devices);
    if (!t->devices) return fail(STATUS_SYSTEM, "no memory for a stage");
    for (int p = 0; p < m->param_count; p++)
        if (sums(t, &m->params[p]) && m->params[p].elements > largest) largest = m->params[p].elements;
    TRY(device_fence_open(t->device, &t->devices->passed));
    if (largest == 0) return STATUS_OK;
    int64_t bytes = largest * dtype_size(t->params->type);
    ledger_acquire(&t->ledger, LEDGER_GRADIENTS, bytes, plan_align(bytes));
    return trainer_allocate(t, LEDGER_GRADIENTS, bytes, &t->devices->arrived);
}

void trainer_devices_close(trainer *t)
{
    if (!t->devices) return;
    device_fence_close(&t->devices->passed);
    device_free(t->device, &t->devices->arrived);
    free(t->devices);
}
