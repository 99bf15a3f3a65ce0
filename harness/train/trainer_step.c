/* The train loop: one step as a sequence of stages. A stage that has to wait on a virtual device returns
 * STATUS_AGAIN, and the next call of the step continues there.
 *
 * Where all stages only enqueue (trainer.runs_ahead) the host waits for nothing: a step leaves marks on the compute stream and
 * its loss in pinned memory, and trainer_end_step() reads both when the next step has been enqueued. */
#include "harness/train/trainer_impl.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/device/sim/device_sim.h"
#include "common/trace/trace.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static void enter(trainer *t, rank_operation operation)
{
    rank_slot_enter(t->config.slot, operation, device_now_ns(t->device));
}

int64_t trainer_micro_batches(const trainer *t)
{
    return t->config.accumulate > 1 ? t->config.accumulate : 1;
}

/* Of the step whose stages are running. */
static int flight_now(const trainer *t)
{
    return (int)(t->begun % TRAINER_DEPTH);
}

static int mark_of(int flight, int64_t micro, trainer_mark mark)
{
    return (flight * TRAINER_KEPT_BATCHES + (int)(micro % TRAINER_KEPT_BATCHES)) * TRAINER_MARKS + (int)mark;
}

int trainer_mark_now(const trainer *t, trainer_mark mark)
{
    return mark_of(flight_now(t), t->now.micro, mark);
}

/* Of the present micro-batch. */
static status mark(trainer *t, trainer_mark which)
{
    return device_mark(t->stream, trainer_mark_now(t, which));
}

static trainer_kept_batch *kept(trainer *t)
{
    return &t->flights[flight_now(t)].batches[t->now.micro % TRAINER_KEPT_BATCHES];
}

static double *kept_losses(trainer *t)
{
    return t->flights[flight_now(t)].losses[t->now.micro % TRAINER_KEPT_BATCHES];
}

/* Of the model; else the rank has all of it. */
static bool is_stage(const trainer *t)
{
    return t->config.place != NULL;
}

static double *loss_sums(const trainer *t)
{
    return is_stage(t) ? trainer_loss_now(t) : t->programs.memory.loss.data;
}

static bool is_last_micro_batch(const trainer *t)
{
    return t->now.micro + 1 >= trainer_micro_batches(t);
}

static bool is_last_batch(const trainer *t)
{
    return is_last_micro_batch(t) && t->now.step.index + 1 >= t->config.total_steps;
}

/* ---- batch ------------------------------------------------------------------------------------ */

/* The program of a batch size. */
static status find_slot(trainer *t, int64_t batch, trainer_program_slot **out)
{
    trainer_program_slot *slots = is_stage(t) ? trainer_slot_now(t) : t->programs.slots;
    for (int i = 0; i < t->programs.slot_count; i++) {
        if (slots[i].batch != batch) continue;
        *out = &slots[i];
        return STATUS_OK;
    }
    return fail(STATUS_INTERNAL, "a batch of %lld samples was not announced", (long long)batch);
}

/* ---- stages ----------------------------------------------------------------------------------- */

static status stage_plan(trainer *t)
{
    enter(t, RANK_LOAD_BATCH);
    TRY(mark(t, MARK_BEGIN));
    return sync_plan_batch(t->engine, &t->now.step, t->config.batch, &t->now.plan);
}

static status stage_upload(trainer *t)
{
    ledger_enter(&t->ledger, LEDGER_PHASE_SCATTER);
    sync_exchange *x = &t->exchange;
    x->loaded = x->samples = t->now.plan.load > 0 ? t->now.batch.count : 0;
    x->targets = t->now.plan.load > 0 ? t->now.batch.targets_counted : 0;
    t->now.step.samples = x->samples;
    t->now.step.targets = x->targets;
    if (t->data.prefetch.on && t->now.plan.load > 0) TRY(trainer_prefetch_take(t));
    else if (x->loaded > 0) TRY(trainer_upload(t, &t->now.batch));
    t->now.scalars.rows = t->data.row_count;
    t->now.copied = t->data.prefetch.on && t->now.plan.load > 0 ? t->data.prefetch.number : 0;
    return mark(t, MARK_LOADED);
}

static status separate_phases(trainer *t)
{
    return t->config.separate_phases ? device_stream_synchronize(t->stream) : STATUS_OK;
}

