#include "harness/sim/virtual_run.h"

#include "harness/launch/processors.h"
#include "harness/rank/rank.h"
#include "harness/report/report.h"
#include "harness/report/significance.h"
#include "harness/sim/calibrate.h"
#include "harness/sim/virtual_job.h"

#include <limits.h>
#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Runs dp without an interpreter. Adds samples/s and parts of a step to `job`, which ran with one. */
static status add_without_python(const virtual_job_config *with, json_t *job)
{
    virtual_variant variant = *with->variant;
    virtual_job_config without = *with;
    run_job other;
    variant.without_python = true;
    variant.step = NULL;
    variant.progress = NULL;
    variant.prints = false;
    without.variant = &variant;
    without.traced = false;
    TRY(virtual_job_run(&without, &other, NULL, 0));
    json_object_set_new(job, "without_python",
                        json_pack("{s:O, s:O}", "samples_per_s",
                                  report_at(other.result, "throughput.samples_per_s"), "phases",
                                  json_object_get(other.result, "phases")));
    json_decref(other.result);
    free(other.trace);
    return STATUS_OK;
}

status virtual_run_job(const run_config *config, const run_plan *plan, int engine,
                       const virtual_variant *variant, run_job *job, char *note, size_t size)
{
    if (config->checkpoint.load || config->checkpoint.save)
        return fail(STATUS_CONFIG, "--%s: expected a device with tensors, got --device %s",
                    config->checkpoint.load ? "load" : "save", config->run.device);
    TRY(rank_trace_check(config, 0, plan->total_steps[engine], true));
    int64_t steps = plan->total_steps[engine] - config->run.warmup;
    virtual_job_config c = {.run = config,
                            .plan = plan,
                            .engine = engine,
                            .profile = run_config_profile(config),
                            .variant = variant,
                            .warmup = config->run.warmup,
                            .steps = steps > 0 ? steps : 0,
                            .traced = true};
    TRY(virtual_job_run(&c, job, note, size));
    bool python = config->run.dp_host == 1 && json_is_object(report_at(job->result, "dataparallel_memory"));
    return variant->splits_python && python ? add_without_python(&c, job->result) : STATUS_OK;
}

status virtual_run(const run_config *config, const run_plan *plan, run_job *jobs, char *note, size_t size)
{
    /* Virtual ranks have buffers that nobody touches. calloc() would clear, and so touch, memory that malloc
     * had asked for in advance. */
    mallopt(M_TOP_PAD, 0);
    run_progress progress = run_progress_begin(config, plan, NULL);
    const virtual_variant as_it_is = {
        .progress = config->run.quiet ? NULL : &progress, .prints = true, .splits_python = true};
    status rc = config->run.workload_out ? virtual_record(config, plan, config->run.workload_out) : STATUS_OK;
    for (int e = 0; e < ENGINE_COUNT && rc == STATUS_OK; e++)
        if (run_config_uses(config, e))
            rc = virtual_run_job(config, plan, e, &as_it_is, &jobs[e], note, size);
    run_progress_end(&progress);
    return rc;
}

/* ---- prediction of real runs ------------------------------------------------------------------ */

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
        double *values = calloc(n + 1, sizeof *values);
        if (!values) return fail(STATUS_SYSTEM, "no memory for the results");
        for (size_t i = 0; i < n; i++)
            values[i] = (double)llround(1e9 * json_number_value(json_array_get(steps, i)));
        if (n > 0) *ns += median_of(values, (int)n) / (double)count;
        free(values);
    }
    return STATUS_OK;
}

/* Compares the job with a few virtual steps on the machine of `profile`. */
static status add_prediction(const run_config *c, const run_plan *plan, int engine, const char *profile,
                             json_t *job)
{
    const virtual_variant as_it_is = {0};
    const virtual_job_config few_steps = {.run = c,
                                          .plan = plan,
                                          .engine = engine,
                                          .profile = profile,
                                          .variant = &as_it_is,
                                          .warmup = 2,
                                          .steps = 3};
    run_job virtual;
    double measured;
    status rc = virtual_job_run(&few_steps, &virtual, NULL, 0);
    /* The profile has too few devices, or virtual devices do not run the policy. */
    if (rc == STATUS_CONFIG) {
        error_clear();
        return STATUS_OK;
    }
    TRY(rc);
    double predicted = 1e9 * json_number_value(report_at(virtual.result, "step_time.median_s"));
    json_decref(virtual.result);
    TRY(measured_step(job, &measured));
    if (measured <= 0) return STATUS_OK;
    sim_profile *calibrated = NULL;
    TRY(sim_profile_load(profile, &calibrated));
    bool bound = sim_profile_has(calibrated, SIM_RANK_PROCESSORS);
    sim_profile_free(&calibrated);
    json_t *p = json_pack("{s:s, s:f, s:f, s:f, s:b}", "profile", profile, "step_median_s", predicted / 1e9,
                          "measured_s", measured / 1e9, "error", predicted / measured - 1, "other_binding",
                          (int)(bound != (c->bound != BOUND_BY_NONE)));
    json_object_set_new(job, "prediction", p);
    return STATUS_OK;
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
