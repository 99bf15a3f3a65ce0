#include "harness/plan/plan.h"

#include "common/data/transform.h"
#include "harness/launch/processors.h"
#include "harness/rank/rank.h"
#include "harness/result/record.h"
#include "harness/sim/virtual_job.h"
#include "ps/ps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory of a process without tensors: program, libraries, generated code. */
enum { PROCESS_BYTES = 60 << 20 };

static status plan_steps(const run_config *c, run_plan *p)
{
    for (int j = 0; j < JOB_COUNT; j++) {
        if (!run_config_uses(c, j)) continue;
        sampler s;
        sampler_config config = trainer_sampler(c, p->set, j, run_config_replicas(c, j));
        TRY(sampler_init(&s, &config));
        bool takes_turns = p->alternate && run_config_takes_turns(c);
        p->total_steps[j] = run_config_steps(c, j, c->run.epochs * s.steps, 0, takes_turns).end;
    }
    return STATUS_OK;
}

static status plan_memory(const run_config *c, run_plan *p)
{
    int64_t params = p->model->parameter_elements * dtype_size(DTYPE_F32);
    int64_t needed = 0;
    int copies = 3 + optimizer_state_count(&c->optimizer); /* 3: parameters, gradients and buckets */
    for (int j = 0; j < JOB_COUNT; j++) {
        nn_program *program = NULL;
        nn_program_config config = {
            .batch = run_config_batch(c, j), .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1};
        if (!run_config_uses(c, j)) continue;
        TRY(nn_program_compile(p->model, &config, &program));
        int64_t bytes = program->activation_bytes + copies * params + PROCESS_BYTES;
        nn_program_free(&program);
        bytes *= run_config_replicas(c, j);
        if (bytes > p->largest_job_bytes) p->largest_job_bytes = bytes;
        needed += bytes;
    }
    char text[64];
    double available = 1024 * atof(proc_value("/proc/meminfo", "MemAvailable", text, sizeof text));
    p->alternate = available == 0 || (double)needed < available * 0.9;
    return STATUS_OK;
}

static void note_hardware(const run_config *c, run_plan *p)
{
    if (run_config_is_virtual(c)) {
        snprintf(p->hardware_note, sizeof p->hardware_note, "virtual time, profile %s",
                 run_config_profile(c));
        return;
    }
    int ranks = (int)c->run.gpus, threads = run_config_threads(c, ENGINE_NONE), processors = c->processors;
    text_buffer note = {0};
    text_append(&note, "%d %s rank%s of %d thread%s", ranks, c->run.device, ranks == 1 ? "" : "s", threads,
                threads == 1 ? "" : "s");
    /* If the launcher has bound the ranks, a rank does not see the processors of other ranks, so the total
     * number is unknown. */
    if (c->bound == BOUND_BY_STARTER)
        text_append(&note, ", bound by what started them");
    else
        text_append(&note, " %s %d processor%s%s", ranks * threads > processors ? "share" : "on", processors,
                    processors == 1 ? "" : "s", c->bound == BOUND_BY_HARNESS ? ", bound to cores" : "");
    if (!p->alternate && run_config_takes_turns(c))
        text_append(&note, "; memory does not hold all jobs: one after the other");
    if (run_config_is_oversubscribed(c))
        text_append(&note,
                    "; more ranks than %s: this shows the cost of the implementation, not "
                    "of the scheme on separate devices",
                    strcmp(c->run.device, "cuda") == 0 ? "GPUs" : "cores");
    snprintf(p->hardware_note, sizeof p->hardware_note, "%s", note.data ? note.data : "");
    text_free(&note);
}

static status drop_tensor(void *context, const checkpoint_tensor *t, dtype type, const void *values)
{
    (void)context, (void)t, (void)type, (void)values;
    return STATUS_OK;
}

/* Checks the checkpoint before the ranks start, so that a checkpoint of another model gives one error instead
 * of one per rank. */
static status check_load(const run_config *c, const run_plan *p, model_options *resolved)
{
    if (!c->checkpoint.load) return STATUS_OK;
    checkpoint *file = NULL;
    option_binding model = {.table = &model_option_table, .storage = resolved};
    bool reference = strcmp(c->run.device, "reference") == 0;
    checkpoint_subject subject = {.model = p->model,
                                  .type = reference ? DTYPE_F64 : DTYPE_F32,
                                  .model_options = &model,
                                  .optimizer = &c->optimizer};
    checkpoint_sink nowhere = {.write = drop_tensor};
    TRY(checkpoint_open(c->checkpoint.load, &file));
    status rc = checkpoint_load(file, &subject, &nowhere);
    checkpoint_close(&file);
    return rc;
}

