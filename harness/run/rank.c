#include "harness/run/rank_impl.h"

#include "common/base/log.h"
#include "common/base/random.h"
#include "common/data/batches.h"
#include "common/net/key.h"
#include "common/net/rendezvous.h"
#include "harness/launch/processors.h"
#include "harness/run/plan.h"
#include "harness/run/record.h"
#include "harness/run/run_result.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Returns the number of the step's first batch in the batch source. */
static int64_t batch_of_step(const rank_state *s, int64_t step)
{
    return step * s->config->run.accumulate + s->batch_offset;
}

int64_t rank_deadline(const rank_state *s)
{
    return clock_now_ns() + s->config->shared.stall_timeout_ns;
}

/* ---- set-up ----------------------------------------------------------------------------------- */

/* Plans the steps. Steps and epochs count from the beginning of the run, also after a checkpoint. */
static status plan_steps(rank_state *s)
{
    s->takes_turns = job_turn_granted(s->place->table) != UINT32_MAX;
    s->steps =
        run_config_steps(s->config, s->batches.training->steps_per_epoch, s->checkpoint_step, s->takes_turns);
    s->next_step = s->steps.first;
    if (s->steps.end >= s->steps.first) return STATUS_OK;
    return fail(STATUS_CONFIG, "--epochs: expected more than the checkpoint has completed, got %lld",
                (long long)s->config->run.epochs);
}

static bool stop_is_requested(void *context)
{
    return job_stop_requested(context) != 0;
}

status rank_open_meeting(const run_config *config, rank_slot *slot, const rank_meeting *m, rendezvous **out)
{
    text_buffer text = {0};
    run_config_text(config, &text);
    text_append(&text, "%s", m->inputs ? m->inputs : "");
    if (text.out_of_memory) return fail(STATUS_SYSTEM, "no memory for the text of the configuration");
    rendezvous_options options = {.url = m->url,
                                  .rank = m->rank,
                                  .world = m->members,
                                  .token = m->token,
                                  .key = m->key,
                                  .program = program_identity,
                                  .config_hash = random_mix(random_fnv1a64(text.data)),
                                  .config_text = text.data,
                                  .connect_limit_ns = config->run.connect_timeout_ns,
                                  .failure = m->failure,
                                  .slot = slot,
                                  .table = m->table,
                                  .exchanges_status = m->exchanges_status,
                                  .canceled = m->exchanges_status ? stop_is_requested : NULL,
                                  .context = m->table};
    if (slot) rank_slot_enter(slot, RANK_RENDEZVOUS, clock_now_ns());
    status rc = rendezvous_open(&options, out);
    text_free(&text);
    return rc;
}

status rank_open_rendezvous(const run_config *config, const rank_place *place, int members,
                            const char *inputs, const error_record *failure, rendezvous **out)
{
    char url[288];
    snprintf(url, sizeof url, "%s", place->rendezvous);
    /* Makes the name of the meeting depend on the key, so that no other user can take the name in advance. */
    if (members > place->world && place->key)
        snprintf(url, sizeof url, "%s-%016" PRIx64, place->rendezvous, net_key_number(place->key, "members"));
    rank_meeting m = {.url = url,
                      .key = place->key,
                      .token = place->token,
                      .rank = place->rank,
                      .members = members,
                      .inputs = inputs,
                      .failure = failure,
                      .table = place->table,
                      .exchanges_status = !place->has_launcher};
    return rank_open_meeting(config, status_table_slot(place->table, place->rank), &m, out);
}

/* Draws a new token for the job. A job manager derives its token from environment variables, which other
 * users may see, and the names of sockets follow from the token. */
