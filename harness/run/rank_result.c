/* Converts the results of a rank to JSON, and gathers them on rank 0 in the result of the job. */
#include "harness/run/rank_impl.h"

#include "harness/launch/processors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Returns the number of threads of this process, or 0 if the system does not report it. */
static int count_threads(void)
{
    char line[128];
    int threads = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && threads == 0 && fgets(line, sizeof line, f)) sscanf(line, "Threads: %d", &threads);
    if (f) fclose(f);
    return threads;
}

static json_t *measured_to_json(device *d)
{
    ledger_external process = ledger_measure_process();
    int64_t used = -1, whole = -1;
    json_t *measured =
        json_pack("{s:I, s:I, s:i}", "resident_bytes", (json_int_t)process.resident, "proportional_bytes",
                  (json_int_t)process.proportional, "threads", count_threads());
    if (device_usage(d, &used, &whole) != STATUS_OK) error_clear();
    if (used < 0) return measured;
    json_object_set_new(measured, "device_used_bytes", json_integer((json_int_t)used));
    json_object_set_new(measured, "device_total_bytes", json_integer((json_int_t)whole));
    return measured;
}

/* Returns the operations that run slower than with the device's libraries (device_info.fallbacks). */
static json_t *fallbacks_to_json(const device *d)
{
    const device_fallback *list = device_get_info(d)->fallbacks;
    json_t *out = json_array();
    for (int i = 0; i < device_get_info(d)->fallback_count; i++)
        json_array_append_new(out, json_pack("{s:s, s:I, s:s, s:s, s:s}", "operation", op_name(list[i].kind),
                                             "count", (json_int_t)list[i].count, "shape", list[i].shape,
                                             "reason", list[i].reason, "instead", list[i].instead));
    return out;
}

/* Returns the row of a rank, or of a device. `number` counts ranks, or the devices of all ranks. */
static json_t *rank_to_json(rank_state *s, int number)
{
    const rendezvous_member *me = &rendezvous_members(s->rendezvous)[s->place->rank];
    char processors[256];
    json_t *rank = json_pack("{s:i, s:s, s:i, s:s, s:s, s:o, s:o, s:o}", "rank", number, "host", me->host,
                             "pid", (int)me->pid, "processors", processors_own(processors, sizeof processors),
                             "device", device_get_info(trainer_device(s->trainer))->description, "memory",
                             ledger_to_json(trainer_ledger(s->trainer)), "process",
                             measured_to_json(trainer_device(s->trainer)), "fallbacks",
                             fallbacks_to_json(trainer_device(s->trainer)));
    overlap_to_json(&s->overlap, trainer_engine(s->trainer), rank);
    json_t *staleness = ps_result_staleness(trainer_engine(s->trainer));
    bool whole = rank && json_object_set_new(rank, "staleness", staleness) == 0;
    job_result_name_device(rank, s->config, number);
    json_object_set_new(rank, "slow_factor", json_real(trainer_slowdown(s->trainer)));
    json_object_set_new(rank, "loader_threads", json_integer(s->batches.loader_threads));
    if (whole && record_to_json(&s->record, &s->clock, rank) == STATUS_OK &&
        rank_trace_to_json(&s->trace, &s->record, &s->clock, rank) == STATUS_OK)
        return rank;
    json_decref(rank);
    return NULL;
}

/* Returns the rank's row, or with --stages-on devices a row for each of its devices, which count as ranks
 * in the results. */
static json_t *rows_to_json(rank_state *s)
{
    json_t *rows = json_array();
    bool whole = json_array_append_new(rows, rank_to_json(s, s->place->rank)) == 0;
    for (int d = 0; d < s->device_count && whole; d++) {
        rank_state view = *s;
        view.trainer = s->devices[d].trainer;
        view.record = s->devices[d].record;
        view.overlap = s->devices[d].overlap;
        view.trace = s->devices[d].trace;
        const pipeline_place *place = &s->devices[d].place;
        whole = json_array_append_new(rows, rank_to_json(&view, pipeline_rank(place, place->stage))) == 0;
    }
    if (whole) return rows;
    json_decref(rows);
    return NULL;
}

/* Returns the values of --target-loss and --target-accuracy, or null if neither was given. */
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

/* Adds the settings of the engine, which thread drives its communication, and how often the run was saved. */
static void add_settings(rank_state *s, json_t *job)
{
    const char *progress = trainer_is_inline(s->trainer) ? "inline" : "thread";
    json_object_set_new(job, "settings", engine_settings_to_json(trainer_engine(s->trainer)));
    json_object_set_new(job, "progress",
                        s->place->engine == ENGINE_NONE ? json_null() : json_string(progress));
    json_object_set_new(job, "checkpoints", json_integer(s->saves));
}

