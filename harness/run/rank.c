#include "harness/run/rank.h"

#include "common/base/log.h"
#include "common/data/batches.h"
#include "common/net/key.h"
#include "common/net/rendezvous.h"
#include "harness/launch/processors.h"
#include "harness/run/plan.h"
#include "harness/run/run_result.h"
#include "harness/run/record.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

typedef struct rank_state {
    const run_config *config;
    const rank_place *place;
    rank_slot *slot;
    dataset *set;
    nn_model *model;
    rendezvous *rendezvous;
    uint64_t token; /* of the job, drawn for this run */
    trainer *trainer;
    rank_batches batches;
    record record;
    overlap overlap;
    rank_trace trace;
    step_plan steps;
    int64_t next_step, eval_every;
    int64_t
        trained_ns; /* in steps, measured or not: without evaluations, checkpoints and other jobs' turns */
    clock_bounds clock_at_begin; /* of the steps */
    clock_alignment clock;
    bool takes_turns;     /* other jobs run at the same time: blocks alternate */
    uint32_t block;
    bool stopped;        /* before the last step */
    bool stop_is_agreed; /* by all ranks */
    sync_counters seen;
    agreement agreement;
    rank_checkpoint checkpoint;
    int64_t checkpoint_step; /* from which the run goes on; 0 without --load */
    int64_t saved_steps, saves;
    int64_t lead;         /* steps that a rank may be ahead of another */
    int64_t batch_offset; /* of the source's batches against the run's */
} rank_state;

/* The first of a step's batches, in the source's count. */
static int64_t batch_of_step(const rank_state *s, int64_t step)
{
    return step * s->config->run.accumulate + s->batch_offset;
}

static int64_t collective_deadline(const rank_state *s)
{
    return clock_now_ns() + s->config->shared.stall_timeout_ns;
}

/* ---- set-up ----------------------------------------------------------------------------------- */

/* Steps and epochs count from the beginning of the run, also after a checkpoint. */
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

status rank_open_rendezvous(const run_config *config, const rank_place *place, int members, rendezvous **out)
{
    char url[288];
    snprintf(url, sizeof url, "%s", place->rendezvous);
    if (members > place->world && place->key) /* no other user can take this name in advance: it depends on the key */
        snprintf(url, sizeof url, "%s-%016" PRIx64, place->rendezvous, net_key_number(place->key, "members"));
    text_buffer text = {0};
    run_config_text(config, &text);
    if (text.out_of_memory) return fail(STATUS_SYSTEM, "no memory for the configuration");
    rank_slot *slot = status_table_slot(place->table, place->rank);
    rendezvous_options options = {.url = url,
                                  .rank = place->rank,
                                  .world = members,
                                  .token = place->token,
                                  .key = place->key,
                                  .program = PROGRAM_VERSION,
                                  .config_hash = run_config_hash(config),
                                  .config_text = text.data,
                                  .connect_limit_ns = config->run.connect_timeout_ns,
                                  .slot = slot};
    rank_slot_enter(slot, RANK_RENDEZVOUS, clock_now_ns());
    status rc = rendezvous_open(&options, out);
    text_free(&text);
    return rc;
}

/* Replaces a token that other starters' variables give away: names of sockets follow from it. */
static status draw_token(rank_state *s)
{
    uint64_t drawn = 0;
    rendezvous_blob got;
    s->token = s->place->token;
    if (s->place->servers > 0) return STATUS_OK; /* the launcher drew it, for servers too */
    if (s->place->rank == 0 && getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn)
        return fail_errno(STATUS_SYSTEM, "no random bytes for the token of a job");
    TRY(rendezvous_broadcast(s->rendezvous, "token", 0, &drawn, sizeof drawn,
                             clock_now_ns() + s->config->run.connect_timeout_ns, &got));
    if (got.bytes != sizeof s->token) return fail(STATUS_PROTOCOL, "rank 0 sent a token of %zu bytes", got.bytes);
    memcpy(&s->token, got.data, sizeof s->token);
    return STATUS_OK;
}