static status draw_token(rank_state *s)
{
    uint64_t drawn = 0;
    rendezvous_blob got;
    s->token = s->place->token;
    /* The launcher has drawn a token for ranks and servers. */
    if (s->place->servers > 0) return STATUS_OK;
    if (s->place->rank == 0 && getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn)
        return fail_errno(STATUS_SYSTEM, "no random bytes for the token of a job");
    TRY(rendezvous_broadcast(s->rendezvous, "token", 0, &drawn, sizeof drawn,
                             clock_now_ns() + s->config->run.connect_timeout_ns, &got));
    if (got.bytes != sizeof s->token)
        return fail(STATUS_PROTOCOL, "rank 0 sent a token of %zu bytes", got.bytes);
    memcpy(&s->token, got.data, sizeof s->token);
    return STATUS_OK;
}

status rank_exchange_handshakes(rank_state *s, rendezvous *r, int members, trainer *t)
{
    sync_blob mine, *all = calloc((size_t)members, sizeof *all);
    rendezvous_blob *got = calloc((size_t)members, sizeof *got);
    status rc;
    if (!all || !got) {
        rc = fail(STATUS_SYSTEM, "no memory for the handshakes of %d ranks", members);
        goto out;
    }
    TRY_GOTO(rc, sync_handshake(trainer_engine(t), &mine), out);
    TRY_GOTO(rc,
             rendezvous_allgather(r, "handshakes", mine.data, mine.bytes,
                                  clock_now_ns() + s->config->run.connect_timeout_ns, got),
             out);
    for (int m = 0; m < members; m++) all[m] = (sync_blob){(void *)got[m].data, got[m].bytes};
    rc = trainer_connect(t, all);
out:
    free(all);
    free(got);
    return rc;
}

static status exchange_handshakes(rank_state *s)
{
    rendezvous *members = NULL;
    int count = s->place->world + s->place->servers;
    if (s->place->servers == 0) return rank_exchange_handshakes(s, s->rendezvous, count, s->trainer);
    TRY(rank_open_rendezvous(s->config, s->place, count, NULL, NULL, &members));
    status rc = rank_exchange_handshakes(s, members, count, s->trainer);
    rendezvous_close(&members);
    return rc;
}

/* Publishes the error of a lost rank (sync_context.lost). After publish_loss() the process ends, although
 * some of its threads are stuck. */
static void publish_loss(void *context, const error_record *why)
{
    const rank_place *p = context;
    job_fail(p->table, p->rank, why->code, why->message);
    if (!p->has_launcher) log_error("%s", why->message);
}

/* Opens this rank's part of the model, with --stages or --remote-stage. */
static status open_stage(rank_state *s)
{
    const run_options *r = &s->config->run;
    int replicas = run_config_replicas(s->config, s->place->job);
    s->stage_place =
        (pipeline_place){.shape = {(pipeline_schedule)r->schedule, (int)r->stages, (int)r->accumulate},
                         .stage = s->place->rank / replicas,
                         .replica = s->place->rank % replicas,
                         .replicas = replicas,
                         .devices = r->stages_on == STAGES_ON_DEVICES};
    if (r->stages == 1 && !r->remote_stage) return STATUS_OK;
    TRY(nn_cut_model(s->model, r->remote_stage ? 2 : (int)r->stages, &s->cut));
    if (r->remote_stage) TRY(nn_stage_model(s->model, &s->cut, 1, &s->remote));
    return nn_stage_model(s->model, &s->cut, s->stage_place.stage, &s->stage);
}