/* The samples that the rank trains on: loaded, or scattered by rank 0. */
static status stage_choose_program(trainer *t)
{
    sync_exchange *x = &t->exchange;
    t->now.step.samples = x->samples;
    t->now.step.targets = x->targets;
    t->now.slot = NULL;
    if (x->samples == 0) return STATUS_OK;
    TRY(find_slot(t, x->samples, &t->now.slot));
    const nn_program *p = t->now.slot->program;
    x->output = nn_instance_value(t->now.slot->instance, p->output_value);
    x->output_gradient = nn_instance_value(t->now.slot->instance, p->output_gradient_value);
    if (x->loaded > 0) return STATUS_OK;
    t->now.batch_bytes = x->samples * (x->input_bytes + (t->needs.one_loss ? 0 : x->target_bytes));
    ledger_acquire(&t->ledger, LEDGER_BATCH, t->now.batch_bytes, t->now.batch_bytes);
    return STATUS_OK;
}

static status stage_enter_forward(trainer *t)
{
    TRY(separate_phases(t));
    ledger_enter(&t->ledger, LEDGER_PHASE_BEGIN);
    enter(t, RANK_FORWARD);
    return mark(t, MARK_FORWARD);
}

static status stage_begin_forward(trainer *t)
{
    if (!is_stage(t) || t->now.micro == 0) TRY(sync_begin_forward(t->engine, &t->now.step));
    ledger_enter(&t->ledger, LEDGER_PHASE_FORWARD);
    t->now.cursor = (nn_cursor){0};
    return STATUS_OK;
}

static status stage_forward(trainer *t)
{
    if (!t->now.slot) return STATUS_OK;
    return trainer_run_pass(t, TRAINER_FORWARD, t->now.slot->program->forward_end);
}

static status stage_place(trainer *t)
{
    ledger_enter(&t->ledger, LEDGER_PHASE_PLACE);
    return sync_place_outputs(t->engine, &t->now.step);
}

static status launch_one_loss(trainer *t)
{
    const sync_exchange *x = &t->exchange;
    void *operands[OP_MAX_OPERANDS] = {[LOSS_LOGITS] = x->all_outputs,
                                       [LOSS_TARGETS] = t->data.tensors.target.data,
                                       [LOSS_DLOGITS] = x->all_gradients,
                                       [LOSS_SUMS] = t->programs.memory.loss.data};
    op_scalars scalars = {.rows = x->loaded * trainer_last_model(t)->rows_per_sample,
                          .loss_normalizer = t->now.scalars.loss_normalizer};
    return device_launch(t->stream, t->programs.loss_kernel, operands, &scalars, t->programs.memory.workspace.data);
}

/* Stops the rank whose loss it is: afterwards the average would hide the rank. */
static status check_loss(trainer *t, const sync_step *step, const double *sums)
{
    if (isfinite(sums[0]) || !device_get_info(t->device)->real) return STATUS_OK;
    long long index = step->index;
    if (t->config.optimizer->on_nonfinite == NONFINITE_STOP)
        return fail(STATUS_NONFINITE, "step %lld: the loss is not finite", index);
    if (!t->loss_reported) log_warn("step %lld: the loss is not finite; further ones are not reported", index);
    t->loss_reported = true;
    return STATUS_OK;
}

static status stage_loss(trainer *t)
{
    if (t->ledger.phase != LEDGER_PHASE_LOSS) ledger_enter(&t->ledger, LEDGER_PHASE_LOSS);
    double normalizer = 1;
    TRY(sync_loss(t->engine, &t->now.step, &normalizer, &t->now.loss_here));
    t->now.scalars.loss_normalizer = t->config.sum_loss ? 1.0 : normalizer * (double)trainer_micro_batches(t);
    t->now.loss_here = t->now.loss_here && !trainer_last_model(t)->sent && (t->now.slot || t->programs.loss_kernel);
    if (!t->now.loss_here) return STATUS_OK;
    if (t->programs.loss_kernel) TRY(launch_one_loss(t));
    else TRY(trainer_run_pass(t, TRAINER_LOSS, t->now.slot->program->loss_end));
    const device_info *info = device_get_info(t->device);
    bool at_once = info->real && info->host_addressable;
    return at_once ? check_loss(t, &t->now.step, loss_sums(t)) : STATUS_OK;
}

static status stage_end_forward(trainer *t)
{
    return mark(t, MARK_FORWARD_END);
}