/* Refuses a target that no evaluation could reach. */
static status check_targets(const run_config *c, const run_plan *p)
{
    const run_options *r = &c->run;
    int64_t samples = dataset_describe(p->set)->samples[DATA_TEST];
    if (r->target_accuracy > 0 && p->model->loss == NN_LOSS_MSE)
        return fail(STATUS_CONFIG, "--target-accuracy: expected a model that predicts classes, got %s",
                    p->model->name);
    if ((r->target_accuracy > 0 || r->target_loss > 0) && samples < r->gpus)
        return fail(STATUS_CONFIG,
                    "--target-%s: expected at least one test sample per rank, got %lld for %lld ranks",
                    r->target_loss > 0 ? "loss" : "accuracy", (long long)samples, (long long)r->gpus);
    return STATUS_OK;
}

status run_plan_make(const run_config *config, run_plan *out)
{
    *out = (run_plan){0};
    model_options resolved;
    TRY(run_config_build(config, &out->set, &out->model, &resolved));
    data_form form = data_form_of_model(out->model);
    unsigned augment = 0;
    data_transform transform;
    TRY(data_augment_parse(config->data.augment, &augment));
    TRY(data_transform_plan(dataset_describe(out->set), &form, augment, &transform));
    TRY(check_load(config, out, &resolved));
    TRY(check_targets(config, out));
    TRY(plan_memory(config, out));
    TRY(plan_steps(config, out));
    note_hardware(config, out);
    return STATUS_OK;
}

void run_plan_free(run_plan *plan)
{
    nn_model_free(&plan->model);
    dataset_close(&plan->set);
}

/* ---- batches without data ---------------------------------------------------- */

typedef struct plan_source {
    batch_source base;
    int64_t count;
    int32_t *targets; /* all of class 0 */
} plan_source;

static status source_next(batch_source *base, int64_t step, batch_view *out)
{
    plan_source *s = (plan_source *)base;
    *out = (batch_view){.targets = s->targets, .count = s->count, .targets_counted = s->count, .step = step};
    return STATUS_OK;
}

static void source_close(batch_source *s)
{
    (void)s;
}

static const batch_source_type source_type = {source_next, batch_source_always_ready,
                                              batch_source_ignore_return, source_close};

/* ---- one rank --------------------------------------------------------------------------------- */

typedef struct planned_job {
    simulation *machines; /* NULL if the run is not virtual */
    ledger memory;        /* ledger of the rank that was planned last */
    /* Peak memory of an evaluation, or 0 if the job does not evaluate. `memory` includes the evaluation only
     * if the run is not virtual, because a virtual run does not evaluate. */
    int64_t evaluation_bytes;
    bool has_sizes;
    ps_dp_sizes sizes; /* sizes that rank 0 reports under the policy dp, if has_sizes is true */
} planned_job;

/* Runs two steps and, if `evaluated` is not 0, evaluates `evaluated` samples. The ledger is then the same as
 * at the end of a run. */
static status run_rank(trainer *t, plan_source *source, int64_t evaluated, planned_job *out)
{
    step_result step;
    evaluation_sums sums;
    const ledger *l = trainer_ledger(t);
    TRY(trainer_step(t, &source->base, 0, 0, &step));
    ledger_reset_peaks(trainer_ledger(t));
    TRY(trainer_step(t, &source->base, 1, 1, &step));
    TRY(sync_flush(trainer_engine(t)));
    out->memory = *l;
    if (evaluated == 0) return STATUS_OK;
    source->count = evaluated;
    TRY(trainer_evaluate(t, &source->base, (evaluation_stop){0}, &sums));
    out->evaluation_bytes = l->phase_peak[LEDGER_PHASE_EVALUATE];
    if (!out->machines) out->memory = *l;
    return STATUS_OK;
}

static status plan_rank(const run_config *c, const run_plan *p, int job, int rank,
                        const sync_requirements *needs, planned_job *out)
{
    trainer_config t;
    trainer *planned = NULL;
    int world = run_config_world(c, job);
    int64_t batch = run_config_batch(c, job), loaded = batch * (needs->whole_batch && rank == 0 ? world : 1);
    plan_source source = {.base = {.type = &source_type, .largest_batch = loaded, .steps_per_epoch = 1},
                          .count = loaded,
                          .targets =
                              calloc((size_t)(loaded * p->model->rows_per_sample), sizeof *source.targets)};
    rank_slot slot = {0};
    sync_blob *all = calloc((size_t)world, sizeof *all); /* one handshake per rank */
    char device[64];
    status rc;
    if (!source.targets || !all) TRY_GOTO(rc, fail(STATUS_SYSTEM, "no memory for a plan"), out);
    TRY_GOTO(rc, trainer_setup(c, p->set, p->model, job, rank, world, &t), out);
    snprintf(device, sizeof device, "plan:%s", c->run.device);
    t.device = device;
    t.simulation = out->machines;
    t.sync.slot = &slot;
    t.total_steps = 2;
    int64_t test = dataset_describe(p->set)->samples[DATA_TEST], share = (test + world - 1) / world;
    bool evaluates = test >= world && run_config_evaluates(c, job);
    TRY_GOTO(rc, trainer_open(&t, &planned), out);
    TRY_GOTO(rc, sync_handshake(trainer_engine(planned), all), out);
    for (int r = 1; r < world; r++) all[r] = all[0];
    TRY_GOTO(rc, sync_connect(trainer_engine(planned), all), out);
    TRY_GOTO(rc, run_rank(planned, &source, !evaluates ? 0 : share < batch ? share : batch, out), out);
    if (rank == 0) out->has_sizes = ps_dp_read_sizes(trainer_engine(planned), &out->sizes);
out:
    trainer_close(&planned);
    free(source.targets);
    free(all);
    return rc;
}

