#include "harness/sim/virtual_run.h"

#include "common/net/link.h"
#include "harness/launch/processors.h"
#include "harness/report/statistics.h"
#include "harness/run/record.h"
#include "harness/run/run_result.h"
#include "harness/sim/calibrate.h"
#include "harness/sim/virtual_host.h"
#include "harness/sim/virtual_job.h"
#include "harness/sim/virtual_trace.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct rank_record {
    record record;
    overlap overlap;
    record_seen before;
} rank_record;

typedef struct job_record {
    const run_config *config;
    const nn_model *model;
    const char *profile;
    const dataset *set;
    const virtual_variant *variant;
    int engine, world, present;
    int64_t warmup, steps; /* Number of warm-up steps, and of measured steps. */
    int64_t lead;          /* Steps that a rank may be ahead of another. */
    rank_record *ranks;
    trainer *first; /* Trainer of rank 0, once rank 0 has finished. */
    int finished;
    int64_t shown; /* Measured steps of rank 0. */
    virtual_host host;
    virtual_trace trace;
    text_buffer events;
    json_t *job, *rank_list;
    char *note;
    size_t note_size;
} job_record;

/* ---- what a job reports ------------------------------------------------------------------------- */

static status no_memory(void)
{
    return fail(STATUS_SYSTEM, "no memory for the results");
}

static void write_note(job_record *j, const simulation *s)
{
    char alike[64] = "", network[112] = "", shown[80];
    int machines = s->topology->machines;
    net_link link = {.latency_ns = llround(1e3 * sim_profile_get(s->profile, SIM_NETWORK_LATENCY))};
    if (j->present < j->world)
        snprintf(alike, sizeof alike, "; identical ranks: ranks 0 to %d stand for all", j->present - 1);
    if (s->config.link_rate > 0) {
        link.bytes_per_second = llround(1e9 * s->config.link_rate);
        snprintf(network, sizeof network, "; network of %s", net_link_format(&link, shown, sizeof shown));
    }
    snprintf(j->note, j->note_size, "virtual time, profile %s: %d GPU%s on %d machine%s of %d%s%s",
             s->profile->name, j->world, j->world == 1 ? "" : "s", machines, machines == 1 ? "" : "s",
             s->profile->wiring.gpus, alike, network);
}

static void set_host(job_record *j, const simulation *s, const dataset *set)
{
    const run_config *c = j->config;
    bool dp = j->engine == ENGINE_PS && strcmp(c->policies[ENGINE_PS], "dp") == 0;
    int64_t samples = run_config_batch(c, j->engine) * (dp ? j->world : 1);
    int64_t elements = data_form_input_elements(&dataset_describe(set)->form);
    j->host = (virtual_host){.simulation = s,
                             .steps = j->steps,
                             .workers = (int)c->run.loader_workers,
                             .samples = (double)samples,
                             .bytes = (double)(samples * elements * (int64_t)sizeof(float)),
                             .replicas = dp ? j->world : 0,
                             .parameters = j->model->param_count};
}

static status on_opened(void *context, simulation *s)
{
    job_record *j = context;
    j->present = simulation_present(s);
    j->ranks = calloc((size_t)j->present, sizeof *j->ranks);
    if (!j->ranks) return fail(STATUS_SYSTEM, "no memory to record %d ranks", j->present);
    for (int r = 0; r < j->present; r++) {
        TRY(record_init(&j->ranks[r].record, j->steps, 0, j->world));
        TRY(overlap_open(&j->ranks[r].overlap, j->model->param_count));
        if (json_array_append_new(j->rank_list, json_null()) != 0) return no_memory();
    }
    if (s->config.link_rate > 0 && s->topology->machines == 1 && !j->variant->may_be_one_machine)
        return fail(STATUS_CONFIG,
                    "--link: expected ranks on several machines, got %d on one of profile %s: take --nodes",
                    j->world, s->profile->name);
    write_note(j, s);
    set_host(j, s, j->set);
    if (j->variant->progress)
        run_progress_show_virtual(j->variant->progress, job_name(j->engine), 0, j->steps, NAN);
    return virtual_trace_watch(&j->trace, s);
}

