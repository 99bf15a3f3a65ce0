#include "harness/rank/state.h"

#include "common/base/log.h"
#include "harness/plan/plan.h"

#include <math.h>
#include <stdlib.h>

int64_t rank_deadline(const rank_state *s)
{
    return clock_now_ns() + s->config->shared.stall_timeout_ns;
}

/* ---- set-up ----------------------------------------------------------------------------------- */

/* Plans the steps. Steps and epochs count from the beginning of the run, also after a checkpoint. */
static status plan_steps(rank_state *s)
{
    s->takes_turns = job_turn_granted(s->place->table) != UINT32_MAX;
    int64_t batches = s->config->run.epochs * s->batches.training->steps_per_epoch - s->batch_offset;
    s->steps = run_config_steps(s->config, s->place->job, batches, s->checkpoint_step, s->takes_turns);
    s->next_step = s->steps.first;
    if (s->steps.end >= s->steps.first)
        return rank_trace_check(s->config, s->steps.first, s->steps.end, s->place->rank == 0);
    return fail(STATUS_CONFIG, "--epochs: expected more than the checkpoint has completed, got %lld",
                (long long)s->config->run.epochs);
}

/* Publishes the error of a lost rank (sync_context.lost). After publish_loss() the process ends, although
 * some of its threads are stuck. */
static void publish_loss(void *context, const error_record *why)
{
    const rank_place *p = context;
    job_fail(p->table, p->rank, why->code, why->message);
    if (!p->has_launcher) log_error("%s", why->message);
}

static status open_device(rank_state *s, int index, const trainer_config *config)
{
    rank_device *d = &s->devices[index];
    bool refused = false;
    trainer_config t = *config;
    t.refused = &refused;
    status rc = rank_device_open(d, t);
    if (refused && s->place->engine == ENGINE_PS)
        plan_explain_memory(s->config, &(run_plan){.set = s->set, .model = s->model}, s->place->job);
    TRY(rc);
    return param_set_initialize(trainer_params(d->trainer), trainer_stream(d->trainer), s->config->run.seed);
}

/* Gives each device its number and its stage of the model. */
static status place_devices(rank_state *s)
{
    int count = run_config_devices(s->config), world = s->place->world;
    s->devices = calloc((size_t)count, sizeof *s->devices);
    if (!s->devices) return fail(STATUS_SYSTEM, "no memory for %d devices", count);
    for (s->device_count = 0; s->device_count < count; s->device_count++) {
        rank_device *d = &s->devices[s->device_count];
        d->number = s->place->rank + s->device_count * world;
        d->place = rank_stage_place(s->config, s->place->job, d->number);
        if (s->cut.count > 0) TRY(nn_stage_model(s->model, &s->cut, d->place.stage, &d->stage));
    }
    return STATUS_OK;
}

/* Lends the batches of the rank to the trainers of all its devices. */
static status join_devices(rank_state *s)
{
    trainer *stages[NN_MOST_STAGES];
    batch_source *sources[NN_MOST_STAGES];
    TRY(trainer_share_source(s->batches.training, &s->shared));
    for (int d = 0; d < s->device_count; d++) {
        stages[d] = s->devices[d].trainer;
        sources[d] = s->shared;
    }
    trainer_join_devices(stages, sources, s->device_count);
    return STATUS_OK;
}

