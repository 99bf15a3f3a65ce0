/* The train loop: one step as a sequence of stages.
 *
 * Where all stages only enqueue (trainer.runs_ahead) the host waits for nothing: a step leaves marks on the
 * compute stream and its loss in pinned memory, and trainer_end_step() reads both when the next step has been
 * enqueued. */
#include "harness/train/trainer_impl.h"

#include "common/device/sim/device_sim.h"

#include <assert.h>
#include <string.h>

static void enter(trainer *t, rank_operation operation)
{
    rank_slot_enter(t->config.slot, operation, device_now_ns(t->device));
}

int64_t trainer_micro_batches(const trainer *t)
{
    return t->config.accumulate > 1 ? t->config.accumulate : 1;
}

/* Of the present micro-batch. */
static status mark(trainer *t, trainer_mark which)
{
    return device_mark(t->stream, trainer_mark_now(t, which));
}

static trainer_kept_batch *kept(trainer *t)
{
    return &t->flights[trainer_flight_now(t)].batches[t->now.micro % TRAINER_KEPT_BATCHES];
}

static double *kept_losses(trainer *t)
{
    return t->flights[trainer_flight_now(t)].losses[t->now.micro % TRAINER_KEPT_BATCHES];
}

static double *loss_sums(const trainer *t)
{
    return trainer_is_stage(t) ? trainer_loss_now(t) : t->programs.memory.loss.data;
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
    trainer_program_slot *slots = trainer_is_stage(t) ? trainer_slot_now(t) : t->programs.slots;
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
    if (t->data.prefetch.on && t->now.plan.load > 0)
        TRY(trainer_prefetch_take(t));
    else if (x->loaded > 0)
        TRY(trainer_upload(t, &t->now.batch));
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
    if (!trainer_is_stage(t) || t->now.micro == 0) TRY(sync_begin_forward(t->engine, &t->now.step));
    ledger_enter(&t->ledger, LEDGER_PHASE_FORWARD);
    return STATUS_OK;
}

static status stage_forward(trainer *t)
{
    return t->now.slot ? trainer_run_pass(t, NN_FORWARD) : STATUS_OK;
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
    return device_launch(t->stream, t->programs.loss_kernel, operands, &scalars,
                         t->programs.memory.workspace.data);
}

static status stage_loss(trainer *t)
{
    if (t->ledger.phase != LEDGER_PHASE_LOSS) ledger_enter(&t->ledger, LEDGER_PHASE_LOSS);
    double normalizer = 1;
    TRY(sync_loss(t->engine, &t->now.step, &normalizer, &t->now.loss_here));
    t->now.scalars.loss_normalizer = t->config.sum_loss ? 1.0 : normalizer * (double)trainer_micro_batches(t);
    t->now.loss_here =
        t->now.loss_here && !trainer_last_model(t)->sent && (t->now.slot || t->programs.loss_kernel);
    if (!t->now.loss_here) return STATUS_OK;
    if (t->programs.loss_kernel)
        TRY(launch_one_loss(t));
    else
        TRY(trainer_run_pass(t, NN_LOSS));
    const device_info *info = device_get_info(t->device);
    bool at_once = info->real && info->host_addressable;
    return at_once ? trainer_check_loss(t, &t->now.step, loss_sums(t)) : STATUS_OK;
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
    if (!trainer_is_stage(t)) TRY(mark(t, MARK_FORWARD_END));
    trainer_hold_gradient(t);
    ledger_enter(&t->ledger, LEDGER_PHASE_BACKWARD);
    enter(t, RANK_BACKWARD);
    return mark(t, MARK_BACKWARD);
}

static status stage_backward(trainer *t)
{
    return t->now.slot ? trainer_run_pass(t, NN_BACKWARD) : STATUS_OK;
}

static status stage_enter_finish(trainer *t)
{
    TRY(mark(t, MARK_BACKWARD_END));
    ledger_enter(&t->ledger, LEDGER_PHASE_REDUCE);
    enter(t, RANK_WAIT);
    return STATUS_OK;
}

static bool updates(const trainer *t)
{
    return t->engine->updates && is_last_micro_batch(t);
}

