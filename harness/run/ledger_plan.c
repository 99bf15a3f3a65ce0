#include "harness/run/plan.h"

#include "harness/run/run_result.h"
#include "harness/run/record.h"
#include "harness/run/rank_setup.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- batches that have a size only ------------------------------------------- */

typedef struct plan_source {
    batch_source base;
    int64_t count;
    int32_t *targets; /* of class 0 */
} plan_source;

static status source_next(batch_source *base, int64_t step, batch_view *out)
{
    plan_source *s = (plan_source *)base;
    *out = (batch_view){.targets = s->targets, .count = s->count, .targets_counted = s->count, .step = step};
    return STATUS_OK;
}

static void source_give_back(batch_source *s, const batch_view *b)
{
    (void)s, (void)b;
}

static void source_close(batch_source *s)
{
    (void)s;
}

static const batch_source_type source_type = {"plan", source_next, batch_source_always_ready,
                                              source_give_back, source_close};

static status source_init(const nn_model *m, int64_t largest, plan_source *out)
{
    *out = (plan_source){.base = {.type = &source_type, .largest_batch = largest, .steps_per_epoch = 1}, .count = largest};
    out->targets = calloc((size_t)(largest * m->rows_per_sample), sizeof *out->targets);
    return out->targets ? STATUS_OK : fail(STATUS_SYSTEM, "no memory to plan");
}

/* ---- one rank --------------------------------------------------------------------------------- */

/* Two steps, and an evaluation if there are samples for every rank: the ledger then is as at the end of a run. */
static status run_rank(trainer *t, plan_source *source, int64_t evaluated)
{
    step_result step;
    evaluation_sums sums;
    TRY(trainer_step(t, &source->base, 0, 0, &step));
    ledger_reset_peaks(trainer_ledger(t));
    TRY(trainer_step(t, &source->base, 1, 1, &step));
    TRY(trainer_flush(t));
    if (evaluated == 0) return STATUS_OK;
    source->count = evaluated;
    return trainer_evaluate(t, &source->base, (evaluation_stop){0}, &sums);
}

/* The planned memory of a job's ranks. */
typedef struct planned_job {
    ledger memory; /* of the rank planned last */
    bool has_sizes;
    ps_dp_sizes sizes; /* of `dp`, from rank 0 */
} planned_job;

static status plan_rank(const run_config *c, const run_plan *p, int engine, int rank, const sync_requirements *needs,
                        planned_job *out)
{
    trainer_config t;
    trainer *planned = NULL;
    int world = run_config_world(c, engine);
    int64_t loaded = c->data.batch * (needs->whole_batch && rank == 0 ? world : 1);
    plan_source source = {0};
    rank_slot slot = {0};
    sync_blob nothing;
    char device[64];
    TRY(trainer_setup(c, p->set, p->model, engine, rank, world, &t));
    snprintf(device, sizeof device, "plan:%s", c->run.device);
    t.device = device;
    t.slot = &slot;
    t.total_steps = 2;
    int64_t test = dataset_describe(p->set)->samples[DATA_TEST], share = (test + world - 1) / world;
    bool evaluates = test >= world && c->run.eval_every >= 0;
    status rc;
    TRY_GOTO(rc, source_init(p->model, loaded, &source), out);
    TRY_GOTO(rc, trainer_open(&t, &planned), out);
    TRY_GOTO(rc, trainer_handshake(planned, &nothing), out);
    TRY_GOTO(rc, trainer_connect(planned, &nothing), out);
    TRY_GOTO(rc, run_rank(planned, &source, !evaluates ? 0 : share < c->data.batch ? share : c->data.batch), out);
    out->memory = *trainer_ledger(planned);
    if (rank == 0) out->has_sizes = ps_result_sizes(trainer_engine(planned), &out->sizes);
out:
    trainer_close(&planned);
    free(source.targets);
    return rc;
}

/* ---- all -------------------------------------------------------------------------------------- */

