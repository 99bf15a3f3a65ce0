/* Converts the results of a rank to JSON, and gathers them on rank 0 in the result of the job. */
#include "harness/rank/state.h"

#include "harness/launch/processors.h"
#include "harness/report/report.h"
#include "ps/ps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static json_t *measured_to_json(device *d)
{
    ledger_external process = ledger_measure_process();
    int64_t used = -1, whole = -1;
    char threads[32];
    if (device_usage(d, &used, &whole) != STATUS_OK) error_clear();
    return json_pack("{s:I, s:I, s:i, s:o*, s:o*}", "resident_bytes", (json_int_t)process.resident,
                     "proportional_bytes", (json_int_t)process.proportional, "threads",
                     atoi(proc_value("/proc/self/status", "Threads", threads, sizeof threads)),
                     "device_used_bytes", used < 0 ? NULL : json_integer(used), "device_total_bytes",
                     used < 0 ? NULL : json_integer(whole));
}

/* Returns the operations that run slower because a library of the device refused them
 * (device_info.fallbacks). */
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

/* A process adds the facts that a virtual rank does not have. */
json_t *rank_device_to_json(const rank_state *s, const rank_device *d)
{
    device *at = trainer_device(d->trainer);
    const sync_engine *engine = trainer_engine(d->trainer);
    const rendezvous_member *me = s->rendezvous ? &rendezvous_members(s->rendezvous)[s->place->rank] : NULL;
    bool several = s->device_count > 1; /* --stages-on devices */
    char processors[256];
    json_t *row =
        json_pack("{s:i, s:s, s:o*, s:s*, s:s, s:o, s:o*, s:o*, s:o, s:o*, s:o*, s:f, s:o*}", "rank",
                  d->number, "host", me ? me->host : "virtual", "pid", me ? json_integer(me->pid) : NULL,
                  "processors", me ? processors_own(processors, sizeof processors) : NULL, "device",
                  device_get_info(at)->description, "memory", ledger_to_json(trainer_ledger(d->trainer)),
                  "process", me ? measured_to_json(at) : NULL, "fallbacks", me ? fallbacks_to_json(at) : NULL,
                  "staleness", ps_result_staleness(trainer_engine(d->trainer)), "of_rank",
                  several ? json_integer(s->place->rank) : NULL, "stage",
                  several ? json_integer(d->place.stage) : NULL, "slow_factor", trainer_slowdown(d->trainer),
                  "loader_threads", me ? json_integer(s->batches.loader_threads) : NULL);
    overlap_to_json(&d->record.overlap, engine, row);
    record_to_json(&d->record, &s->clock, row);
    if (d->trace.recorder) rank_trace_to_json(&d->trace, &d->record, &s->clock, row);
    return row;
}

/* Returns the values of --target-loss and --target-accuracy, or null if neither was given. */
static json_t *target_to_json(const run_options *r)
{
    if (r->target_loss <= 0 && r->target_accuracy <= 0) return json_null();
    return json_pack("{s:o, s:o}", "loss", report_json_number(r->target_loss > 0 ? r->target_loss : NAN),
                     "accuracy", report_json_number(r->target_accuracy > 0 ? r->target_accuracy : NAN));
}

status rank_job_to_json(rank_state *s, json_t *rows, const char *hash, json_t *servers, json_t *host_costs,
                        json_t **out)
{
    const rank_device *first = &s->devices[0];
    const device_info *info = device_get_info(trainer_device(first->trainer));
    sync_engine *engine = trainer_engine(first->trainer);
    const run_config *c = s->config;
    const rank_place *p = s->place;
    bool real = s->world->simulated_ranks == 0;
    json_t *updates_on = !real                    ? NULL
                         : p->engine != ENGINE_PS ? json_null()
                                                  : json_string(ps_updates_on_gpu(engine) ? "gpu" : "host");
    json_t *progress = !real ? NULL
                       : p->engine == ENGINE_NONE
                           ? json_null()
                           : json_string(engine->context.inline_progress ? "inline" : "thread");
    json_t *job = json_pack(
        "{s:s, s:s, s:s, s:i, s:o*, s:i, s:I, s:s*, s:s, s:s*, s:b, s:I, s:I, s:I, s:b, s:s?, s:b, s:b, "
        "s:o*, s:o, s:o, s:o*, s:o*, s:o*}",
        "name", job_name(p->job), "engine", engine_table[p->engine]->name, "policy", c->policies[p->engine],
        "world_size", p->world, "simulated_ranks", real ? NULL : json_integer(s->world->simulated_ranks),
        "threads_per_rank", real ? run_config_threads(c, p->job) : 1, "batch_per_rank",
        (json_int_t)run_config_batch(c, p->job), "binding", real ? bound_names[c->bound] : NULL, "device",
        info->name, "profile", real ? NULL : c->run.device, "simulated", (int)info->simulated, "warmup_steps",
        (json_int_t)s->steps.warmup, "trained_steps", (json_int_t)(s->next_step - s->steps.first), "steps",
        (json_int_t)s->next_step, "stopped_early", (int)s->stopped, "parameter_hash", hash, "one_loss",
        (int)trainer_has_one_loss(first->trainer), "synchronous", s->lead == 0, "updates_on", updates_on,
        "target", real ? target_to_json(&c->run) : json_null(), "settings", engine_settings_to_json(engine),
        "progress", progress, "checkpoints", real ? json_integer(s->saves) : NULL, "saved_step",
        !real      ? NULL
        : s->saves ? json_integer(s->checkpoint.written_step)
                   : json_null());
    engine_exchange_to_json(engine, &first->record, job);
    if (host_costs) json_object_set_new(job, "host_costs", host_costs);
    *out = job;
    if (s->remote)
        rank_add_remote(s, job);
    else if (c->run.stages > 1)
        TRY(job_result_add_pipeline(job, rows, s->model, c));
    ps_dp_sizes sizes;
    ps_result_add_memory(job, rows, ps_dp_read_sizes(engine, &sizes) ? &sizes : NULL);
    if (servers) json_object_set_new(job, "servers", servers);
    return job_result_finish(job, rows);
}