/* Connects the engine with the handshakes of all members; servers with processes of their own meet only for this. */
static status connect_with(rank_state *s, rendezvous *r, int members)
{
    sync_blob mine, *all = calloc((size_t)members, sizeof *all);
    rendezvous_blob *got = calloc((size_t)members, sizeof *got);
    status rc;
    if (!all || !got) {
        rc = fail(STATUS_SYSTEM, "no memory for the handshakes of %d ranks", members);
        goto out;
    }
    TRY_GOTO(rc, sync_handshake(trainer_engine(s->trainer), &mine), out);
    TRY_GOTO(rc, rendezvous_allgather(r, "handshakes", mine.data, mine.bytes,
                                      clock_now_ns() + s->config->run.connect_timeout_ns, got), out);
    for (int m = 0; m < members; m++) all[m] = (sync_blob){(void *)got[m].data, got[m].bytes};
    rc = sync_connect(trainer_engine(s->trainer), all);
out:
    free(all);
    free(got);
    return rc;
}

static status exchange_handshakes(rank_state *s)
{
    rendezvous *members = NULL;
    int count = s->place->world + s->place->servers;
    if (s->place->servers == 0) return connect_with(s, s->rendezvous, count);
    TRY(rank_open_rendezvous(s->config, s->place, count, &members));
    status rc = connect_with(s, members, count);
    rendezvous_close(&members);
    return rc;
}

/* The process ends while threads are stuck: sync_context.lost. */
static void publish_loss(void *context, const error_record *why)
{
    const rank_place *p = context;
    job_fail(p->table, p->rank, why->code, why->message);
    if (!p->has_launcher) log_error("%s", why->message);
}

static status open_trainer(rank_state *s)
{
    const rank_place *p = s->place;
    trainer_config t;
    TRY(trainer_setup(s->config, s->set, s->model, p->job, p->rank, p->world, &t));
    t.local_rank = p->local_rank;
    t.job_token = s->token;
    t.slot = s->slot;
    TRY(rank_trace_open(s->config, s->model, 0, &s->trace));
    t.trace = s->trace.recorder;
    t.connect_timeout_ns = s->config->run.connect_timeout_ns;
    t.lost = publish_loss;
    t.lost_context = (void *)s->place;
    TRY(engine_lead(p->engine, t.engine_options, t.policy, t.world, &s->lead));
    bool refused = false;
    t.refused = &refused;
    status rc = trainer_open(&t, &s->trainer);
    if (refused && p->engine == ENGINE_PS)
        plan_explain_memory(s->config, &(run_plan){.set = s->set, .model = s->model}, p->job);
    if (rc != STATUS_OK) return rc;
    return param_set_initialize(trainer_params(s->trainer), trainer_stream(s->trainer), s->config->run.seed);
}

/* The position of a resumed run in the data; the number of ranks may have changed. */
static status resume(rank_state *s)
{
    checkpoint_progress progress;
    s->checkpoint.config = s->config;
    s->checkpoint.trainer = s->trainer;
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
    return clock_bounds_measure(s->rendezvous, s->place->rank, s->place->world, collective_deadline(s), out);
}

static status set_up(rank_state *s)
{
    rank_slot_enter(s->slot, RANK_SETUP, clock_now_ns());
    TRY(run_config_build(s->config, &s->set, &s->model, &s->checkpoint.model));
    TRY(rank_batches_open(s->config, s->place, s->set, s->model, &s->batches));
    TRY(rank_open_rendezvous(s->config, s->place, s->place->world, &s->rendezvous));
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
    TRY(record_init(&s->record, s->steps.end - s->steps.first - s->steps.warmup, evaluations, s->place->world));
    TRY(exchange_handshakes(s));
    return measure_clock(s, &s->clock_at_begin);
}

/* ---- steps ------------------------------------------------------------------------------------ */

static bool stop_is_requested(void *context)
{
    return job_stop_requested(context) != JOB_GO;
}