static status plan_job(const run_config *c, const run_plan *p, int engine, json_t *jobs)
{
    int world = run_config_world(c, engine);
    const sync_engine_type *type = engine_table[engine];
    sync_requirements needs = {0};
    planned_job planned = {0};
    json_t *ranks = json_array();
    json_t *job = json_pack("{s:s, s:s, s:i, s:o}", "engine", type->name, "policy", c->policies[engine], "world_size",
                            world, "ranks", ranks);
    if (!job || json_array_append_new(jobs, job) != 0) return fail(STATUS_SYSTEM, "no memory to plan");
    TRY(type->requirements(c->engine_options[engine], c->policies[engine], world, &needs));
    for (int r = 0; r < world; r++) {
        if (r <= needs.alike_from) TRY(plan_rank(c, p, engine, r, &needs, &planned));
        json_t *rank = json_pack("{s:i, s:o}", "rank", r, "memory", ledger_to_json(&planned.memory));
        if (json_array_append_new(ranks, rank) != 0) return fail(STATUS_SYSTEM, "no memory to plan");
    }
    job_result_add_memory(job, ranks);
    return ps_result_add_memory(job, ranks, planned.has_sizes ? &planned.sizes : NULL);
}

status ledger_plan_make(const run_config *c, const run_plan *p, json_t **out)
{
    json_t *jobs = json_array();
    status rc = jobs ? STATUS_OK : fail(STATUS_SYSTEM, "no memory to plan");
    for (int e = 0; e < ENGINE_COUNT && rc == STATUS_OK; e++)
        if (run_config_uses(c, e)) rc = plan_job(c, p, e, jobs);
    *out = rc == STATUS_OK ? json_pack("{s:s, s:I, s:I, s:o}", "model", p->model->name, "parameters",
                                       (json_int_t)p->model->parameter_elements, "batch_per_rank",
                                       (json_int_t)c->data.batch, "jobs", jobs)
                           : NULL;
    if (!*out && rc == STATUS_OK) rc = fail(STATUS_SYSTEM, "no memory to plan");
    if (rc != STATUS_OK) json_decref(jobs);
    return rc;
}

status ledger_plan_first(const run_config *c, const run_plan *p, int engine, ledger *first, ledger *other, int *another)
{
    const sync_engine_type *type = engine_table[engine];
    sync_requirements needs = {0};
    planned_job planned = {0};
    int world = run_config_world(c, engine);
    TRY(type->requirements(c->engine_options[engine], c->policies[engine], world, &needs));
    TRY(plan_rank(c, p, engine, 0, &needs, &planned));
    *first = *other = planned.memory;
    *another = needs.alike_from < world ? needs.alike_from : 0;
    if (*another == 0) return STATUS_OK;
    TRY(plan_rank(c, p, engine, *another, &needs, &planned));
    *other = planned.memory;
    return STATUS_OK;
}

/* ---- out of memory ---------------------------------------------------------------------------- */

static void list_classes(const ledger *l, char *out, size_t size)
{
    char text[32];
    size_t length = 0;
    out[0] = '\0';
    for (int c = 0; c < LEDGER_CLASS_COUNT && length < size; c++) {
        int64_t bytes = l->peak_classes[c];
        if (bytes == 0) continue;
        length += (size_t)snprintf(out + length, size - length, "%s%s %s", length ? ", " : "",
                                   ledger_class_name((ledger_class)c), text_format_bytes(text, sizeof text, (double)bytes));
    }
}

static status describe(const run_config *c, const run_plan *plan, int engine, char *out, size_t size)
{
    ledger first, other;
    char table[320], most[32], least[32], more[32];
    int another = 0;
    TRY(ledger_plan_first(c, plan, engine, &first, &other, &another));
    out[0] = '\0';
    if (another == 0 || first.total.peak <= other.total.peak) return STATUS_OK;
    list_classes(&first, table, sizeof table);
    snprintf(out, size, "under %s rank 0 would hold %s in %s (%s), rank %d %s: %s more on rank 0", c->policies[engine],
             text_format_bytes(most, sizeof most, (double)first.total.peak), ledger_phase_name(first.total.peak_phase), table,
             another, text_format_bytes(least, sizeof least, (double)other.total.peak),
             text_format_bytes(more, sizeof more, (double)(first.total.peak - other.total.peak)));
    return STATUS_OK;
}

void plan_explain_memory(const run_config *c, const run_plan *plan, int engine)
{
    char text[600] = "";
    error_record failure;
    error_copy(&failure);
    error_clear();
    status rc = describe(c, plan, engine, text, sizeof text);
    error_clear();
    if (rc == STATUS_OK && text[0]) fail(failure.code, "%s; %s", failure.message, text);
    else error_adopt(&failure);
}