/* Sorts the rows of the ranks by device and rank. */
static status merge_rows(const rank_state *s, const text_buffer *texts, json_t *rows)
{
    json_t *of_ranks[JOB_MOST_RANKS];
    int world = s->place->world;
    status rc = STATUS_OK;
    for (int r = 0; r < world; r++) of_ranks[r] = json_loadb(texts[r].data, texts[r].length, 0, NULL);
    for (int i = 0; i < s->device_count * world && rc == STATUS_OK; i++)
        if (json_array_append(rows, json_array_get(of_ranks[i % world], (size_t)(i / world))) != 0)
            rc = fail(STATUS_PROTOCOL, "the results of rank %d cannot be read", i % world);
    for (int r = 0; r < world; r++) json_decref(of_ranks[r]);
    return rc;
}

static status merge_results(rank_state *s, const text_buffer *texts, run_job *out)
{
    json_t *rows = json_array();
    char hash[24];
    /* param_set_hash() computes the same hash. */
    snprintf(hash, sizeof hash, "%016llx",
             (unsigned long long)XXH3_64bits(out->params, (size_t)out->param_count * sizeof *out->params));
    status rc = merge_rows(s, texts, rows);
    if (rc == STATUS_OK)
        rc = rank_job_to_json(s, rows, out->params ? hash : NULL, json_array(), NULL, &out->result);
    json_decref(rows);
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
        TRY(rank_gather_param(s, i, at));
        if (at) at += s->model->params[i].elements;
    }
    return STATUS_OK;
}

static status gather(rank_state *s, const char *tag, const char *text, size_t length, text_buffer *texts)
{
    return rendezvous_gather(s->rendezvous, tag, s->place->rank, s->place->world, text, length,
                             s->config->shared.stall_timeout_ns, texts);
}

static status gather_results(rank_state *s, run_job *out, text_buffer *texts)
{
    json_t *rows = json_array();
    for (int d = 0; d < s->device_count; d++)
        json_array_append_new(rows, rank_device_to_json(s, &s->devices[d]));
    char *text = json_dumps(rows, JSON_COMPACT);
    json_decref(rows);
    /* Must follow the measurement of memory. */
    status rc = sync_gather_parameters(trainer_engine(s->devices[0].trainer));
    if (rc == STATUS_OK && !s->remote) rc = keep_params(s, out);
    if (rc == STATUS_OK) rc = gather(s, "results", text, strlen(text), texts);
    free(text);
    return rc == STATUS_OK && s->place->rank == 0 ? merge_results(s, texts, out) : rc;
}

/* Gathers the events of all ranks and their devices. */
static status gather_traces(rank_state *s, run_job *out, text_buffer *texts)
{
    text_buffer mine = {0}, all = {0};
    if (!s->config->run.trace) return STATUS_OK;
    for (int d = 0; d < s->device_count; d++)
        rank_trace_write(&s->devices[d].trace, s->place->job, s->devices[d].number, &mine);
    status rc = gather(s, "trace", mine.data, mine.length, texts);
    all.out_of_memory = mine.out_of_memory;
    for (int r = 0; r < s->place->world; r++) {
        if (texts[r].data) text_append(&all, "%s", texts[r].data);
        all.out_of_memory = all.out_of_memory || texts[r].out_of_memory;
    }
    text_free(&mine);
    out->trace = all.data;
    return rc == STATUS_OK && all.out_of_memory ? fail(STATUS_SYSTEM, "no memory for a trace") : rc;
}

/* Makes all ranks keep the same steps, even if some have measured more than others. */
static status agree_on_steps(rank_state *s)
{
    enum { LEVELS = 64 };
    double ranks[LEVELS] = {0};
    ranks[s->devices[0].record.level] = 1;
    TRY(rendezvous_sum(s->rendezvous, "kept steps", ranks, LEVELS, rank_deadline(s)));
    int most = LEVELS - 1;
    while (ranks[most] == 0) most--;
    for (int d = 0; d < s->device_count; d++) record_merge(&s->devices[d].record, most);
    return STATUS_OK;
}

status rank_share_results(rank_state *s, run_job *out)
{
    TRY(agree_on_steps(s));
    int world = s->place->world;
    text_buffer *texts = calloc(2 * (size_t)world, sizeof *texts);
    if (!texts) return fail(STATUS_SYSTEM, "no memory for the results");
    status rc = gather_results(s, out, texts);
    if (rc == STATUS_OK) rc = gather_traces(s, out, texts + world);
    for (int r = 0; r < 2 * world; r++) text_free(&texts[r]);
    free(texts);
    if (rc == STATUS_OK) rc = rendezvous_barrier(s->rendezvous, "end", rank_deadline(s));
    if (rc != STATUS_OK) return rc;
    /* A GPU frees memory only when no other process has the memory open. */
    for (int d = 0; d < s->device_count; d++) trainer_leave(s->devices[d].trainer);
    return rendezvous_barrier(s->rendezvous, "left", rank_deadline(s));
}