static status open_devices(rank_state *s)
{
    const rank_place *p = s->place;
    const run_options *r = &s->config->run;
    trainer_config t;
    if (r->stages > 1) TRY(nn_cut_model(s->model, (int)r->stages, &s->cut));
    if (r->remote_stage) TRY(nn_cut_model(s->model, 2, &s->cut));
    if (r->remote_stage) TRY(nn_stage_model(s->model, &s->cut, 1, &s->remote));
    TRY(place_devices(s));
    const rank_device *first = &s->devices[0];
    TRY(trainer_setup(s->config, s->set, first->stage ? first->stage : s->model, p->job, first->place.replica,
                      first->place.replicas, &t));
    t.remote = s->remote;
    /* The engine and the pipeline each have an agent, and both must make progress while the compute thread
     * waits for one of them. */
    if (first->stage && !s->remote) t.sync.inline_progress = false;
    t.local_rank = p->local_rank;
    t.sync.job_token = s->token;
    t.sync.slot = s->slot;
    t.sync.table = p->table;
    t.sync.host_address = p->host_address;
    t.sync.connect_timeout_ns = r->connect_timeout_ns;
    t.sync.lost = publish_loss;
    t.sync.lost_context = (void *)p;
    t.sync.canceled = rendezvous_has_failed;
    t.sync.canceled_context = s->rendezvous;
    TRY(engine_lead(p->engine, t.sync.options, t.sync.policy, t.sync.world, &s->lead));
    for (int d = 0; d < s->device_count; d++) {
        TRY(rank_trace_open(s->config, s->model, 0, s->devices[d].number == 0, &s->devices[d].trace));
        TRY(open_device(s, d, &t));
    }
    s->source = s->batches.training;
    return s->device_count > 1 ? join_devices(s) : STATUS_OK;
}

/* Loads --load, and finds the position of the resumed run in the data. The number of ranks may have
 * changed. */
static status resume(rank_state *s)
{
    checkpoint_progress progress;
    const rank_device *first = &s->devices[0];
    s->checkpoint.cut = first->stage && !first->place.devices && !s->remote ? &s->cut : NULL;
    TRY(rank_load(s, &progress));
    s->checkpoint_step = progress.step;
    batch_position position = {progress.epoch, progress.epoch_step};
    /* If an epoch has fewer steps than before, the next epoch may begin. */
    int64_t steps = s->batches.training->steps_per_epoch;
    if (steps > 0 && position.epoch_step > steps) position.epoch_step = steps;
    int64_t at = batch_step_of_position(s->batches.training, position);
    s->batch_offset = at - progress.step * s->config->run.accumulate;
    return STATUS_OK;
}

static status measure_clock(rank_state *s, clock_bounds *out)
{
    return clock_bounds_measure(s->rendezvous, s->place->rank, s->place->world, rank_deadline(s), out);
}

/* Opens the records of all devices, once the steps are planned. */
static status open_records(rank_state *s)
{
    s->eval_every = run_config_eval_every(s->config, s->steps.end - s->steps.first);
    int64_t per_epoch = s->batches.training->steps_per_epoch / s->config->run.accumulate,
            every = s->eval_every.count * (s->eval_every.epochs && per_epoch > 0 ? per_epoch : 1),
            evaluations = 1 + (every > 0 ? s->steps.end / every : 0);
    int world = s->place->world * s->device_count + (s->remote != NULL);
    for (rank_device *d = s->devices; d < s->devices + s->device_count; d++) {
        rank_trace_choose(&d->trace, s->steps.first + s->steps.warmup);
        trainer_set_total_steps(d->trainer, s->steps.end);
        TRY(record_init(&d->record, s->steps.end - s->steps.first - s->steps.warmup, evaluations, world,
                        s->model->param_count));
    }
    return STATUS_OK;
}

static status connect_all(rank_state *s)
{
    sync_engine *first = trainer_engine(s->devices[0].trainer);
    TRY(measure_clock(s, &s->clock_at_begin));
    clock_alignment now = clock_align(s->rendezvous, s->place->rank, &s->clock_at_begin, &s->clock_at_begin);
    for (int d = 0; d < s->device_count; d++)
        trainer_engine(s->devices[d].trainer)->context.clock_ahead_ns = now.begin_offset_ns;
    TRY(rank_exchange_handshakes(s));
    s->devices[0].record.late_parts = anatomy_keeps_steps(first->context.anatomy);
    TRY(rank_connect_remote(s));
    return rendezvous_barrier(s->rendezvous, "connected", clock_now_ns() + s->config->run.connect_timeout_ns);
}

static status set_up(rank_state *s, run_config *config)
{
    rank_slot_enter(s->slot, RANK_SETUP, clock_now_ns());
    TRY(rank_join(s, config));
    rank_slot_enter(s->slot, RANK_SETUP, clock_now_ns());
    TRY(open_devices(s));
    for (int i = 0; i < s->batches.buffer_count; i++)
        trainer_pin(s->devices[0].trainer, s->batches.buffers[i].data, s->batches.buffers[i].bytes);
    TRY(resume(s));
    TRY(plan_steps(s));
    TRY(open_records(s));
    return connect_all(s);
}