static status stage_scatter_gradient(trainer *t)
{
    ledger_enter(&t->ledger, LEDGER_PHASE_SCATTER_GRADIENT);
    return sync_scatter_output_gradient(t->engine, &t->now.step);
}

static status stage_enter_backward(trainer *t)
{
    TRY(separate_phases(t));
    if (!is_stage(t)) TRY(mark(t, MARK_FORWARD_END));
    trainer_hold_gradient(t);
    ledger_enter(&t->ledger, LEDGER_PHASE_BACKWARD);
    enter(t, RANK_BACKWARD);
    return mark(t, MARK_BACKWARD);
}

static status stage_backward(trainer *t)
{
    if (!t->now.slot) return STATUS_OK;
    return trainer_run_pass(t, TRAINER_BACKWARD, t->now.slot->program->op_count);
}

static status stage_enter_finish(trainer *t)
{
    TRY(mark(t, MARK_BACKWARD_END));
    ledger_enter(&t->ledger, LEDGER_PHASE_REDUCE);
    enter(t, RANK_WAIT);
    return STATUS_OK;
}

static status stage_finish(trainer *t)
{
    return is_stage(t) && !is_last_micro_batch(t) ? STATUS_OK : sync_finish(t->engine, &t->now.step);
}

static status stage_end(trainer *t)
{
    if (!t->runs_ahead) TRY(device_stream_synchronize(t->stream));
    trainer_drop_batch(t);
    if (!is_last_micro_batch(t)) return STATUS_OK;
    TRY(mark(t, MARK_END));
    ledger_enter(&t->ledger, LEDGER_PHASE_AFTER);
    return STATUS_OK;
}

static status stage_download_loss(trainer *t)
{
    double *sums = kept_losses(t);
    sums[0] = sums[1] = 0;
    kept(t)->copied = t->now.copied;
    kept(t)->loss_here = t->now.loss_here;
    kept(t)->loss_normalizer = t->now.scalars.loss_normalizer;
    if (!t->now.loss_here) return STATUS_OK;
    return device_download(t->stream, sums, loss_sums(t), DTYPE_F64, DTYPE_F64, 2);
}

static status stage_await_loss(trainer *t)
{
    if (t->runs_ahead) return mark(t, MARK_LOSS);
    return t->now.loss_here ? device_stream_synchronize(t->stream) : STATUS_OK;
}

/* --slow stretches stages that compute; engines' stages wait for other ranks. `part`: what reports call the stage. */
typedef struct stage {
    bool pipeline; /* only of ranks that have a stage of the model: what passes between these is awaited and sent */
    bool remote;   /* only of ranks with a remote stage: it runs its pass */
    status (*run)(trainer *);
    status (*engine)(sync_engine *, const sync_step *); /* instead of `run` */
    bool computes;
    const char *part;
} stage;

/* Copies the next step's batch as soon as its buffer is free. */
static status stage_prefetch(trainer *t)
{
    return t->data.prefetch.on ? trainer_prefetch_next(t) : STATUS_OK;
}

static const stage stages[] = {{.run = stage_plan},
                               {.run = stage_upload, .computes = true, .part = "copy"},
                               {.engine = sync_scatter_inputs, .part = "scatter"},
                               {.run = stage_choose_program},
                               {.run = stage_prefetch},
                               {.run = stage_enter_forward},
                               {.run = trainer_await_input, .pipeline = true},
                               {.run = stage_begin_forward, .part = "replicate"},
                               {.run = stage_forward, .computes = true, .part = "forward"},
                               {.run = stage_prefetch},
                               {.run = trainer_remote_forward, .remote = true},
                               {.run = stage_place, .part = "gather"},
                               {.run = stage_loss, .computes = true, .part = "loss"},
                               {.run = stage_end_forward, .pipeline = true},
                               {.run = trainer_send_output, .pipeline = true},
                               {.run = stage_scatter_gradient, .part = "scatter_gradient"}, /* STAGE_SPLIT */
                               {.run = stage_enter_backward},
                               {.run = trainer_remote_backward, .remote = true},
                               {.run = trainer_await_gradient, .pipeline = true},
                               {.run = trainer_begin_reduction, .pipeline = true},
                               {.run = stage_backward, .computes = true, .part = "backward"},
                               {.run = stage_prefetch},
                               {.run = stage_enter_finish},
                               {.run = trainer_end_backward, .pipeline = true},
                               {.run = trainer_share_gradients, .pipeline = true}, /* STAGE_SHARE */
                               {.run = trainer_ready_shared, .pipeline = true},
                               {.run = stage_finish, .part = "reduce_and_update"},
                               {.run = trainer_await_sends, .pipeline = true},
                               {.run = stage_end}, /* STAGE_END */
                               {.run = stage_download_loss},
                               {.run = stage_await_loss}};