static status open_trainer(rank_state *s)
{
    const rank_place *p = s->place;
    const pipeline_place *place = &s->stage_place;
    trainer_config t;
    TRY(open_stage(s));
    TRY(trainer_setup(s->config, s->set, s->stage ? s->stage : s->model, p->job, place->replica,
                      place->replicas, &t));
    t.remote = s->remote;
    if (s->stage && !s->remote) {
        t.place = place;
        /* The engine and the pipeline each have an agent, and both must make progress while the compute
         * thread waits for one of them. */
        t.inline_progress = false;
    }
    t.local_rank = p->local_rank;
    t.job_token = s->token;
    t.slot = s->slot;
    t.table = s->place->table;
    TRY(rank_trace_open(s->config, s->model, 0, p->rank == 0, &s->trace));
    t.trace = s->trace.recorder;
    t.connect_timeout_ns = s->config->run.connect_timeout_ns;
    t.lost = publish_loss;
    t.lost_context = (void *)s->place;
    t.canceled = rendezvous_has_failed;
    t.canceled_context = s->rendezvous;
    TRY(engine_lead(p->engine, t.engine_options, t.policy, t.world, &s->lead));
    bool refused = false;
    t.refused = &refused;
    status rc = trainer_open(&t, &s->trainer);
    if (refused && p->engine == ENGINE_PS)
        plan_explain_memory(s->config, &(run_plan){.set = s->set, .model = s->model}, p->job);
    if (rc != STATUS_OK) return rc;
    TRY(rank_devices_open(s, &t));
    return param_set_initialize(trainer_params(s->trainer), trainer_stream(s->trainer), s->config->run.seed);
}

/* Loads --load, and finds the position of the resumed run in the data. The number of ranks may have
 * changed. */
static status resume(rank_state *s)
{
    checkpoint_progress progress;
    s->checkpoint.config = s->config;
    s->checkpoint.whole = s->model;
    s->checkpoint.cut = s->stage && !s->stage_place.devices && !s->remote ? &s->cut : NULL;
    s->checkpoint.trainer = s->trainer;
    s->checkpoint.device_count = s->device_count;
    for (int d = 0; d < s->device_count; d++) s->checkpoint.devices[d] = s->devices[d].trainer;
    s->checkpoint.rendezvous = s->rendezvous;
    s->checkpoint.rank = s->place->rank;
    s->checkpoint.world = s->place->world;
    TRY(rank_checkpoint_open(&s->checkpoint, &progress));
    s->checkpoint_step = progress.step;
    batch_position position = {progress.epoch, progress.epoch_step};
    int64_t at = batch_step_of_position(s->batches.training, position);
    s->batch_offset = at - progress.step * s->config->run.accumulate;
    return STATUS_OK;
}

static status measure_clock(rank_state *s, clock_bounds *out)
{
    return clock_bounds_measure(s->rendezvous, s->place->rank, s->place->world, rank_deadline(s), out);
}

static status open_inputs(rank_state *s, run_config *config, text_buffer *inputs)
{
    TRY(run_config_open_checkpoint(config, &s->checkpoint.file));
    TRY(run_config_build(config, &s->set, &s->model, &s->checkpoint.model));
    TRY(rank_batches_open(config, s->place, s->set, s->model, &s->batches));
    return rank_describe_inputs(s, inputs);
}

/* Opens the inputs and joins the ranks' rendezvous. The other ranks receive the error of a rank that cannot
 * open its inputs. If there is a launcher, the launcher ends the other ranks. */
static status join(rank_state *s, run_config *config)
{
    text_buffer inputs = {0};
    error_record failure = {0};
    status rc = open_inputs(s, config, &inputs);
    bool failed = rc != STATUS_OK;
    if (failed && s->place->has_launcher) return rc;
    error_copy(&failure);
    error_clear();
    rc = rank_open_rendezvous(config, s->place, s->place->world, inputs.data, failed ? &failure : NULL,
                              &s->rendezvous);
    if (failed) {
        error_clear();
        rc = error_adopt(&failure);
    }
    text_free(&inputs);
    return rc;
}

