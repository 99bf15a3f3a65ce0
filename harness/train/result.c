/* Computes the result of a step (parts, times and counts) from the marks that the step left on the compute
 * stream. */
#include "harness/train/stages.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/trace/trace.h"

#include <math.h>

void trainer_count_cpu(trainer *t, bool in_steps)
{
    int64_t now = clock_cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    if (in_steps) t->cpu_ns += now - t->cpu_read_ns;
    t->cpu_read_ns = now;
}

int64_t trainer_cpu_ns(trainer *t)
{
    if (!trainer_has_values(t) || trainer_is_asynchronous(t)) return STEP_NOT_MEASURED;
    if (t->devices && t->devices->stages[0] != t) return 0; /* the first trainer counts the thread's time */
    trainer_count_cpu(t, t->last_end_ns != 0);
    return t->cpu_ns;
}

void trainer_begin_anew(trainer *t)
{
    if (t->last_end_ns != 0) trainer_count_cpu(t, true);
    t->last_end_ns = 0;
}

status trainer_check_loss(trainer *t, const sync_step *step, const double *sums)
{
    if (!trainer_has_values(t) || isfinite(sums[0])) return STATUS_OK;
    long long index = step->index;
    if (t->config.optimizer->on_nonfinite == NONFINITE_STOP)
        return fail(STATUS_NONFINITE, "step %lld: the loss is not finite", index);
    if (!t->loss_reported)
        log_warn("step %lld: the loss is not finite; further ones are not reported", index);
    t->loss_reported = true;
    return STATUS_OK;
}

/* Adds a phase of the step: from `mark` on, the lane executes `part`. */
static void add_phase(trainer *t, int mark, step_part part)
{
    if (t->phase_count == 0)
        t->phase_count = 1; /* phases[0], the time before the first mark, is set in trainer_report_step() */
    t->phases[t->phase_count++] = (anatomy_phase){device_mark_ns(t->stream, mark), part};
}

/* Adds a phase in which the lane executes `part` between two marks, and adds this phase to the trace. */
static void add_part(trainer *t, const char *name, int64_t micro, step_part part, int begin, int end)
{
    add_phase(t, begin, part);
    add_phase(t, end, STEP_OTHER);
    trace_slice(t->config.sync.trace, TRACE_COMPUTE, name, t->config.place ? micro : TRACE_NO_INDEX,
                device_mark_ns(t->stream, begin), device_mark_ns(t->stream, end));
}

void trainer_report_forward(trainer *t, int step, int64_t micro)
{
    int first = trainer_mark_of(step, micro, STEP_MARK_BEGIN);
    if (micro == 0) t->called_ns = device_mark_ns(t->stream, first);
    add_part(t, "data", micro, STEP_DATA, first, first + STEP_MARK_LOADED);
    add_part(t, "forward", micro, STEP_FORWARD, first + STEP_MARK_FORWARD, first + STEP_MARK_FORWARD_END);
}

status trainer_report_backward(trainer *t, int step, int64_t micro)
{
    pending_step *f = &t->pending[step];
    const trainer_kept_batch *b = &f->batches[micro % TRAINER_KEPT_BATCHES];
    const double *sums = f->losses[micro % TRAINER_KEPT_BATCHES];
    int first = trainer_mark_of(step, micro, STEP_MARK_BEGIN);
    if (b->loss_here) TRY(trainer_check_loss(t, &f->step, sums));
    if (b->copied) f->sums.copy += trainer_prefetch_time(t, b->copied);
    add_part(t, "backward", micro, STEP_BACKWARD, first + STEP_MARK_BACKWARD, first + STEP_MARK_BACKWARD_END);
    f->sums.has_loss = f->sums.has_loss || b->loss_here;
    f->sums.loss += b->loss_here ? sums[0] / b->loss_normalizer : 0;
    return STATUS_OK;
}

/* Returns the time that communication has cost since the end of the previous step, in ns. Returns
 * STEP_NOT_MEASURED on real devices. */