static rank_trace *trace_of(void *context, int rank)
{
    return virtual_trace_rank(&((job_record *)context)->trace, rank);
}

static void on_measures(void *context, int rank, trainer *t)
{
    job_record *j = context;
    rank_record *r = &j->ranks[rank];
    if (rank == 0) virtual_host_begin(&j->host, t);
    ledger_reset_peaks(trainer_ledger(t));
    record_counters(&r->record, t, &r->before, false);
    overlap_begin(&r->overlap, trainer_engine(t));
}

static void show_step(job_record *j, const step_result *step)
{
    const run_config *c = j->config;
    double samples =
        (double)(run_config_batch(c, j->engine) * c->run.accumulate * run_config_replicas(c, j->engine));
    double seconds = 1e-9 * (double)(step->end_ns - step->begin_ns);
    run_progress_show_virtual(j->variant->progress, job_name(j->engine), ++j->shown, j->steps,
                              seconds > 0 ? samples / seconds : NAN);
}

static void on_step(void *context, int rank, trainer *t, const step_result *result)
{
    job_record *j = context;
    rank_record *r = &j->ranks[rank];
    step_result step = *result;
    overlap_measure(&r->overlap, trainer_engine(t), &step, true);
    step.loss = NAN; /* Virtual devices have no tensors. */
    record_step(&r->record, &step);
    const virtual_variant *v = j->variant;
    if (v->step) v->step(v->context, &step);
    if (rank == 0 && v->progress) show_step(j, &step);
}

static json_t *rank_to_json(const job_record *j, int rank, trainer *t)
{
    json_t *object = json_pack("{s:i, s:s, s:s, s:o}", "rank", rank, "host", "virtual", "device",
                               device_get_info(trainer_device(t))->description, "memory",
                               ledger_to_json(trainer_ledger(t)));
    json_t *staleness = ps_result_staleness(trainer_engine(t));
    bool whole = object && json_object_set_new(object, "staleness", staleness) == 0;
    job_result_name_device(object, j->config, rank);
    json_object_set_new(object, "slow_factor", json_real(trainer_slowdown(t)));
    if (whole) overlap_to_json(&j->ranks[rank].overlap, trainer_engine(t), object);
    const clock_alignment clock = {.aligned = false};
    const rank_trace *trace = virtual_trace_rank(&j->trace, rank);
    if (whole && record_to_json(&j->ranks[rank].record, &clock, object) == STATUS_OK &&
        (!trace || rank_trace_to_json(trace, &j->ranks[rank].record, &clock, object) == STATUS_OK))
        return object;
    json_decref(object);
    return NULL;
}

static json_t *job_to_json(const job_record *j, trainer *t)
{
    const device_info *info = device_get_info(trainer_device(t));
    const run_config *c = j->config;
    return json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:i, s:I, s:s, s:s, s:b, s:I, s:I, s:I, s:b, s:n, s:b, s:b, s:n}", "name",
        job_name(j->engine), "engine", engine_table[j->engine]->name, "policy", c->policies[j->engine],
        "world_size", run_config_world(c, j->engine), "simulated_ranks", j->present / run_config_devices(c),
        "threads_per_rank", 1, "batch_per_rank", (json_int_t)run_config_batch(c, j->engine), "device",
        info->name, "profile", c->run.device, "simulated", (int)info->simulated, "warmup_steps",
        (json_int_t)j->warmup, "trained_steps", (json_int_t)(j->warmup + j->steps), "steps",
        (json_int_t)(j->warmup + j->steps), "stopped_early", 0, "parameter_hash", "one_loss",
        (int)trainer_has_one_loss(t), "synchronous", j->lead == 0, "target");
}