static status set_up(rank_state *s, run_config *config)
{
    rank_slot_enter(s->slot, RANK_SETUP, clock_now_ns());
    TRY(join(s, config));
    TRY(draw_token(s));
    rank_slot_enter(s->slot, RANK_SETUP, clock_now_ns());
    TRY(open_trainer(s));
    rank_batches_pin(&s->batches, s->trainer);
    TRY(resume(s));
    TRY(plan_steps(s));
    rank_trace_choose(&s->trace, s->steps.first + s->steps.warmup);
    trainer_set_total_steps(s->trainer, s->steps.end);
    s->eval_every = run_config_eval_every(s->config, s->steps.end - s->steps.first);
    int64_t evaluations = 1 + (s->eval_every > 0 ? s->steps.end / s->eval_every : 0);
    TRY(overlap_open(&s->overlap, s->model->param_count));
    TRY(record_init(&s->record, s->steps.end - s->steps.first - s->steps.warmup, evaluations,
                    s->place->world * run_config_devices(s->config) + (s->remote != NULL)));
    TRY(rank_devices_record(s, evaluations));
    TRY(measure_clock(s, &s->clock_at_begin));
    clock_alignment now = clock_align(s->rendezvous, s->place->rank, &s->clock_at_begin, &s->clock_at_begin);
    trainer_engine(s->trainer)->context.clock_ahead_ns = now.begin_offset_ns;
    TRY(exchange_handshakes(s));
    TRY(rank_devices_connect(s));
    s->record.late_parts = anatomy_keeps_steps(trainer_engine(s->trainer)->context.anatomy);
    TRY(rank_connect_remote(s));
    return rendezvous_barrier(s->rendezvous, "connected", clock_now_ns() + s->config->run.connect_timeout_ns);
}

/* ---- steps ------------------------------------------------------------------------------------ */

/* Evaluates the model. An evaluation that a rank stopped before its end has no result. */
static status evaluate(rank_state *s)
{
    if (!s->batches.evaluation || s->config->run.eval_every < 0 || s->remote) return STATUS_OK;
    evaluation_sums sums;
    TRY(sync_flush(trainer_engine(s->trainer)));
    TRY(rank_devices_flush(s));
    TRY(trainer_evaluate(s->trainer, s->batches.evaluation,
                         (evaluation_stop){stop_is_requested, s->place->table}, &sums));
    double values[4] = {sums.loss, sums.correct, sums.targets, sums.stopped};
    TRY(rendezvous_sum(s->rendezvous, "evaluation", values, 4, rank_deadline(s)));
    if (values[3] > 0) return STATUS_OK;
    record_evaluation e = {.step = s->next_step,
                           .trained_ns = s->trained_ns,
                           .loss = values[2] > 0 ? values[0] / values[2] : 0,
                           .accuracy =
                               s->model->loss == NN_LOSS_MSE || values[2] <= 0 ? NAN : values[1] / values[2],
                           .samples = dataset_describe(s->set)->samples[DATA_TEST]};
    record_evaluation_result(&s->record, e);
    return STATUS_OK;
}

static bool evaluation_is_due(const rank_state *s)
{
    return s->eval_every > 0 && s->next_step % s->eval_every == 0 && s->next_step < s->steps.end;
}

static bool save_is_due(const rank_state *s, bool last)
{
    return s->saved_steps != s->next_step && checkpoint_due(&s->config->checkpoint, s->next_step, last);
}

/* Saves the run. If replicas differ, keeps the old checkpoint and returns an error. If replicas differ after
 * the last step (`last`), returns STATUS_OK, so that the run can still report its results. */
static status save(rank_state *s, bool last)
{
    rank_slot_enter(s->slot, RANK_CHECKPOINT, clock_now_ns());
    TRY(sync_flush(trainer_engine(s->trainer)));
    TRY(rank_devices_flush(s));
    TRY(sync_gather_parameters(trainer_engine(s->trainer)));
    TRY(rank_compare_replicas(s, last));
    if (s->out->difference[0]) return STATUS_OK;
    s->saved_steps = s->next_step;
    s->saves++;
    return rank_checkpoint_save(&s->checkpoint, s->next_step,
                                batch_position_of_step(s->batches.training, batch_of_step(s, s->next_step)));
}

/* Stops all ranks if one has stopped. Only jobs with an unbounded lead need this function, because only their
 * ranks stop at different steps. All ranks call this function before measuring, evaluating or saving, and at
 * the end. If one rank has unsaved steps, all ranks save. */