enum { STAGE_COUNT = sizeof stages / sizeof stages[0], STAGE_LOAD = 1, STAGE_SPLIT = 15, STAGE_SHARE = 24, STAGE_END = 28 };

/* ---- the step --------------------------------------------------------------------------------- */

static status on_need(void *context, int param)
{
    trainer *t = context;
    straggler_pause(&t->straggler);
    status rc = sync_need(t->engine, param);
    straggler_resume(&t->straggler);
    return rc;
}

static status on_release(void *context, int param)
{
    trainer *t = context;
    straggler_pause(&t->straggler);
    status rc = sync_release(t->engine, param);
    straggler_resume(&t->straggler);
    return rc;
}

static status keep_gradient(trainer *t, int param)
{
    const param_set *set = t->params;
    piece p = set->pieces[param];
    const char *from = (const char *)set->grads.data + set->grads_placed[param].offset * dtype_size(set->type);
    return device_download(t->stream, t->kept + p.offset, from, set->type, DTYPE_F32, p.count);
}

void trainer_keep_gradients(trainer *t, float *arena)
{
    t->kept = arena;
}

static status on_ready(void *context, int param)
{
    trainer *t = context;
    if (is_stage(t) && trainer_defers_ready(t, param)) return STATUS_OK;
    if (t->kept && is_last_micro_batch(t)) TRY(keep_gradient(t, param));
    straggler_pause(&t->straggler);
    status rc = sync_ready(t->engine, param);
    straggler_resume(&t->straggler);
    return rc;
}

status trainer_group_sum(void *context, double *values, int count)
{
    trainer *t = context;
    straggler_pause(&t->straggler);
    status rc = sync_leave_record(&t->engine->context);
    if (rc == STATUS_OK) rc = sync_group_sum(t->engine, values, count);
    if (rc == STATUS_OK) rc = sync_enter_record(&t->engine->context);
    straggler_resume(&t->straggler);
    return rc;
}

/* The clock is read where a stretch of steps begins and ends: a reading takes as long as a small step's bookkeeping. */
static void count_cpu(trainer *t, bool in_steps)
{
    int64_t now = clock_cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    if (in_steps) t->cpu_ns += now - t->cpu_read_ns;
    t->cpu_read_ns = now;
}

int64_t trainer_cpu_ns(trainer *t)
{
    const device_info *info = device_get_info(t->device);
    if (!info->real || !info->host_addressable) return STEP_NOT_MEASURED;
    if (trainer_drives_devices(t) && t->devices.stages[0] != t) return 0; /* the first has all of the thread's */
    count_cpu(t, t->last_end_ns != 0);
    return t->cpu_ns;
}

static void begin_step(trainer *t, int64_t index)
{
    trainer_flight *f = &t->flights[flight_now(t)];
    if (t->now.micro == 0) {
        if (t->last_end_ns == 0) count_cpu(t, false);
        if (t->begun > t->ended) sync_lead(t->engine);
        memset(&f->sums, 0, sizeof f->sums);
        t->now.has_gradients = false;
        if (!t->runs_ahead) t->phase_count = 0;
    }
    t->now.step = (sync_step){.index = index,
                          .skipped = t->skipped,
                          .synchronize = is_last_micro_batch(t),
                          .learning_rate = optimizer_learning_rate(t->config.optimizer, index, t->config.total_steps)};
    /* Where gradients are in places, they are gone. */
    t->now.scalars = (op_scalars){.accumulate = t->now.has_gradients && !param_shards_place_gradients(&t->needs.shards)};
    t->now.observer = (nn_observer){.context = t,
                                    .need = on_need,
                                    .ready = on_ready,
                                    .release = t->needs.each_pass ? on_release : NULL,
                                    .group_sum = trainer_group_sum};
    f->step = t->now.step;
    rank_slot_step(t->config.slot, index, device_now_ns(t->device));
}

/* ---- its end --------------------------------------------------------------------------------- */