static status on_finished(void *context, int rank, trainer *t)
{
    job_record *j = context;
    rank_record *r = &j->ranks[rank];
    record_counters(&r->record, t, &r->before, true);
    json_t *object = rank_to_json(j, rank, t);
    if (!object || json_array_set_new(j->rank_list, (size_t)rank, object) != 0) return no_memory();
    if (rank == 0) j->first = t;
    if (++j->finished < j->present) return STATUS_OK;
    TRY(virtual_trace_write(&j->trace, &j->events));
    j->job = job_to_json(j, j->first);
    if (!j->job) return no_memory();
    json_object_set_new(j->job, "settings", engine_settings_to_json(trainer_engine(j->first)));
    TRY(engine_exchange_to_json(trainer_engine(j->first), &j->ranks[0].overlap, j->job));
    json_t *host = virtual_host_to_json(&j->host);
    if (host) json_object_set_new(j->job, "host_costs", host);
    if (j->config->run.stages > 1) TRY(job_result_add_pipeline(j->job, j->rank_list, j->model, j->config));
    ps_dp_sizes sizes;
    bool has_sizes = ps_result_sizes(trainer_engine(j->first), &sizes);
    return ps_result_add_memory(j->job, j->rank_list, has_sizes ? &sizes : NULL);
}

static status on_served(void *context, int server, const ledger *l)
{
    const job_record *j = context;
    if (!json_object_get(j->job, "servers")) json_object_set_new(j->job, "servers", json_array());
    json_t *row = json_pack("{s:i, s:o}", "server", server, "memory", ledger_to_json(l));
    bool added = json_array_append_new(json_object_get(j->job, "servers"), row) == 0;
    return added ? STATUS_OK : no_memory();
}

/* ---- a job ------------------------------------------------------------------------------------ */

static status collect_overrides(const run_config *c, const virtual_variant *v, sim_override *out, int *count)
{
    *count = 0;
    if (v->override_count > VIRTUAL_VARIANT_OVERRIDES)
        return fail(STATUS_INTERNAL, "expected at most %d overrides, got %d", VIRTUAL_VARIANT_OVERRIDES,
                    v->override_count);
    for (int i = 0; c->run.efficiency != 1 && i < SIM_EFFICIENCIES; i++)
        out[(*count)++] = (sim_override){.constant = (sim_constant)(SIM_CONVOLUTION_FORWARD + i),
                                         .value = c->run.efficiency,
                                         .multiplies = true};
    for (int i = 0; i < v->override_count; i++) out[(*count)++] = v->overrides[i];
    return STATUS_OK;
}

static status run_job_in_virtual_time(const run_config *c, const run_plan *plan, job_record *j)
{
    const virtual_variant *v = j->variant;
    sim_override overrides[SIM_EFFICIENCIES + VIRTUAL_VARIANT_OVERRIDES];
    int override_count;
    net_link link = {0};
    TRY(collect_overrides(c, v, overrides, &override_count));
    if (j->world > 1 && run_config_is_virtual(c)) TRY(run_config_link(c, &link));
    virtual_job_config config = {.machine = {.profile = j->profile,
                                             .world = j->world,
                                             .machines = j->world == 1 ? 1 : (int)c->run.nodes,
                                             .per_process = run_config_devices(c),
                                             .precision = c->run.tf32   ? SIM_TF32
                                                          : c->run.bf16 ? SIM_BF16
                                                                        : SIM_FP32,
                                             .unlimited_memory = v->unlimited_memory,
                                             .jitter_seed = c->run.jitter,
                                             .python = c->run.dp_host == 1,
                                             .gathered = (sim_gathered)c->run.dp_gather,
                                             .link_rate = (double)link.bytes_per_second / 1e9,
                                             .link_latency = (double)link.latency_ns / 1e3,
                                             .draw = (int)c->run.draw,
                                             .overrides = overrides,
                                             .override_count = override_count},
                                 .trainer = {.model = plan->model,
                                             .engine = engine_table[j->engine],
                                             .engine_options = c->engine_options[j->engine],
                                             .policy = c->policies[j->engine],
                                             .optimizer = &c->optimizer,
                                             .divide = c->shared.divide,
                                             .slow = run_config_slow(c, j->engine),
                                             .prefetch = c->run.prefetch != 0,
                                             .sum_loss = c->run.loss_reduction == 1,
                                             .stall_timeout_ns = c->shared.stall_timeout_ns,
                                             .accumulate = c->run.accumulate,
                                             .separate_phases = v->separate_phases,
                                             .total_steps = j->warmup + j->steps},
                                 .set = plan->set,
                                 .data = &c->data,
                                 .loader_workers = (int)c->run.loader_workers,
                                 .stages = (int)c->run.stages,
                                 .schedule = c->run.schedule,
                                 .by_symmetry = v->by_symmetry,
                                 .warmup = j->warmup};
    virtual_job_observer observer = {.context = j,
                                     .opened = on_opened,
                                     .trace = trace_of,
                                     .measures = on_measures,
                                     .step = on_step,
                                     .finished = on_finished,
                                     .served = on_served};
    return virtual_job_run(&config, &observer);
}

