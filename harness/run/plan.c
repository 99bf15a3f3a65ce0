#include "harness/run/plan.h"

#include "common/data/sampler.h"
#include "common/data/transform.h"
#include "harness/launch/processors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Of a process without tensors: program, libraries, generated code. */
enum { PROCESS_BYTES = 60 << 20 };

static status plan_steps(const run_config *c, run_plan *p)
{
    for (int e = 0; e < ENGINE_COUNT; e++) {
        if (!run_config_uses(c, e)) continue;
        sampler s;
        sampler_config config = {.mode = (sampler_mode)c->data.sampler,
                                 .samples = dataset_describe(p->set)->samples[DATA_TRAIN],
                                 .batch = c->data.batch,
                                 .world = run_config_world(c, e),
                                 .drop_last = c->data.drop_last};
        TRY(sampler_init(&s, &config));
        p->total_steps[e] = c->run.epochs ? c->run.epochs * s.steps / c->run.accumulate : c->run.steps + c->run.warmup;
    }
    return STATUS_OK;
}

static int64_t available_bytes(void)
{
    int64_t kib = 0;
    char line[160];
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && kib == 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %" SCNd64 " kB", &kib) != 1) kib = 0;
    if (file) fclose(file);
    return kib ? kib * 1024 : INT64_MAX;
}

static status plan_memory(const run_config *c, run_plan *p)
{
    nn_program *program = NULL;
    nn_program_config config = {.batch = c->data.batch, .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1};
    TRY(nn_program_compile(p->model, &config, &program));
    int64_t params = p->model->parameter_elements * dtype_size(DTYPE_F32);
    int copies = 3 + optimizer_state_count(&c->optimizer); /* parameters, gradients, buckets */
    p->rank_bytes = program->activation_bytes + copies * params + PROCESS_BYTES;
    nn_program_free(&program);
    for (int e = 0; e < ENGINE_COUNT; e++)
        if (run_config_uses(c, e)) {
            int64_t job_bytes = p->rank_bytes * run_config_world(c, e);
            if (job_bytes > p->largest_job_bytes) p->largest_job_bytes = job_bytes;
            p->needed_bytes += job_bytes;
        }
    p->alternate = p->needed_bytes < available_bytes() / 10 * 9;
    return STATUS_OK;
}

static void note_hardware(const run_config *c, run_plan *p)
{
    if (run_config_is_virtual(c)) {
        snprintf(p->hardware_note, sizeof p->hardware_note, "virtual time, profile %s", run_config_profile(c));
        return;
    }
    int engine = c->run.mode == ENGINE_NONE ? ENGINE_NONE : ENGINE_RING;
    int ranks = run_config_world(c, engine), threads = run_config_threads(c, engine), processors = c->processors;
    char on[80] = ", bound by what started them"; /* a rank sees only its own processors */
    if (c->bound != BOUND_BY_STARTER)
        snprintf(on, sizeof on, " %s %d processor%s%s", ranks * threads > processors ? "share" : "on", processors,
                 processors == 1 ? "" : "s", c->bound == BOUND_BY_HARNESS ? ", bound to cores" : "");
    snprintf(p->hardware_note, sizeof p->hardware_note, "%d %s rank%s of %d thread%s%s%s", ranks, c->run.device,
             ranks == 1 ? "" : "s", threads, threads == 1 ? "" : "s", on,
             p->alternate || c->run.mode != ENGINE_BOTH ? "" : "; memory does not hold all jobs: one after the other");
}

static status drop_tensor(void *context, const checkpoint_tensor *t, dtype type, const void *values)
{
    (void)context, (void)t, (void)type, (void)values;
    return STATUS_OK;
}

/* A checkpoint that does not fit fails here, once, instead of on every rank. */
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
    TRY(plan_steps(config, out));
    TRY(plan_memory(config, out));
    note_hardware(config, out);
    return STATUS_OK;
}

void run_plan_free(run_plan *plan)
{
    nn_model_free(&plan->model);
    dataset_close(&plan->set);
}