/* The lane executes `part` from a mark on. */
static void add_phase(trainer *t, int mark, step_part part)
{
    if (t->phase_count == 0) t->phase_count = 1; /* the first lasts from the end of the previous step to this one's begin */
    t->phases[t->phase_count++] = (anatomy_phase){device_mark_ns(t->stream, mark), part};
}

/* Between two marks the lane executes `part`; also an event of the trace. */
static void add_part(trainer *t, const char *name, int64_t micro, step_part part, int begin, int end)
{
    add_phase(t, begin, part);
    add_phase(t, end, STEP_OTHER);
    trace_slice(t->config.trace, TRACE_COMPUTE, name, is_stage(t) ? micro : TRACE_NO_INDEX,
                device_mark_ns(t->stream, begin), device_mark_ns(t->stream, end));
}

static void report_forward(trainer *t, int flight, int64_t micro)
{
    int first = mark_of(flight, micro, MARK_BEGIN);
    if (micro == 0) t->called_ns = device_mark_ns(t->stream, first);
    add_part(t, "data", micro, STEP_DATA, first, first + MARK_LOADED);
    add_part(t, "forward", micro, STEP_FORWARD, first + MARK_FORWARD, first + MARK_FORWARD_END);
}

static status report_backward(trainer *t, int flight, int64_t micro)
{
    trainer_flight *f = &t->flights[flight];
    const trainer_kept_batch *b = &f->batches[micro % TRAINER_KEPT_BATCHES];
    const double *sums = f->losses[micro % TRAINER_KEPT_BATCHES];
    int first = mark_of(flight, micro, MARK_BEGIN);
    if (b->loss_here) TRY(check_loss(t, &f->step, sums));
    if (b->copied) f->sums.copy += trainer_prefetch_time(t, b->copied);
    add_part(t, "backward", micro, STEP_BACKWARD, first + MARK_BACKWARD, first + MARK_BACKWARD_END);
    f->sums.correct += (int64_t)sums[1];
    f->sums.has_loss = f->sums.has_loss || b->loss_here;
    f->sums.loss += b->loss_here ? sums[0] / b->loss_normalizer : 0;
    return STATUS_OK;
}

static status report_batch(trainer *t, int flight, int64_t micro)
{
    report_forward(t, flight, micro);
    return report_backward(t, flight, micro);
}

/* In virtual time. */
static int64_t slowdown(trainer *t, int end)
{
    if (!sim_device_simulation(t->device)) return STEP_NOT_MEASURED;
    int64_t before = t->slowed_ns;
    t->slowed_ns = sim_mark_slowed_ns(t->stream, end);
    return t->slowed_ns - before;
}

/* The update, if this rank has made one in the step. */
static void add_update(trainer *t, const trainer_flight *f, int64_t backward_end_ns)
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

static void warn_of_lost_parts(trainer *t, int64_t index)
{
    if (!t->lost_parts_reported)
        log_warn("step %lld: more waits and transfers than there is room for: the parts of such steps are not measured",
                 (long long)index);
    t->lost_parts_reported = true;
}

static void report_step(trainer *t, int flight, step_result *out)
{
    const trainer_flight *f = &t->flights[flight];
    device_stream *s = t->stream;
    int last = mark_of(flight, trainer_micro_batches(t) - 1, MARK_BEGIN);
    int64_t end = device_mark_ns(s, last + MARK_END);
    int64_t begin = t->last_end_ns ? t->last_end_ns : t->called_ns, backward_end = device_mark_ns(s, last + MARK_BACKWARD_END);
    anatomy_figures figures;
    t->last_end_ns = end;
    t->phases[0] = (anatomy_phase){begin, STEP_OTHER};
    add_update(t, f, backward_end);
    if (t->pipeline.messages) pipeline_end_step(t->pipeline.messages, t->engine->context.anatomy);
    sync_end_step(t->engine, (anatomy_span){begin, end}, t->phases, t->phase_count, &figures);
    step_times times = {.total = end - begin,
                        .copy = t->data.prefetch.on ? f->sums.copy : STEP_NOT_MEASURED,
                        .slowdown = slowdown(t, last + MARK_END),
                        .first_to_backward_end = STEP_NOT_MEASURED,
                        .last_bucket = STEP_NOT_MEASURED};
    step_set_anatomy(&times, &figures);
    if (figures.lost > 0) warn_of_lost_parts(t, f->step.index);
    *out = (step_result){.index = f->step.index,
                         .begin_ns = begin,
                         .end_ns = end,
                         .times = times,
                         .waited_for = figures.lost > 0 ? ANATOMY_NOBODY : figures.waited_for,
                         .waited_ns = anatomy_waited(t->engine->context.anatomy),
                         .forward_begin_ns = device_mark_ns(s, last + MARK_FORWARD),
                         .backward_begin_ns = device_mark_ns(s, last + MARK_BACKWARD),
                         .backward_end_ns = backward_end,
                         .forward_end_ns = device_mark_ns(s, last + MARK_FORWARD_END),
                         .reduced_ns = device_mark_ns(s, sync_mark_update(f->step.index)),
                         .samples = f->sums.samples,
                         .targets = f->sums.targets,
                         .correct = f->sums.correct,
                         .loss = f->sums.has_loss ? f->sums.loss : (double)NAN};
}