static status agree_to_stop(rank_state *s)
{
    double values[2] = {s->stopped, s->saved_steps != s->next_step};
    if (s->lead != JOB_UNBOUNDED || s->stop_is_agreed) return STATUS_OK;
    TRY(rendezvous_sum(s->rendezvous, "stop", values, 2, rank_deadline(s)));
    s->stopped = s->stop_is_agreed = values[0] > 0;
    if (values[1] > 0) s->saved_steps = -1;
    return STATUS_OK;
}

/* Ends the oldest steps until fewer than `most` are under way. */
static status end_steps(rank_state *s, int most)
{
    while (trainer_under_way(s->trainer) >= most) {
        int64_t index = s->next_step - trainer_under_way(s->trainer);
        step_result result;
        rank_trace_begin_step(&s->trace, index);
        anatomy_keep_next(trainer_engine(s->trainer)->context.anatomy,
                          index + 1 >= s->steps.first + s->steps.warmup && record_keeps_soon(&s->record));
        TRY(trainer_end_step(s->trainer, &result));
        rank_trace_end_step(&s->trace, &result, trainer_ledger(s->trainer));
        double loss = result.loss;
        TRY(rank_devices_end_step(s, index, s->measured[index % 2], &loss));
        s->trained_ns += result.times.total;
        overlap_measure(&s->overlap, trainer_engine(s->trainer), &result, s->measured[index % 2]);
        bool last_stage = !s->stage || s->remote || !s->stage->sent || s->stage_place.devices;
        if (last_stage && s->stage_place.replica == 0) job_report_loss(s->place->table, loss);
        if (s->measured[index % 2]) record_step(&s->record, &result);
    }
    return STATUS_OK;
}

/* Runs a step. A host that runs ahead begins the next step before this one has ended. */
static status run_step(rank_state *s, bool measured)
{
    int64_t index = s->next_step;
    s->measured[index % 2] = measured;
    rank_trace_begin_step(&s->trace, index);
    rank_devices_begin_step(s, index);
    TRY(trainer_begin_step(s->trainer, s->batches.training, index, batch_of_step(s, index)));
    s->next_step++;
    TRY(end_steps(s, trainer_depth(s->trainer)));
    if (s->agreement.fd == 0) return STATUS_OK; /* only the first step is compared */
    TRY(end_steps(s, 1));
    return agreement_write(&s->agreement, s->trainer);
}

/* Evaluates and saves between two steps, if an evaluation or a checkpoint is due. All ranks call this
 * function. */
static status run_between_steps(rank_state *s)
{
    if (!evaluation_is_due(s) && !save_is_due(s, false)) return STATUS_OK;
    TRY(end_steps(s, 1));
    trainer_begin_anew(s->trainer);
    rank_devices_begin_anew(s);
    TRY(agree_to_stop(s));
    if (s->stopped) return STATUS_OK;
    if (evaluation_is_due(s)) TRY(evaluate(s));
    return save_is_due(s, false) ? save(s, false) : STATUS_OK;
}

/* Runs steps up to `end`, measured or not. Ends early if the job is to stop. */
static status run_steps(rank_state *s, int64_t end, bool measured)
{
    while (s->next_step < end && !s->stopped) {
        if (job_stop_here(s->place->table, s->place->rank, s->next_step, s->lead == JOB_UNBOUNDED)) {
            s->stopped = true;
            break;
        }
        TRY(run_step(s, measured));
        TRY(run_between_steps(s));
    }
    record_counters(&s->record, s->trainer, &s->seen, measured);
    rank_devices_count(s, measured);
    return STATUS_OK;
}

/* Runs a turn. The first step of a turn is not measured, because engines finish communication between two
 * turns and other jobs use the caches. */
static status run_turn(rank_state *s, int64_t end, bool measured)
{
    if (measured && s->takes_turns && s->next_step + 1 < end) TRY(run_steps(s, s->next_step + 1, false));
    return run_steps(s, end, measured);
}