static status stage_reduce(trainer *t)
{
    if (trainer_is_stage(t) && !is_last_micro_batch(t)) return STATUS_OK;
    TRY(sync_reduce(t->engine, &t->now.step));
    if (!updates(t)) return STATUS_OK;
    TRY(sync_begin_update(t->engine, &t->now.step));
    TRY(sync_take_norm(t->engine));
    bool gives = trainer_drives_devices(t) && sync_update_needs_norm(t->engine);
    return gives ? trainer_give_device_norm(t) : STATUS_OK;
}

static status stage_update(trainer *t)
{
    if (!updates(t)) return STATUS_OK;
    if (trainer_is_stage(t) && sync_update_needs_norm(t->engine)) {
        TRY(trainer_drives_devices(t) ? trainer_add_device_norms(t) : trainer_add_norms(t));
        TRY(sync_begin_update(t->engine, &t->now.step));
    }
    return sync_update(t->engine, &t->now.step);
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

enum {
    STAGE_PLAN,
    STAGE_LOAD,
    STAGE_SCATTER,
    STAGE_CHOOSE_PROGRAM,
    STAGE_PREFETCH,
    STAGE_ENTER_FORWARD,
    STAGE_AWAIT_INPUT,
    STAGE_BEGIN_FORWARD,
    STAGE_FORWARD,
    STAGE_PREFETCH_AFTER_FORWARD,
    STAGE_REMOTE_FORWARD,
    STAGE_PLACE,
    STAGE_LOSS,
    STAGE_END_FORWARD,
    STAGE_SEND_OUTPUT,
    STAGE_SCATTER_GRADIENT,
    STAGE_ENTER_BACKWARD,
    STAGE_REMOTE_BACKWARD,
    STAGE_AWAIT_GRADIENT,
    STAGE_BEGIN_REDUCTION,
    STAGE_BACKWARD,
    STAGE_PREFETCH_AFTER_BACKWARD,
    STAGE_ENTER_FINISH,
    STAGE_END_BACKWARD,
    STAGE_SHARE_GRADIENTS,
    STAGE_READY_SHARED,
    STAGE_REDUCE,
    STAGE_UPDATE,
    STAGE_AWAIT_SENDS,
    STAGE_END,
    STAGE_DOWNLOAD_LOSS,
    STAGE_AWAIT_LOSS,
    STAGE_COUNT
};

/* --slow stretches stages that compute; engines' stages wait for other ranks. `part`: what reports call the
 * stage. */
typedef struct stage {
    bool pipeline; /* only of ranks that have a stage of the model: what passes between these is awaited and
                      sent */
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

static const stage stages[STAGE_COUNT] = {
    [STAGE_PLAN] = {.run = stage_plan},
    [STAGE_LOAD] = {.run = stage_upload, .computes = true, .part = "copy"},
    [STAGE_SCATTER] = {.engine = sync_scatter_inputs, .part = "scatter"},
    [STAGE_CHOOSE_PROGRAM] = {.run = stage_choose_program},
    [STAGE_PREFETCH] = {.run = stage_prefetch},
    [STAGE_ENTER_FORWARD] = {.run = stage_enter_forward},
    [STAGE_AWAIT_INPUT] = {.run = trainer_await_input, .pipeline = true},
    [STAGE_BEGIN_FORWARD] = {.run = stage_begin_forward, .part = "replicate"},
    [STAGE_FORWARD] = {.run = stage_forward, .computes = true, .part = "forward"},
    [STAGE_PREFETCH_AFTER_FORWARD] = {.run = stage_prefetch},
    [STAGE_REMOTE_FORWARD] = {.run = trainer_remote_forward, .remote = true},
    [STAGE_PLACE] = {.run = stage_place, .part = "gather"},
    [STAGE_LOSS] = {.run = stage_loss, .computes = true, .part = "loss"},
    [STAGE_END_FORWARD] = {.run = stage_end_forward, .pipeline = true},
    [STAGE_SEND_OUTPUT] = {.run = trainer_send_output, .pipeline = true},
    [STAGE_SCATTER_GRADIENT] = {.run = stage_scatter_gradient, .part = "scatter_gradient"},
    [STAGE_ENTER_BACKWARD] = {.run = stage_enter_backward},
    [STAGE_REMOTE_BACKWARD] = {.run = trainer_remote_backward, .remote = true},
    [STAGE_AWAIT_GRADIENT] = {.run = trainer_await_gradient, .pipeline = true},
    [STAGE_BEGIN_REDUCTION] = {.run = trainer_begin_reduction, .pipeline = true},
    [STAGE_BACKWARD] = {.run = stage_backward, .computes = true, .part = "backward"},
    [STAGE_PREFETCH_AFTER_BACKWARD] = {.run = stage_prefetch},
    [STAGE_ENTER_FINISH] = {.run = stage_enter_finish},
    [STAGE_END_BACKWARD] = {.run = trainer_end_backward, .pipeline = true},
    [STAGE_SHARE_GRADIENTS] = {.run = trainer_share_gradients, .pipeline = true},
    [STAGE_READY_SHARED] = {.run = trainer_ready_shared, .pipeline = true},
    [STAGE_REDUCE] = {.run = stage_reduce, .part = "reduce_and_update"},
    [STAGE_UPDATE] = {.run = stage_update, .part = "reduce_and_update"},
    [STAGE_AWAIT_SENDS] = {.run = trainer_await_sends, .pipeline = true},
    [STAGE_END] = {.run = stage_end},
    [STAGE_DOWNLOAD_LOSS] = {.run = stage_download_loss},
    [STAGE_AWAIT_LOSS] = {.run = stage_await_loss},
};

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
    const char *from =
        (const char *)set->grads.data + set->grads_placed[param].offset * dtype_size(set->type);
    return device_download(t->stream, t->kept + p.offset, from, set->type, DTYPE_F32, p.count);
}

void trainer_keep_gradients(trainer *t, float *arena)
{
    t->kept = arena;
}

static status on_ready(void *context, int param)
{
    trainer *t = context;
    if (trainer_is_stage(t) && trainer_defers_ready(t, param)) return STATUS_OK;
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

static void begin_step(trainer *t, int64_t index)
{
    trainer_flight *f = &t->flights[trainer_flight_now(t)];
    if (t->now.micro == 0) {
        if (t->last_end_ns == 0) trainer_count_cpu(t, false);
        if (t->begun > t->ended) sync_lead(t->engine);
        memset(&f->sums, 0, sizeof f->sums);
        t->now.has_gradients = false;
        if (!t->runs_ahead) t->phase_count = 0;
    }
    t->now.step = (sync_step){.index = index,
                              .skipped = t->skipped,
                              .synchronize = is_last_micro_batch(t),
                              .learning_rate =
                                  optimizer_learning_rate(t->config.optimizer, index, t->config.total_steps)};
    /* Where gradients are in places, they are gone. */
    t->now.scalars =
        (op_scalars){.accumulate = t->now.has_gradients && !param_shards_place_gradients(&t->needs.shards)};
    t->now.observer = (nn_observer){.context = t,
                                    .need = on_need,
                                    .ready = on_ready,
                                    .release = t->needs.each_pass ? on_release : NULL,
                                    .group_sum = trainer_group_sum};
    f->step = t->now.step;
    rank_slot_step(t->config.slot, index, device_now_ns(t->device));
}

/* ---- its stages ------------------------------------------------------------------------------ */

/* What a GPU computes is stretched by the time that it takes, without what it waited for before. */
static status settle_straggler(trainer *t)
{
    bool enqueues = !device_get_info(t->device)->host_addressable;
    return t->straggler.stretch > 0 && enqueues ? device_stream_synchronize(t->stream) : STATUS_OK;
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
    for (int i = 0; i < STAGE_COUNT; i++) {
        if (!stages[i].part) continue;
        if (count > 0 && strcmp(out[count - 1].name, stages[i].part) == 0)
            out[count - 1].ns += t->stage_ns[i];
        else
            out[count++] = (trainer_stage_time){stages[i].part, t->stage_ns[i]};
    }
    return count;
}

static bool concerns(const trainer *t, const stage *s)
{
    return (!s->pipeline || trainer_is_stage(t)) && (!s->remote || t->config.remote);
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

/* What the host knows of the micro-batch. In a pipeline the first stage has its samples, the last one its
 * targets. */
static void count_batch(trainer *t)
{
    trainer_flight *f = &t->flights[trainer_flight_now(t)];
    f->sums.samples += t->config.model->received ? 0 : t->now.step.samples;
    f->sums.targets += trainer_last_model(t)->sent ? 0 : t->now.step.targets;
    t->now.has_gradients = t->now.has_gradients || t->now.slot;
}

static status report_batch(trainer *t, int flight, int64_t micro)
{
    trainer_report_forward(t, flight, micro);
    return trainer_report_backward(t, flight, micro);
}

/* The passes of the micro-batches in the order of the schedule. */
static status run_pipeline(trainer *t, batch_source *source, int64_t index, int64_t batch_step)
{
    for (int end; trainer_begin_action(t, STAGE_SCATTER_GRADIENT, STAGE_COUNT, &end); trainer_end_action(t)) {
        TRY(run_stages(t, source, index, batch_step + t->now.micro, end));
        if (end == STAGE_COUNT) {
            TRY(trainer_report_backward(t, trainer_flight_now(t), t->now.micro));
            continue;
        }
        count_batch(t);
        trainer_report_forward(t, trainer_flight_now(t), t->now.micro);
    }
    return STATUS_OK;
}

/* Up to which stage a turn goes, and in which order the devices take it. The last stage reduces first: its
 * gradients are ready first. */
static const struct {
    int end;
    bool last_first;
} turns[TRAINER_TURNS] = {[TURN_FORWARD] = {STAGE_SCATTER_GRADIENT, false},
                          [TURN_BACKWARD] = {STAGE_SHARE_GRADIENTS, true},
                          [TURN_REDUCE] = {STAGE_UPDATE, true},
                          [TURN_UPDATE] = {STAGE_END, true},
                          [TURN_END] = {STAGE_COUNT, false}};

static status take_turn(trainer *t, trainer_turn turn, int64_t index, int64_t batch_step, int64_t micro)
{
    if (turn == TURN_UPDATE && t->now.stage == STAGE_END) return STATUS_OK;
    if (turn == TURN_REDUCE || turn == TURN_END)
        TRY(trainer_end_idle(t, turn)); /* others end it when they have what they need */
    TRY(run_stages(t, t->devices.source, index, batch_step + micro, turns[turn].end));
    if (turn == TURN_REDUCE && !trainer_awaits_norms(t))
        TRY(run_stages(t, t->devices.source, index, batch_step + micro, STAGE_END));
    if (turn != TURN_END) return trainer_begin_idle(t);
    trainer_report_waits(t, trainer_mark_of(trainer_flight_now(t), micro, MARK_BEGIN), micro);
    TRY(report_batch(t, trainer_flight_now(t), micro));
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
    for (int i = 0; i < round * trainer_micro_batches(first); i++) {
        int turn = i % round / d->count, at = i % d->count, micro = i / round;
        for (int s = 0; i % round == 0 && s < d->count; s++) {
            trainer_begin_turns(d->stages[s]);
            TRY(trainer_begin_idle(d->stages[s]));
        }
        TRY(take_turn(d->stages[turns[turn].last_first ? d->count - 1 - at : at], (trainer_turn)turn, index,
                      batch_step, micro));
    }
    (void)source; /* each stage has its own */
    for (int s = 1; s < d->count; s++) {
        d->stages[s]->now.micro = 0;
        d->stages[s]->begun++;
    }
    return STATUS_OK;
}

static status run_batches(trainer *t, batch_source *source, int64_t index, int64_t batch_step)
{
    for (; t->now.micro < trainer_micro_batches(t); t->now.micro++) {
        TRY(run_stages(t, source, index, batch_step + t->now.micro, STAGE_COUNT));
        t->now.stage = 0;
        count_batch(t);
        if (!t->runs_ahead) TRY(report_batch(t, trainer_flight_now(t), t->now.micro));
    }
    return STATUS_OK;
}

status trainer_begin_step(trainer *t, batch_source *source, int64_t index, int64_t batch_step)
{
    TRY((trainer_drives_devices(t) ? run_devices
         : trainer_is_stage(t)     ? run_pipeline
                                   : run_batches)(t, source, index, batch_step));
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
        TRY(device_mark_wait(t->stream, trainer_mark_of(flight, batches - 1, MARK_LOSS)));
        t->phase_count = 0;
        for (int64_t micro = 0; micro < batches; micro++) TRY(report_batch(t, flight, micro));
    }
    TRY(sync_check_update(t->engine, &t->flights[flight].step));
    trainer_report_step(t, flight, out);
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