/* ---- its stages ------------------------------------------------------------------------------ */

/* What a GPU computes is stretched by the time that it takes, without what it waited for before. */
static status settle_straggler(trainer *t)
{
    bool behind = !device_get_info(t->device)->host_addressable;
    return t->straggler.stretch > 0 && behind ? device_stream_synchronize(t->stream) : STATUS_OK;
}

static status run_stage(trainer *t)
{
    const stage *now = &stages[t->now.stage];
    if (now->engine) return now->engine(t->engine, &t->now.step);
    if (!now->computes) return now->run(t);
    TRY(settle_straggler(t));
    straggler_resume(&t->straggler);
    status rc = now->run(t);
    if (rc == STATUS_OK) rc = settle_straggler(t);
    straggler_pause(&t->straggler);
    return rc;
}

/* In virtual time, what the rank's thread spends on each stage is counted. */
static int64_t stage_now(const trainer *t)
{
    return sim_device_simulation(t->device) ? device_now_ns(t->device) : 0;
}

int trainer_stage_times(const trainer *t, trainer_stage_time out[TRAINER_STAGES])
{
    int count = 0;
    for (int i = 0; i < STAGE_COUNT; i++)
        if (stages[i].part) out[count++] = (trainer_stage_time){stages[i].part, t->stage_ns[i]};
    return count;
}

static bool concerns(const trainer *t, const stage *s)
{
    return (!s->pipeline || is_stage(t)) && (!s->remote || t->config.remote);
}

/* Up to the stage before `end`. */
static status run_stages(trainer *t, batch_source *source, int64_t index, int64_t batch_step, int end)
{
    static_assert((int)STAGE_COUNT <= (int)TRAINER_STAGES, "room for the times of all stages");
    if (t->now.stage == 0) begin_step(t, index);
    for (; t->now.stage < end; t->now.stage++) {
        if (t->now.stage == STAGE_LOAD && t->now.plan.load > 0)
            TRY(trainer_borrow_batch(t, source, batch_step, is_last_batch(t)));
        int64_t begun_ns = stage_now(t);
        if (concerns(t, &stages[t->now.stage])) TRY(run_stage(t));
        t->stage_ns[t->now.stage] += stage_now(t) - begun_ns;
        if (t->now.stage == STAGE_LOAD) TRY(trainer_return_batch(t, source, false));
    }
    return trainer_return_batch(t, source, true);
}

/* What the host knows of the micro-batch. In a pipeline the first stage has its samples, the last one its targets. */
static void count_batch(trainer *t)
{
    trainer_flight *f = &t->flights[flight_now(t)];
    f->sums.samples += t->config.model->received ? 0 : t->now.step.samples;
    f->sums.targets += trainer_last_model(t)->sent ? 0 : t->now.step.targets;
    t->now.has_gradients = t->now.has_gradients || t->now.slot;
}

/* The passes of the micro-batches in the order of the schedule. */
static status run_pipeline(trainer *t, batch_source *source, int64_t index, int64_t batch_step)
{
    for (int end; trainer_begin_action(t, STAGE_SPLIT, STAGE_COUNT, &end); trainer_end_action(t)) {
        TRY(run_stages(t, source, index, batch_step + t->now.micro, end));
        if (end == STAGE_COUNT) {
            TRY(report_backward(t, flight_now(t), t->now.micro));
            continue;
        }
        count_batch(t);
        report_forward(t, flight_now(t), t->now.micro);
    }
    return STATUS_OK;
}

/* Up to which stage a turn goes, and in which order the devices take it. The last stage reduces first: its gradients are ready
 * first. */