static status run_block(rank_state *s, int64_t end, bool measured)
{
    status_table *b = s->place->table;
    if (s->takes_turns) trainer_begin_anew(s->trainer);
    job_turn_wait(b, s->place->rank, s->block);
    status rc = run_turn(s, end, measured);
    if (rc == STATUS_OK && s->takes_turns) rc = end_steps(s, 1);
    job_turn_done(b, s->place->rank, s->block);
    s->block++;
    return rc;
}

static status run_all_steps(rank_state *s)
{
    s->saved_steps = -1;
    TRY(agreement_open(&s->agreement, s->place->gradients_fd, s->config, s->trainer));
    TRY(run_block(s, s->steps.first + s->steps.warmup, false));
    /* If ranks may be ahead of each other, all ranks wait here, so that all begin to measure at the same
     * time. */
    if (s->lead != 0 && !s->takes_turns && !s->stopped) {
        trainer_begin_anew(s->trainer);
        TRY(s->lead == JOB_UNBOUNDED ? agree_to_stop(s)
                                     : rendezvous_barrier(s->rendezvous, "warm", rank_deadline(s)));
    }
    ledger_reset_peaks(trainer_ledger(s->trainer));
    for (int d = 0; d < s->device_count; d++) ledger_reset_peaks(trainer_ledger(s->devices[d].trainer));
    while (s->next_step < s->steps.end && !s->stopped) {
        int64_t end = s->next_step + s->steps.turn;
        TRY(run_block(s, end < s->steps.end ? end : s->steps.end, true));
    }
    TRY(end_steps(s, 1));
    job_turn_wait(s->place->table, s->place->rank, s->block);
    status rc = agree_to_stop(s);
    if (rc == STATUS_OK) rc = sync_flush(trainer_engine(s->trainer));
    if (rc == STATUS_OK) rc = rank_devices_flush(s);
    record_counters(&s->record, s->trainer, &s->seen, false);
    if (rc == STATUS_OK) rc = save_is_due(s, true) ? save(s, true) : rank_compare_replicas(s, true);
    if (rc == STATUS_OK && !s->stopped) rc = evaluate(s);
    job_turn_done(s->place->table, s->place->rank, s->block);
    return rc;
}

static status align_clock(rank_state *s)
{
    clock_bounds at_end;
    TRY(measure_clock(s, &at_end));
    s->clock = clock_align(s->rendezvous, s->place->rank, &s->clock_at_begin, &at_end);
    return STATUS_OK;
}

/* Logs on rank 0 which step was saved before a stop. If the checkpoint could not be written, the error has
 * been reported already. */
static void log_stop(const rank_state *s)
{
    if (job_stop_requested(s->place->table) && s->checkpoint.written_step >= 0)
        log_info("stopped: %s has step %lld", s->config->checkpoint.save,
                 (long long)s->checkpoint.written_step);
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
    rank_checkpoint_close(&s->checkpoint);
    rank_devices_close(s);
    trainer_close(&s->trainer);
    /* Must follow the closing of the trainer, whose device copies gradients to this memory. */
    agreement_close(&s->agreement);
    rank_trace_close(&s->trace);
    overlap_close(&s->overlap);
    rank_batches_close(&s->batches);
    rendezvous_close(&s->rendezvous);
    record_deinit(&s->record);
    nn_model_free(&s->stage);
    nn_model_free(&s->remote);
    nn_model_free(&s->model);
    dataset_close(&s->set);
}

status rank_run(run_config *config, const rank_place *place, run_job *out)
{
    *out = (run_job){0};
    rank_state s = {.config = config, .place = place, .out = out};
    s.slot = status_table_slot(place->table, place->rank);
    status rc = set_up(&s, config);
    if (rc == STATUS_STOPPED) rc = error_code(); /* another rank's error ended the wait */
    if (rc == STATUS_OK) rc = run_all_steps(&s);
    if (rc == STATUS_OK) rc = align_clock(&s);
    if (rc == STATUS_OK) rc = rank_merge_calls(&s);
    if (rc == STATUS_OK) log_stop(&s);
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