/* ---- steps ------------------------------------------------------------------------------------ */

/* Evaluates the model. If a rank stops the evaluation before its end, there is no result. */
static status evaluate(rank_state *s)
{
    if (!s->batches.evaluation || s->remote || !run_config_evaluates(s->config, s->place->job))
        return STATUS_OK;
    evaluation_sums sums;
    TRY(rank_flush(s));
    TRY(trainer_evaluate(s->devices[0].trainer, s->batches.evaluation,
                         (evaluation_stop){rank_stop_requested, s->place->table}, &sums));
    double values[4] = {sums.loss, sums.correct, sums.targets, sums.stopped};
    TRY(rendezvous_sum(s->rendezvous, "evaluation", values, 4, rank_deadline(s)));
    if (values[3] > 0) return STATUS_OK;
    record_evaluation e = {.step = s->next_step,
                           .trained_ns = s->trained_ns,
                           .loss = values[2] > 0 ? values[0] / values[2] : 0,
                           .accuracy =
                               s->model->loss == NN_LOSS_MSE || values[2] <= 0 ? NAN : values[1] / values[2],
                           .samples = dataset_describe(s->set)->samples[DATA_TEST]};
    record_evaluation_result(&s->devices[0].record, e);
    bool asked = s->config->run.eval_every.count > 0 && s->next_step < s->steps.end;
    if (!asked || s->place->rank != 0) return STATUS_OK;
    if (isnan(e.accuracy))
        rank_print(s, "step %lld: loss %.4f on the test data", (long long)e.step, e.loss);
    else
        rank_print(s, "step %lld: loss %.4f, accuracy %.1f %% on the test data", (long long)e.step, e.loss,
                   100 * e.accuracy);
    return STATUS_OK;
}

/* Returns the number of complete epochs after `steps` steps of the run. */
static int64_t epochs_after(const rank_state *s, int64_t steps)
{
    return batch_position_of_step(s->batches.training, rank_batch_of_step(s, steps)).epoch;
}

/* Returns true if a period ends with the step before s->next_step. */
static bool is_due(const rank_state *s, option_period p)
{
    if (p.count <= 0) return false;
    if (!p.epochs) return s->next_step % p.count == 0;
    return epochs_after(s, s->next_step) / p.count > epochs_after(s, s->next_step - 1) / p.count;
}

static bool evaluation_is_due(const rank_state *s)
{
    return is_due(s, s->eval_every) && s->next_step < s->steps.end;
}

static bool save_is_due(const rank_state *s, bool last)
{
    const checkpoint_options *o = &s->config->checkpoint;
    return o->save && s->saved_steps != s->next_step && (last || is_due(s, o->save_every));
}

/* Saves the run. If replicas differ or the file cannot be written, keeps the old checkpoint and stops the
 * run, which reports its results and then this error. */
static status save(rank_state *s)
{
    rank_slot_enter(s->slot, RANK_CHECKPOINT, clock_now_ns());
    TRY(rank_flush(s));
    TRY(sync_gather_parameters(trainer_engine(s->devices[0].trainer)));
    TRY(rank_compare_replicas(s));
    bool lost = s->out->late.code != STATUS_OK;
    s->saved_steps = s->next_step;
    if (!lost)
        TRY(rank_save(s, s->next_step,
                      batch_position_of_step(s->batches.training, rank_batch_of_step(s, s->next_step)),
                      &lost));
    s->saves += !lost;
    s->stopped |= lost && s->next_step < s->steps.end;
    return STATUS_OK;
}

/* Stops all ranks if one has stopped. Only jobs whose `lead` is JOB_UNBOUNDED need this function, because in
 * other jobs all ranks stop at the same step. All ranks call this function before measuring, evaluating or
 * saving, and at the end. If one rank has unsaved steps, all ranks save. */