/* Runs a job. If `traced` and --trace is given, out->trace is set, and the caller frees it. */
static status run_one(const run_config *c, const run_plan *plan, int engine, const char *profile,
                      const virtual_variant *variant, int64_t warmup, int64_t steps, bool traced,
                      run_job *out, char *note, size_t size)
{
    job_record j = {.config = c,
                    .model = plan->model,
                    .profile = profile,
                    .set = plan->set,
                    .variant = variant,
                    .engine = engine,
                    .world = run_config_world(c, engine) * run_config_devices(c),
                    .warmup = warmup,
                    .steps = steps,
                    .note = note,
                    .note_size = size};
    j.rank_list = json_array();
    status rc = engine_lead(engine, c->engine_options[engine], c->policies[engine], j.world, &j.lead);
    if (rc == STATUS_OK && traced) rc = virtual_trace_open(c, plan->model, engine, j.world, warmup, &j.trace);
    if (rc == STATUS_OK) rc = run_job_in_virtual_time(c, plan, &j);
    if (rc == STATUS_OK && !j.job) rc = no_memory();
    if (rc == STATUS_OK) rc = job_result_finish(j.job, j.rank_list);
    for (int r = 0; j.ranks && r < j.present; r++) {
        record_deinit(&j.ranks[r].record);
        overlap_close(&j.ranks[r].overlap);
    }
    free(j.ranks);
    json_decref(j.rank_list);
    virtual_trace_close(&j.trace);
    if (rc == STATUS_OK) {
        *out = (run_job){.result = j.job, .trace = j.events.data};
        return STATUS_OK;
    }
    json_decref(j.job);
    text_free(&j.events);
    return rc;
}

status virtual_run_job(const run_config *config, const run_plan *plan, int engine,
                       const virtual_variant *variant, run_job *job, char *note, size_t size)
{
    if (config->checkpoint.load || config->checkpoint.save)
        return fail(STATUS_CONFIG, "--%s: expected a device with tensors, got --device %s",
                    config->checkpoint.load ? "load" : "save", config->run.device);
    int64_t steps = plan->total_steps[engine] - config->run.warmup;
    return run_one(config, plan, engine, run_config_profile(config), variant, config->run.warmup,
                   steps > 0 ? steps : 0, true, job, note, size);
}

status virtual_run(const run_config *config, const run_plan *plan, run_job *jobs, char *note, size_t size)
{
    run_progress progress = run_progress_begin(config, plan, NULL);
    const virtual_variant as_it_is = {.progress = config->run.quiet ? NULL : &progress};
    status rc = STATUS_OK;
    for (int e = 0; e < ENGINE_COUNT && rc == STATUS_OK; e++)
        if (run_config_uses(config, e))
            rc = virtual_run_job(config, plan, e, &as_it_is, &jobs[e], note, size);
    run_progress_end(&progress);
    return rc;
}