static const struct {
    int end;
    bool last_first;
} turns[TRAINER_TURNS] = {[TURN_FORWARD] = {STAGE_SPLIT, false},
                          [TURN_BACKWARD] = {STAGE_SHARE, true},
                          [TURN_REDUCE] = {STAGE_END, true},
                          [TURN_UPDATE] = {STAGE_END, true},
                          [TURN_END] = {STAGE_COUNT, false}};

static status take_turn(trainer *t, trainer_turn turn, int64_t index, int64_t batch_step, int64_t micro)
{
    if (turn == TURN_UPDATE && t->now.stage == STAGE_END) return STATUS_OK;
    if (turn == TURN_REDUCE || turn == TURN_END) TRY(trainer_end_idle(t, turn)); /* others end it when they have what they need */
    status rc = run_stages(t, t->devices.source, index, batch_step + micro, turns[turn].end);
    bool later = rc == STATUS_AGAIN && turn == TURN_REDUCE && trainer_awaits_norms(t);
    if (!later) TRY(rc);
    if (turn != TURN_END) return trainer_begin_idle(t);
    trainer_report_waits(t, mark_of(flight_now(t), micro, MARK_BEGIN), micro);
    TRY(report_batch(t, flight_now(t), micro));
    t->now.stage = 0;
    count_batch(t);
    t->now.micro++;
    return STATUS_OK;
}

/* The stages on devices of this process: one after the other. */
static status run_devices(trainer *first, batch_source *source, int64_t index, int64_t batch_step)
{
    trainer_devices *d = &first->devices;
    int round = TRAINER_TURNS * d->count;
    for (; d->turn < round * trainer_micro_batches(first); d->turn++) {
        int turn = d->turn % round / d->count, at = d->turn % d->count, micro = d->turn / round;
        for (int s = 0; d->turn % round == 0 && first->now.stage == 0 && s < d->count; s++) {
            trainer_begin_turns(d->stages[s]);
            TRY(trainer_begin_idle(d->stages[s]));
        }
        TRY(take_turn(d->stages[turns[turn].last_first ? d->count - 1 - at : at], (trainer_turn)turn, index, batch_step, micro));
    }
    (void)source; /* each stage has its own */
    for (int s = 1; s < d->count; s++) {
        d->stages[s]->now.micro = 0;
        d->stages[s]->begun++;
    }
    d->turn = 0;
    return STATUS_OK;
}

static status run_batches(trainer *t, batch_source *source, int64_t index, int64_t batch_step)
{
    for (; t->now.micro < trainer_micro_batches(t); t->now.micro++) {
        TRY(run_stages(t, source, index, batch_step + t->now.micro, STAGE_COUNT));
        t->now.stage = 0;
        count_batch(t);
        if (!t->runs_ahead) TRY(report_batch(t, flight_now(t), t->now.micro));
    }
    return STATUS_OK;
}

status trainer_begin_step(trainer *t, batch_source *source, int64_t index, int64_t batch_step)
{
    TRY((trainer_drives_devices(t) ? run_devices : is_stage(t) ? run_pipeline : run_batches)(t, source, index, batch_step));
    t->now.micro = 0;
    t->begun++;
    return STATUS_OK;
}

status trainer_step(trainer *t, batch_source *source, int64_t index, int64_t batch_step, step_result *out)
{
    TRY(trainer_begin_step(t, source, index, batch_step));
    return trainer_end_step(t, out);
}

status trainer_end_step(trainer *t, step_result *out)
{
    int flight = (int)(t->ended % TRAINER_DEPTH);
    if (t->runs_ahead) {
        int64_t batches = trainer_micro_batches(t);
        TRY(device_mark_wait(t->stream, mark_of(flight, batches - 1, MARK_LOSS)));
        t->phase_count = 0;
        for (int64_t micro = 0; micro < batches; micro++) TRY(report_batch(t, flight, micro));
    }
    TRY(sync_check_update(t->engine, &t->flights[flight].step));
    report_step(t, flight, out);
    t->ended++;
    return STATUS_OK;
}

int trainer_depth(const trainer *t)
{
    return t->runs_ahead ? TRAINER_DEPTH : 1;
}

int trainer_under_way(const trainer *t)
{
    return (int)(t->begun - t->ended);
}

void trainer_begin_anew(trainer *t)
{
    if (t->last_end_ns != 0) count_cpu(t, true);
    t->last_end_ns = 0;
}