static status agree_to_stop(rank_state *s)
{
    double values[2] = {s->stopped, s->saved_steps != s->next_step};
    if (s->lead != JOB_UNBOUNDED || s->stop_is_agreed) return STATUS_OK;
    TRY(rendezvous_sum(s->rendezvous, "stop", values, 2, rank_deadline(s)));
    s->stopped = s->stop_is_agreed = values[0] > 0;
    if (values[1] > 0) s->saved_steps = -1;
    return STATUS_OK;
}

static bool epoch_line_is_due(const rank_state *s)
{
    return s->config->run.epochs > 0 && rank_prints(s) && is_due(s, (option_period){1, true});
}

/* Prints the mean loss of the steps of all ranks since the last epoch's end. If ranks do not wait for each
 * other, rank 0 prints the mean of the losses that it has computed. */
static status print_epoch(rank_state *s)
{
    double *sums = s->epoch_losses;
    if (s->lead == 0) TRY(rendezvous_sum(s->rendezvous, "epoch", sums, 2, rank_deadline(s)));
    if (s->place->rank == 0)
        rank_print(s, "epoch %lld/%lld: loss %.4f%s", (long long)epochs_after(s, s->next_step),
                   (long long)s->config->run.epochs, sums[0] / sums[1], s->lead == 0 ? "" : " on rank 0");
    sums[0] = sums[1] = 0;
    return STATUS_OK;
}

/* Evaluates and saves between two steps, if an evaluation or a checkpoint is due, and prints the line of an
 * epoch. All ranks call this function. */
static status run_between_steps(rank_state *s)
{
    bool line = epoch_line_is_due(s);
    if (!line && !evaluation_is_due(s) && !save_is_due(s, false)) return STATUS_OK;
    TRY(rank_end_steps(s, 1));
    if (line) TRY(print_epoch(s));
    if (!evaluation_is_due(s) && !save_is_due(s, false)) return STATUS_OK;
    for (int d = 0; d < s->device_count; d++) trainer_begin_anew(s->devices[d].trainer);
    TRY(agree_to_stop(s));
    if (s->stopped) return STATUS_OK;
    if (evaluation_is_due(s)) TRY(evaluate(s));
    return save_is_due(s, false) ? save(s) : STATUS_OK;
}

static bool must_stop(const rank_state *s)
{
    return job_stop_here(s->place->table, s->place->rank, s->next_step, s->lead == JOB_UNBOUNDED);
}

/* Reports the loss, which the last stage of the model computes. Under dp only rank 0 computes it. */
static void step_ended(rank_state *s, const rank_device *d, step_result *result, bool measured)
{
    (void)measured;
    bool last_stage = !d->stage || s->remote || !d->stage->sent, first = d->place.replica == 0;
    if (last_stage && first) job_report_loss(s->place->table, result->loss);
    if (last_stage && (first || !trainer_has_one_loss(d->trainer))) {
        s->epoch_losses[0] += result->loss;
        s->epoch_losses[1]++;
    }
    rank_print_step(s, d, result);
}

static const rank_world process_world = {must_stop, step_ended, run_between_steps, 0};

/* ---- blocks of steps -------------------------------------------------------------------------- */

/* Runs a turn. If jobs take turns, the first step of a turn is not measured, because between two turns
 * engines finish communication and other jobs use the caches. */
static status run_block(rank_state *s, int64_t end, bool measured)
{
    const rank_place *p = s->place;
    bool alone = measured && s->takes_turns && s->next_step + 1 < end;
    if (s->takes_turns) trainer_begin_anew(s->devices[0].trainer);
    job_turn_wait(p->table, p->rank, s->block);
    status rc = alone ? rank_run_steps(s, s->next_step + 1, false) : STATUS_OK;
    if (rc == STATUS_OK) rc = rank_run_steps(s, end, measured);
    if (rc == STATUS_OK && s->takes_turns) rc = rank_end_steps(s, 1);
    job_turn_done(p->table, p->rank, s->block++);
    return rc;
}