static int64_t slowdown(trainer *t, int end)
{
    int64_t before = t->slowed_ns;
    t->slowed_ns = device_mark_slowed_ns(t->stream, end);
    return t->slowed_ns < 0 ? STEP_NOT_MEASURED : t->slowed_ns - before;
}

/* Adds the phase of the update. An older mark means that this rank made no update in the step. */
static void add_update(trainer *t, const pending_step *f, int64_t backward_end_ns)
{
    int begin = sync_mark_update(f->step.index);
    if (device_mark_ns(t->stream, begin) < backward_end_ns) return;
    add_phase(t, begin, STEP_OPTIMIZER);
    add_phase(t, begin + 1, STEP_OTHER);
}

void step_set_anatomy(step_times *times, const anatomy_figures *figures)
{
    bool known = figures->lost == 0;
    for (int p = 0; p < STEP_PARTS; p++) times->parts[p] = known ? figures->parts[p] : STEP_NOT_MEASURED;
    times->hidden_computing = known ? figures->hidden_computing_ns : STEP_NOT_MEASURED;
    times->hidden_waiting = known ? figures->hidden_waiting_ns : STEP_NOT_MEASURED;
    times->hidden = known ? times->hidden_computing + times->hidden_waiting : STEP_NOT_MEASURED;
    times->communication = known ? times->hidden + times->parts[STEP_EXPOSED] : STEP_NOT_MEASURED;
}

void trainer_report_step(trainer *t, int step, step_result *out)
{
    const pending_step *f = &t->pending[step];
    device_stream *s = t->stream;
    int last = trainer_mark_of(step, trainer_micro_batches(t) - 1, STEP_MARK_BEGIN);
    int64_t end = device_mark_ns(s, last + STEP_MARK_END);
    int64_t begin = t->last_end_ns ? t->last_end_ns : t->called_ns,
            backward_end = device_mark_ns(s, last + STEP_MARK_BACKWARD_END);
    anatomy_figures figures;
    t->last_end_ns = end;
    t->phases[0] = (anatomy_phase){begin, STEP_OTHER};
    add_update(t, f, backward_end);
    if (t->pipeline) pipeline_end_step(t->pipeline->messages, t->engine->context.anatomy);
    sync_end_step(t->engine, (anatomy_span){begin, end}, t->phases, t->phase_count, &figures);
    step_times times = {.total = end - begin,
                        .copy = t->data.prefetch.on ? f->sums.copy : STEP_NOT_MEASURED,
                        .slowdown = slowdown(t, last + STEP_MARK_END),
                        .first_to_backward_end = STEP_NOT_MEASURED,
                        .last_bucket = STEP_NOT_MEASURED};
    step_set_anatomy(&times, &figures);
    if (figures.lost > 0 && !t->lost_parts_reported)
        log_warn("step %lld: too many waits and transfers to record; the parts of steps with this many are "
                 "not measured",
                 (long long)f->step.index);
    t->lost_parts_reported = t->lost_parts_reported || figures.lost > 0;
    *out = (step_result){.index = f->step.index,
                         .begin_ns = begin,
                         .end_ns = end,
                         .times = times,
                         .waited_for = figures.lost > 0 ? ANATOMY_NOBODY : figures.waited_for,
                         .waited_ns = anatomy_waited(t->engine->context.anatomy),
                         .forward_begin_ns = device_mark_ns(s, last + STEP_MARK_FORWARD),
                         .backward_begin_ns = device_mark_ns(s, last + STEP_MARK_BACKWARD),
                         .backward_end_ns = backward_end,
                         .forward_end_ns = device_mark_ns(s, last + STEP_MARK_FORWARD_END),
                         .reduced_ns = device_mark_ns(s, sync_mark_update(f->step.index)),
                         .samples = f->sums.samples,
                         .targets = f->sums.targets,
                         .loss = f->sums.has_loss ? f->sums.loss : (double)NAN};
}