/* ---- all -------------------------------------------------------------------------------------- */

static status plan_ranks(const run_config *c, const run_plan *p, int number, const sync_requirements *needs,
                         planned_job *planned, json_t *ranks)
{
    static const virtual_variant as_it_is = {0};
    int world = run_config_world(c, number);
    virtual_job_config machines = {.run = c,
                                   .plan = p,
                                   .engine = job_engine(number),
                                   .profile = run_config_profile(c),
                                   .variant = &as_it_is};
    if (run_config_is_virtual(c)) TRY(virtual_machines_open(&machines, world, needs, &planned->machines));
    for (int r = 0; r < world; r++) {
        if (r <= needs->alike_from) TRY(plan_rank(c, p, number, r, needs, planned));
        json_array_append_new(ranks, json_pack("{s:i, s:o, s:I}", "rank", r, "memory",
                                               ledger_to_json(&planned->memory), "evaluation_peak_bytes",
                                               (json_int_t)planned->evaluation_bytes));
    }
    return STATUS_OK;
}

static status plan_job(const run_config *c, const run_plan *p, int number, json_t *jobs)
{
    int world = run_config_world(c, number), engine = job_engine(number);
    sync_requirements needs = {0};
    planned_job planned = {0};
    json_t *ranks = json_array();
    json_t *job =
        json_pack("{s:s, s:s, s:s, s:i, s:o}", "name", job_name(number), "engine", engine_table[engine]->name,
                  "policy", c->policies[engine], "world_size", world, "ranks", ranks);
    json_array_append_new(jobs, job);
    TRY(run_config_requirements(c, engine, world, &needs));
    status rc = plan_ranks(c, p, number, &needs, &planned, ranks);
    simulation_close(&planned.machines);
    if (rc != STATUS_OK) return rc;
    job_result_add_memory(job, ranks);
    ps_result_add_memory(job, ranks, planned.has_sizes ? &planned.sizes : NULL);
    return STATUS_OK;
}

status ledger_plan_make(const run_config *c, const run_plan *p, json_t **out)
{
    json_t *jobs = json_array();
    status rc = STATUS_OK;
    for (int j = 0; j < JOB_COUNT && rc == STATUS_OK; j++)
        if (run_config_uses(c, j)) rc = plan_job(c, p, j, jobs);
    *out = rc == STATUS_OK ? run_workload_to_json(c, p) : NULL;
    if (*out) json_object_set(*out, "jobs", jobs);
    json_decref(jobs);
    return rc;
}

/* ---- out of memory ---------------------------------------------------------------------------- */

static void append_classes(const ledger *l, text_buffer *out)
{
    char bytes[48];
    const char *separator = "";
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++) {
        if (l->peak_classes[c] == 0) continue;
        text_append(out, "%s%s %s", separator, ledger_class_name((ledger_class)c),
                    text_format_bytes(bytes, sizeof bytes, (double)l->peak_classes[c]));
        separator = ", ";
    }
}

/* Plans rank 0 and the first rank that differs from rank 0, and describes the difference of their memory.
 * Appends nothing if rank 0 does not need more. */
static status describe(const run_config *c, const run_plan *plan, int job, text_buffer *out)
{
    int engine = job_engine(job), world = run_config_world(c, job);
    sync_requirements needs = {0};
    planned_job first = {0}, other = {0};
    char most[48], least[48], more[48];
    TRY(run_config_requirements(c, engine, world, &needs));
    if (needs.alike_from == 0 || needs.alike_from >= world) return STATUS_OK;
    TRY(plan_rank(c, plan, job, 0, &needs, &first));
    TRY(plan_rank(c, plan, job, needs.alike_from, &needs, &other));
    const ledger_account *own = &first.memory.total, *others = &other.memory.total;
    if (own->peak <= others->peak) return STATUS_OK;
    text_append(out, "under %s rank 0 would hold %s in %s (", c->policies[engine],
                text_format_bytes(most, sizeof most, (double)own->peak), ledger_phase_name(own->peak_phase));
    append_classes(&first.memory, out);
    text_append(out, "), rank %d %s: %s more on rank 0", needs.alike_from,
                text_format_bytes(least, sizeof least, (double)others->peak),
                text_format_bytes(more, sizeof more, (double)(own->peak - others->peak)));
    return STATUS_OK;
}

void plan_explain_memory(const run_config *c, const run_plan *plan, int job)
{
    text_buffer text = {0};
    error_record failure;
    error_copy(&failure);
    error_clear();
    status rc = describe(c, plan, job, &text);
    error_clear();
    if (rc == STATUS_OK && text.data)
        fail(failure.code, "%s; %s", failure.message, text.data);
    else
        error_adopt(&failure);
    text_free(&text);
}