static status run_all_steps(rank_state *s)
{
    s->saved_steps = -1;
    TRY(agreement_open(&s->agreement, s->place->gradients_fd, s->config, s->devices[0].trainer));
    TRY(run_block(s, s->steps.first + s->steps.warmup, false));
    /* If ranks may be ahead of each other, all ranks wait here, so that all begin to measure at the same
     * time. */
    if (s->lead != 0 && !s->takes_turns && !s->stopped) {
        trainer_begin_anew(s->devices[0].trainer);
        TRY(s->lead == JOB_UNBOUNDED ? agree_to_stop(s)
                                     : rendezvous_barrier(s->rendezvous, "warm", rank_deadline(s)));
    }
    rank_reset_peaks(s);
    while (s->next_step < s->steps.end && !s->stopped) {
        int64_t end = s->next_step + s->steps.turn;
        TRY(run_block(s, end < s->steps.end ? end : s->steps.end, true));
    }
    TRY(rank_end_steps(s, 1));
    job_turn_wait(s->place->table, s->place->rank, s->block);
    status rc = agree_to_stop(s);
    if (rc == STATUS_OK) rc = rank_flush(s);
    rank_count(s, false);
    if (rc == STATUS_OK) rc = save_is_due(s, true) ? save(s) : rank_compare_replicas(s);
    if (rc == STATUS_OK && !s->stopped) rc = evaluate(s);
    job_turn_done(s->place->table, s->place->rank, s->block);
    return rc;
}

static status report(rank_state *s, const run_job *outcome)
{
    const rank_place *p = s->place;
    if (p->has_launcher) return STATUS_OK;
    status rc = p->rank == 0 ? p->report(p->report_context, outcome) : STATUS_OK;
    status ended = rendezvous_barrier(s->rendezvous, "reported", rank_deadline(s));
    return rc != STATUS_OK ? rc : ended;
}

static void tear_down(rank_state *s)
{
    checkpoint_close(&s->checkpoint.file);
    for (int i = 0; i < 2; i++) free(s->checkpoint.states[i]);
    for (int d = s->device_count - 1; d >= 0; d--) {
        trainer_close(&s->devices[d].trainer);
        record_deinit(&s->devices[d].record);
        trace_close(&s->devices[d].trace.recorder);
        nn_model_free(&s->devices[d].stage);
    }
    free(s->devices);
    /* Must follow the closing of the trainer, whose device copies gradients to this memory. */
    agreement_close(&s->agreement);
    batch_source_close(&s->shared);
    batch_source_close(&s->batches.training);
    batch_source_close(&s->batches.evaluation);
    rendezvous_close(&s->rendezvous);
    nn_model_free(&s->remote);
    nn_model_free(&s->model);
    dataset_close(&s->set);
}

status rank_run(run_config *config, const rank_place *place, run_job *out)
{
    *out = (run_job){0};
    rank_state s = {.config = config, .place = place, .world = &process_world, .out = out};
    clock_bounds clock_at_end;
    s.slot = status_table_slot(place->table, place->rank);
    status rc = set_up(&s, config);
    if (rc == STATUS_STOPPED) rc = error_code(); /* another rank's error ended the wait */
    if (rc == STATUS_OK) rc = run_all_steps(&s);
    if (rc == STATUS_OK) rc = measure_clock(&s, &clock_at_end);
    if (rc == STATUS_OK) s.clock = clock_align(s.rendezvous, place->rank, &s.clock_at_begin, &clock_at_end);
    if (rc == STATUS_OK) rc = rank_merge_calls(&s);
    /* If the checkpoint could not be written, the error has been reported already. */
    if (rc == STATUS_OK && job_stop_requested(place->table) && s.checkpoint.written_step >= 0)
        log_info("stopped: %s has step %lld", s.checkpoint.path, (long long)s.checkpoint.written_step);
    if (rc == STATUS_OK) rc = rank_share_results(&s, out);
    if (rc == STATUS_OK) rc = report(&s, out);
    if (rc != STATUS_OK) {
        job_fail(place->table, place->rank, rc, error_message());
        rendezvous_fail(s.rendezvous, rc, error_message());
    } else
        rank_slot_finish(s.slot);
    tear_down(&s);
    return rc;
}