/* ---- prediction of real runs ------------------------------------------------------------------ */

/* Predicts the median step on the machine of `profile`, in ns, from a few virtual steps. */
static status predict(const run_config *config, const run_plan *plan, int engine, const char *profile,
                      double *median_ns)
{
    enum { WARM_UP = 2, STEPS = 3 };
    const virtual_variant as_it_is = {0};
    run_job job;
    char note[192];
    TRY(run_one(config, plan, engine, profile, &as_it_is, WARM_UP, STEPS, false, &job, note, sizeof note));
    *median_ns =
        1e9 * json_number_value(json_object_get(json_object_get(job.result, "step_time"), "median_s"));
    json_decref(job.result);
    return STATUS_OK;
}

/* Returns the mean over the ranks of their median steps. Virtual ranks take equally long. A different real
 * rank is slowest in each step, so the slowest rank of a step takes longer than any rank does on average. */
static status measured_step(const json_t *job, double *ns)
{
    const json_t *ranks = json_object_get(job, "ranks"), *rank;
    size_t r, count = json_array_size(ranks);
    *ns = 0;
    json_array_foreach(ranks, r, rank)
    {
        const json_t *steps = json_object_get(rank, "step_s");
        size_t n = json_array_size(steps);
        int64_t *values = calloc(n + 1, sizeof *values);
        statistics s;
        if (!values) return no_memory();
        for (size_t i = 0; i < n; i++) values[i] = llround(1e9 * json_number_value(json_array_get(steps, i)));
        status rc = statistics_of(values, (int64_t)n, &s);
        free(values);
        TRY(rc);
        if (n > 0) *ns += s.median / (double)count;
    }
    return STATUS_OK;
}

/* Sets *out to true if the ranks were bound when the profile was calibrated. */
static status is_bound(const char *path, bool *out)
{
    sim_profile *profile = NULL;
    TRY(sim_profile_load(path, &profile));
    *out = sim_profile_has(profile, SIM_RANK_PROCESSORS);
    sim_profile_free(&profile);
    return STATUS_OK;
}

static status add_prediction(const run_config *c, const run_plan *plan, int engine, const char *profile,
                             json_t *job)
{
    double predicted = 0, measured = 0;
    status rc = predict(c, plan, engine, profile, &predicted);
    /* The profile has too few devices, or virtual devices do not run the policy. */
    if (rc == STATUS_CONFIG) {
        error_clear();
        return STATUS_OK;
    }
    TRY(rc);
    TRY(measured_step(job, &measured));
    if (measured <= 0) return STATUS_OK;
    bool bound;
    TRY(is_bound(profile, &bound));
    json_t *p = json_pack("{s:s, s:f, s:f, s:f, s:b}", "profile", profile, "step_median_s", predicted / 1e9,
                          "measured_s", measured / 1e9, "error", predicted / measured - 1, "other_binding",
                          (int)(bound != (c->bound != BOUND_BY_NONE)));
    return json_object_set_new(job, "prediction", p) == 0 ? STATUS_OK : no_memory();
}

status virtual_predict_jobs(const run_config *config, const run_plan *plan, run_job *jobs)
{
    char path[PATH_MAX];
    bool has_virtual_twin = strcmp(config->run.device, "cpu") == 0 && !config->shared.link;
    if (!has_virtual_twin) return STATUS_OK;
    bool calibrated =
        calibration_path("this-machine.json", path, sizeof path) == STATUS_OK && access(path, R_OK) == 0;
    error_clear();
    for (int e = 0; calibrated && e < ENGINE_COUNT; e++)
        if (jobs[e].result) TRY(add_prediction(config, plan, e, path, jobs[e].result));
    return STATUS_OK;
}