/* An evaluation that a rank stopped before its end has no result. */
static status evaluate(rank_state *s)
{
    if (!s->batches.evaluation || s->config->run.eval_every < 0) return STATUS_OK;
    evaluation_sums sums;
    TRY(sync_flush(trainer_engine(s->trainer)));
    TRY(trainer_evaluate(s->trainer, s->batches.evaluation, (evaluation_stop){stop_is_requested, s->place->table}, &sums));
    double values[4] = {sums.loss, sums.correct, sums.targets, sums.stopped};
    TRY(rendezvous_sum(s->rendezvous, "evaluation", values, 4, collective_deadline(s)));
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

static status save(rank_state *s)
{
    rank_slot_enter(s->slot, RANK_CHECKPOINT, clock_now_ns());
    TRY(sync_flush(trainer_engine(s->trainer)));
    s->saved_steps = s->next_step;
    s->saves++;
    return rank_checkpoint_save(&s->checkpoint, s->next_step,
                                batch_position_of_step(s->batches.training, batch_of_step(s, s->next_step)));
}

/* Under async ranks stop at different steps: the next collective between steps stops the others. */
static status agree_to_stop(rank_state *s)
{
    double stopped = s->stopped;
    TRY(rendezvous_sum(s->rendezvous, "stop", &stopped, 1, collective_deadline(s)));
    s->stopped = s->stop_is_agreed = stopped > 0;
    return STATUS_OK;
}

/* Evaluation and checkpoint, by all ranks between two steps. */
static status run_between_steps(rank_state *s)
{
    if (!evaluation_is_due(s) && !save_is_due(s, false)) return STATUS_OK;
    trainer_begin_anew(s->trainer);
    TRY(agree_to_stop(s));
    if (s->stopped) return STATUS_OK;
    if (evaluation_is_due(s)) TRY(evaluate(s));
    return save_is_due(s, false) ? save(s) : STATUS_OK;
}

/* Steps up to `end`, measured or not; ends early where the job is to stop. */
static status run_steps(rank_state *s, int64_t end, bool measured)
{
    while (s->next_step < end && !s->stopped) {
        if (job_stop_here(s->place->table, s->place->rank, s->next_step, s->lead)) {
            s->stopped = true;
            break;
        }
        step_result result;
        rank_trace_begin_step(&s->trace, s->next_step);
        TRY(trainer_step(s->trainer, s->batches.training, s->next_step, batch_of_step(s, s->next_step), &result));
        rank_trace_end_step(&s->trace, &result, trainer_ledger(s->trainer));
        s->next_step++;
        s->trained_ns += result.times.total;
        overlap_measure(&s->overlap, trainer_engine(s->trainer), &result);
        if (measured) record_step(&s->record, &result);
        TRY(agreement_write(&s->agreement, s->trainer)); /* of the first step */
        TRY(run_between_steps(s));
    }
    record_counters(&s->record, trainer_engine(s->trainer), &s->seen, measured);
    return STATUS_OK;
}

/* Between two turns engines finish what was in flight and other jobs use the caches: the first step of a turn is not
 * measured. */
static status run_turn(rank_state *s, int64_t end, bool measured)
{
    if (measured && s->takes_turns && s->next_step + 1 < end) TRY(run_steps(s, s->next_step + 1, false));
    return run_steps(s, end, measured);
}

static status run_block(rank_state *s, int64_t end, bool measured)
{
    status_table *b = s->place->table;
    job_turn_wait(b, s->place->rank, s->block);
    if (s->takes_turns) trainer_begin_anew(s->trainer);
    status rc = run_turn(s, end, measured);
    job_turn_done(b, s->place->rank, s->block);
    s->block++;
    return rc;
}

static status run_all_steps(rank_state *s)
{
    s->saved_steps = -1;
    TRY(agreement_open(&s->agreement, s->place->gradients_fd, s->config, s->trainer));
    TRY(run_block(s, s->steps.first + s->steps.warmup, false));
    if (s->lead != 0 && !s->takes_turns) { /* ranks that may be ahead begin to measure together */
        TRY(rendezvous_barrier(s->rendezvous, "warm", collective_deadline(s)));
        trainer_begin_anew(s->trainer);
    }
    ledger_reset_peaks(trainer_ledger(s->trainer));
    while (s->next_step < s->steps.end && !s->stopped) {
        int64_t end = s->next_step + s->steps.turn;
        TRY(run_block(s, end < s->steps.end ? end : s->steps.end, true));
    }
    job_turn_wait(s->place->table, s->place->rank, s->block);
    status rc = s->stop_is_agreed ? STATUS_OK : agree_to_stop(s);
    if (rc == STATUS_OK) rc = sync_flush(trainer_engine(s->trainer));
    record_counters(&s->record, trainer_engine(s->trainer), &s->seen, false);
    if (rc == STATUS_OK && save_is_due(s, true)) rc = save(s);
    if (rc == STATUS_OK && !s->stopped) rc = evaluate(s);
    job_turn_done(s->place->table, s->place->rank, s->block);
    return rc;
}

/* ---- results ---------------------------------------------------------------------------------- */

/* Memory as the system and the driver report it. */
static json_t *measured_to_json(device *d)
{
    ledger_external process = ledger_measure_process();
    int64_t used = -1, whole = -1;
    json_t *measured = json_pack("{s:I, s:I}", "resident_bytes", (json_int_t)process.resident, "proportional_bytes",
                                 (json_int_t)process.proportional);
    if (device_usage(d, &used, &whole) != STATUS_OK) error_clear();
    if (used < 0) return measured;
    json_object_set_new(measured, "device_used_bytes", json_integer((json_int_t)used));
    json_object_set_new(measured, "device_total_bytes", json_integer((json_int_t)whole));
    return measured;
}

/* Operations that run slower than the device's libraries would (device_fallbacks()). */
static json_t *fallbacks_to_json(const device *d)
{
    const device_fallback *list;
    int count = device_fallbacks(d, &list);
    json_t *out = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(out, json_pack("{s:s, s:I, s:s, s:s, s:s}", "operation", op_name(list[i].kind), "count",
                                             (json_int_t)list[i].count, "shape", list[i].shape, "reason", list[i].reason,
                                             "instead", list[i].instead));
    return out;
}

static json_t *rank_to_json(rank_state *s)
{
    const rendezvous_member *me = &rendezvous_members(s->rendezvous)[s->place->rank];
    char processors[256];
    json_t *rank = json_pack("{s:i, s:s, s:i, s:s, s:s, s:o, s:o, s:o}", "rank", s->place->rank, "host", me->host,
                             "pid", (int)me->pid, "processors", processors_own(processors, sizeof processors),
                             "device", device_get_info(trainer_device(s->trainer))->description, "memory",
                             ledger_to_json(trainer_ledger(s->trainer)), "process",
                             measured_to_json(trainer_device(s->trainer)), "fallbacks",
                             fallbacks_to_json(trainer_device(s->trainer)));
    overlap_to_json(&s->overlap, trainer_engine(s->trainer), rank);
    json_t *staleness = ps_result_staleness(trainer_engine(s->trainer));
    bool whole = rank && json_object_set_new(rank, "staleness", staleness) == 0;
    json_object_set_new(rank, "slow_factor", json_real(trainer_slowdown(s->trainer)));
    json_object_set_new(rank, "loader_threads", json_integer(s->batches.loader_threads));
    if (whole && record_to_json(&s->record, &s->clock, rank) == STATUS_OK) return rank;
    json_decref(rank);
    return NULL;
}

/* What --target-loss and --target-accuracy chose; null where neither did. */
static json_t *target_to_json(const run_options *r)
{
    json_t *loss = r->target_loss > 0 ? json_real(r->target_loss) : json_null();
    json_t *accuracy = r->target_accuracy > 0 ? json_real(r->target_accuracy) : json_null();
    bool any = json_is_real(loss) || json_is_real(accuracy);
    json_t *target = json_pack("{s:o, s:o}", "loss", loss, "accuracy", accuracy);
    if (any) return target;
    json_decref(target);
    return json_null();
}

/* What the engine runs; who drives its communication, a thread of its own or the compute thread while it waits; how often
 * the run was saved. */
static void add_settings(rank_state *s, json_t *job)
{
    const char *progress = trainer_is_inline(s->trainer) ? "inline" : "thread";
    json_object_set_new(job, "settings", engine_settings_to_json(trainer_engine(s->trainer)));
    json_object_set_new(job, "progress", s->place->engine == ENGINE_NONE ? json_null() : json_string(progress));
    json_object_set_new(job, "checkpoints", json_integer(s->saves));
}

static json_t *job_to_json(rank_state *s, uint64_t hash)
{
    const device_info *info = device_get_info(trainer_device(s->trainer));
    int engine = s->place->engine;
    char text[24];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    return json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:I, s:s, s:s, s:b, s:I, s:I, s:I, s:b, s:s, s:b, s:b, s:o, s:o, s:o}",
        "name", job_name(s->place->job), "engine", engine_table[engine]->name, "policy",
        s->config->policies[engine], "world_size", s->place->world, "threads_per_rank",
        run_config_threads(s->config, s->place->job), "batch_per_rank",
        (json_int_t)run_config_batch(s->config, s->place->job), "binding", bound_names[s->config->bound],
        "device", info->name, "simulated", (int)info->simulated, "warmup_steps", (json_int_t)s->steps.warmup,
        "trained_steps", (json_int_t)(s->next_step - s->steps.first), "steps", (json_int_t)s->next_step,
        "stopped_early", (int)s->stopped, "parameter_hash", text, "one_loss",
        (int)trainer_has_one_loss(s->trainer), "synchronous", s->lead == 0, "updates_on",
        ps_result_updates(trainer_engine(s->trainer)), "servers", json_array(), "target",
        target_to_json(&s->config->run));
}