static json_t *job_to_json(rank_state *s, const run_job *job)
{
    const device_info *info = device_get_info(trainer_device(s->trainer));
    int engine = s->place->engine;
    char text[24];
    /* Equal to param_set_hash(). */
    uint64_t hash = XXH3_64bits(job->params, (size_t)job->param_count * sizeof *job->params);
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

static status merge_results(rank_state *s, const text_buffer *texts, run_job *out)
{
    json_t *ranks = json_array();
    out->result = job_to_json(s, out);
    if (out->result) add_settings(s, out->result);
    status rc = STATUS_OK;
    for (int d = 0; d <= s->device_count && rc == STATUS_OK; d++)
        for (int r = 0; r < s->place->world && rc == STATUS_OK; r++) {
            json_t *rows = json_loadb(texts[r].data, texts[r].length, 0, NULL);
            if (json_array_append(ranks, json_array_get(rows, (size_t)d)) != 0)
                rc = fail(STATUS_PROTOCOL, "the results of rank %d cannot be read", r);
            json_decref(rows);
        }
    if (rc == STATUS_OK && !out->result) rc = fail(STATUS_SYSTEM, "no memory for the results");
    if (rc == STATUS_OK) rc = engine_exchange_to_json(trainer_engine(s->trainer), &s->overlap, out->result);
    if (rc == STATUS_OK && !out->params) json_object_set_new(out->result, "parameter_hash", json_null());
    if (rc == STATUS_OK && s->stage)
        rc = s->remote ? rank_add_remote(s, out->result)
                       : job_result_add_pipeline(out->result, ranks, s->model, s->config);
    if (rc == STATUS_OK) rc = job_result_finish(out->result, ranks);
    ps_dp_sizes sizes;
    bool has_sizes = ps_result_sizes(trainer_engine(s->trainer), &sizes);
    if (rc == STATUS_OK) rc = ps_result_add_memory(out->result, ranks, has_sizes ? &sizes : NULL);
    json_decref(ranks);
    return rc;
}

/* Gathers all parameters on rank 0, one after another. */
static status keep_params(rank_state *s, run_job *out)
{
    if (s->place->rank == 0) {
        out->param_count = s->model->parameter_elements;
        out->params = malloc((size_t)out->param_count * sizeof *out->params);
        if (!out->params) return fail(STATUS_SYSTEM, "no memory for a copy of the parameters");
    }
    float *at = out->params;
    for (int i = 0; i < s->model->param_count; i++) {
        TRY(rank_checkpoint_gather(&s->checkpoint, i, at));
        if (at) at += s->model->params[i].elements;
    }
    return STATUS_OK;
}

/* Gathers the traces of all ranks and their devices. *text is set on rank 0, and the caller frees it. */
static status gather_traces(rank_state *s, char **text)
{
    text_buffer all = {0};
    status rc = STATUS_OK;
    for (int d = -1; d < s->device_count && rc == STATUS_OK; d++) {
        rank_device *device = d < 0 ? NULL : &s->devices[d];
        rc = rank_trace_gather(device ? &device->trace : &s->trace, s->rendezvous, s->place->job,
                               s->place->rank,
                               device ? pipeline_rank(&device->place, device->place.stage) : s->place->rank,
                               s->config->shared.stall_timeout_ns, s->place->world, &all);
    }
    *text = all.data;
    return rc == STATUS_OK && all.out_of_memory ? fail(STATUS_SYSTEM, "no memory for a trace") : rc;
}

/* Makes all ranks keep the same steps, even if some have measured more than others. */
static status agree_on_steps(rank_state *s)
{
    enum { LEVELS = 64 };
    double ranks[LEVELS] = {0};
    ranks[s->record.level] = 1;
    TRY(rendezvous_sum(s->rendezvous, "kept steps", ranks, LEVELS, rank_deadline(s)));
    int most = LEVELS - 1;
    while (ranks[most] == 0) most--;
    record_merge(&s->record, most);
    for (int d = 0; d < s->device_count; d++) record_merge(&s->devices[d].record, most);
    return STATUS_OK;
}

status rank_share_results(rank_state *s, run_job *out)
{
    TRY(agree_on_steps(s));
    text_buffer *texts = calloc((size_t)s->place->world, sizeof *texts);
    json_t *mine = rows_to_json(s);
    char *text = mine ? json_dumps(mine, JSON_COMPACT) : NULL;
    status rc;
    if (!texts || !text)
        rc = fail(STATUS_SYSTEM, "no memory for the results");
    else
        rc = sync_gather_parameters(trainer_engine(s->trainer)); /* must follow the measurement of memory */
    if (rc == STATUS_OK && !s->remote) rc = keep_params(s, out);
    if (rc == STATUS_OK)
        rc = rendezvous_gather(s->rendezvous, "results", s->place->rank, s->place->world, text, strlen(text),
                               s->config->shared.stall_timeout_ns, texts);
    if (rc == STATUS_OK && s->place->rank == 0) rc = merge_results(s, texts, out);
    if (rc == STATUS_OK) rc = gather_traces(s, &out->trace);
    if (rc == STATUS_OK) rc = rendezvous_barrier(s->rendezvous, "end", rank_deadline(s));
    if (rc == STATUS_OK) { /* a GPU's memory is freed once no other process has it open */
        trainer_leave(s->trainer);
        rank_devices_leave(s);
        rc = rendezvous_barrier(s->rendezvous, "left", rank_deadline(s));
    }
    free(text);
    json_decref(mine);
    for (int r = 0; texts && r < s->place->world; r++) text_free(&texts[r]);
    free(texts);
    return rc;
}