static status merge_results(rank_state *s, const rendezvous_blob *blobs, run_job *out)
{
    uint64_t hash = 0;
    TRY(param_set_hash(trainer_params(s->trainer), trainer_stream(s->trainer), &hash));
    json_t *ranks = json_array();
    out->result = job_to_json(s, hash);
    if (out->result) add_settings(s, out->result);
    status rc = STATUS_OK;
    for (int r = 0; r < s->place->world && rc == STATUS_OK; r++) {
        json_t *rank = json_loadb(blobs[r].data, blobs[r].bytes, 0, NULL);
        if (json_array_append_new(ranks, rank) != 0) rc = fail(STATUS_PROTOCOL, "the results of rank %d cannot be read", r);
    }
    if (rc == STATUS_OK && !out->result) rc = fail(STATUS_SYSTEM, "no memory for the results");
    if (rc == STATUS_OK) rc = ring_result_algorithm(trainer_engine(s->trainer), out->result);
    if (rc == STATUS_OK) rc = job_result_finish(out->result, ranks);
    ps_dp_sizes sizes;
    bool has_sizes = ps_result_sizes(trainer_engine(s->trainer), &sizes);
    if (rc == STATUS_OK) rc = ps_result_add_memory(out->result, ranks, has_sizes ? &sizes : NULL);
    json_decref(ranks);
    return rc;
}

static status keep_params(rank_state *s, run_job *out)
{
    out->param_count = s->model->parameter_elements;
    out->params = malloc((size_t)out->param_count * sizeof *out->params);
    if (!out->params) return fail(STATUS_SYSTEM, "no memory for a copy of the parameters");
    float *at = out->params;
    param_set *set = trainer_params(s->trainer);
    for (int i = 0; i < s->model->param_count; i++) {
        TRY(param_set_export(set, trainer_stream(s->trainer), set->params.data, i, DTYPE_F32, at));
        at += s->model->params[i].elements;
    }
    return STATUS_OK;
}

static status align_clock(rank_state *s)
{
    clock_bounds at_end;
    TRY(measure_clock(s, &at_end));
    s->clock = clock_align(s->rendezvous, s->place->rank, &s->clock_at_begin, &at_end);
    return STATUS_OK;
}

static status share_results(rank_state *s, run_job *out)
{
    rendezvous_blob *blobs = calloc((size_t)s->place->world, sizeof *blobs);
    json_t *mine = rank_to_json(s);
    char *text = mine ? json_dumps(mine, JSON_COMPACT) : NULL;
    status rc;
    if (!blobs || !text) rc = fail(STATUS_SYSTEM, "no memory for the results");
    else rc = rendezvous_allgather(s->rendezvous, "results", text, strlen(text), collective_deadline(s), blobs);
    if (rc == STATUS_OK && s->place->rank == 0) rc = merge_results(s, blobs, out);
    if (rc == STATUS_OK && s->place->rank == 0) rc = keep_params(s, out);
    if (rc == STATUS_OK)
        rc = rank_trace_gather(&s->trace, s->rendezvous, s->place->job, s->place->rank,
                               collective_deadline(s), s->place->world, &out->trace);
    if (rc == STATUS_OK) rc = rendezvous_barrier(s->rendezvous, "end", collective_deadline(s));
    if (rc == STATUS_OK) { /* a GPU's memory is freed once no other process has it open */
        trainer_leave(s->trainer);
        rc = rendezvous_barrier(s->rendezvous, "left", collective_deadline(s));
    }
    free(text);
    json_decref(mine);
    free(blobs);
    return rc;
}

static void tear_down(rank_state *s)
{
    rank_checkpoint_close(&s->checkpoint);
    trainer_close(&s->trainer);
    agreement_close(&s->agreement); /* after the copies to it */
    rank_trace_close(&s->trace);
    overlap_close(&s->overlap);
    rank_batches_close(&s->batches);
    rendezvous_close(&s->rendezvous);
    record_deinit(&s->record);
    nn_model_free(&s->model);
    dataset_close(&s->set);
}

status rank_run(const run_config *config, const rank_place *place, run_job *out, bool *stopped)
{
    *out = (run_job){0};
    rank_state s = {.config = config, .place = place, .slot = status_table_slot(place->table, place->rank)};
    status rc = set_up(&s);
    if (rc == STATUS_OK) rc = run_all_steps(&s);
    if (rc == STATUS_OK) rc = align_clock(&s);
    if (rc == STATUS_OK) rc = share_results(&s, out);
    *stopped = s.stopped;
    if (rc != STATUS_OK) job_fail(place->table, place->rank, rc, error_message());
    else rank_slot_finish(s.slot);
    tear_down(&s);
    return rc;
}
