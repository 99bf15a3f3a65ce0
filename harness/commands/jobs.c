#include "harness/commands/jobs.h"

#include "harness/launch/launch.h"
#include "harness/launch/processors.h"
#include "harness/report/report.h"
#include "harness/sim/estimate.h"
#include "harness/sim/virtual_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* Warns of a binding by OpenMP. OpenMP binds the first thread when the library is loaded, and all ranks
 * inherit the binding. */
static void warn_of_openmp(void)
{
    const char *bind = getenv("OMP_PROC_BIND");
    char own[64];
    processors p;
    if (!bind || strcasecmp(bind, "false") == 0) return;
    if (processors_open("", NULL, &p) == STATUS_OK && p.restricted)
        log_warn("OMP_PROC_BIND=%s has bound this program to processors %s, and so its ranks: unset it, and "
                 "take --bind core",
                 bind, processors_format(&p.allowed, own, sizeof own));
    error_clear();
    processors_close(&p);
}

static void note_images(const run_config *c, const run_plan *plan)
{
    const data_form *form = &dataset_describe(plan->set)->form;
    bool chosen = c->model.image || strcmp(c->data.data, "synthetic") != 0 || form->kind != DATA_IMAGE;
    if (run_config_is_on_cpu(c) && !chosen)
        log_info("images of %dx%d, the default on a CPU; --image N for others", (int)form->h, (int)form->w);
}

/* Says how long a run will take if it takes longer than a minute, and which number of steps takes a minute.
 */
static void note_duration(const run_config *c, const run_plan *plan)
{
    double seconds = run_config_is_on_cpu(c) ? run_estimate_s(c, plan) : NAN,
           steps = (double)(c->run.steps + c->run.warmup) * 60 / seconds - (double)c->run.warmup;
    bool long_run = seconds > 7200;
    char shorter[64] = "";
    if (!(seconds > 60)) return;
    if (!c->run.epochs && steps >= 1)
        snprintf(shorter, sizeof shorter, "; about a minute with --steps %.0f", steps);
    double units = round(seconds / (long_run ? 3600 : 60));
    log_info("about %.0f %s%s on this machine%s", units, long_run ? "hour" : "minute", units == 1 ? "" : "s",
             shorter);
}

static status run_here(run_config *c, run_plan *plan, char *const *words, run_jobs *jobs)
{
    bool cuda = strcmp(c->run.device, "cuda") == 0;
    TRY(run_config_check_gpus(c));
    TRY(run_plan_make(c, plan));
    if (c->repetition == 0 && !plan->alternate && c->run.isolated &&
        !options_given(&c->bindings[0], "isolated")) {
        /* The jobs need more memory than there is, so they cannot take turns. */
        c->run.isolated = false;
        run_plan_free(plan);
        TRY(run_plan_make(c, plan));
    }
    TRY(run_config_check_host(c, plan->largest_job_bytes));
    if (c->repetition == 0 && !c->run.quiet) {
        log_info("%s%s", cuda ? "" : "no CUDA device found: ", plan->hardware_note);
        note_images(c, plan);
        note_duration(c, plan);
    }
    if (c->repetition == 0) warn_of_openmp();
    stop_signals_block(NULL, NULL); /* until the end, so that a signal after the last step loses nothing */
    TRY(run_jobs_run(c, plan, words, jobs));
    if (jobs->outcome.cause[0]) log_error("%s", jobs->outcome.cause);
    return run_jobs_any_result(jobs) ? virtual_predict_jobs(c, plan, jobs->jobs) : STATUS_OK;
}

status command_build_result(const run_config *c, const run_plan *plan, const run_job *jobs,
                            char *const *words, int64_t started_at_s, json_t **out)
{
    status traced = c->run.trace ? trace_file_write(c, jobs) : STATUS_OK;
    status rc = run_result_build(c, plan, jobs, words, started_at_s, out);
    return rc != STATUS_OK ? rc : traced;
}

static status run_once(run_config *c, run_plan *plan, char *const *words, json_t **out, int *exit_code)
{
    run_jobs jobs = {0};
    int64_t started_at_s = (int64_t)time(NULL);
    status rc;
    *out = NULL;
    processor_time begin = processors_time();
    if (run_config_is_virtual(c)) {
        jobs.on_heap = true;
        rc = run_plan_make(c, plan);
        if (rc == STATUS_OK)
            rc = virtual_run(c, plan, jobs.jobs, plan->hardware_note, sizeof plan->hardware_note);
    } else {
        rc = run_here(c, plan, words, &jobs);
    }
    if (rc == STATUS_OK) *exit_code = jobs.outcome.exit_code;
    if (rc == STATUS_OK && run_jobs_any_result(&jobs))
        rc = command_build_result(c, plan, jobs.jobs, words + 2, started_at_s, out);
    if (*out && !run_config_is_virtual(c))
        json_object_set_new(json_object_get(*out, "host"), "other_programs_processors",
                            report_json_number(processors_of_others(&begin)));
    run_jobs_free(&jobs);
    return rc;
}

status command_run_repeated(run_config *c, run_plan *plan, char *const *words, json_t **out, int *exit_code)
{
    int64_t count = run_config_is_virtual(c) ? 1 : c->run.repeat;
    json_t *runs = json_array(), *result = NULL;
    status rc = STATUS_OK;
    for (c->repetition = 0; c->repetition < count && rc == STATUS_OK && *exit_code == 0; c->repetition++) {
        run_plan_free(plan);
        rc = run_once(c, plan, words, &result, exit_code);
        bool whole = *exit_code == 0 && !json_is_true(json_object_get(result, "stopped_early"));
        if (result && (whole || c->repetition == 0)) json_array_append(runs, result);
        json_decref(result);
    }
    *out = NULL;
    if (json_array_size(runs) > 1) {
        status repeated = run_result_repeat(runs, out);
        if (rc == STATUS_OK) rc = repeated;
    } else if (json_array_size(runs) == 1) {
        *out = json_incref(json_array_get(runs, 0));
    }
    int whole = (int)json_array_size(runs);
    if (count > 1 && whole < count && *out) log_info("the results are of %d of %d runs", whole, (int)count);
    json_decref(runs);
    if (rc == STATUS_OK && !*out && *exit_code == 0) rc = fail(STATUS_INTERNAL, "the run has no result");
    return rc;
}

status command_read_run_words(command_line *line, run_config *checked)
{
    char **words = line->argv + 2;
    int unexpected = 0;
    TRY(options_take(line->bindings, 1, line->argc, words, words, &line->argc));
    TRY(run_config_init(checked));
    TRY(options_parse(checked->bindings, BINDING_COUNT, line->argc, words, line->words, &unexpected));
    if (unexpected == 0) return run_config_name_cluster(checked);
    return fail(STATUS_USAGE, "%s: unexpected argument '%s'; see harness %s --help", line->argv[1],
                line->words[0], line->argv[1]);
}

status command_parse_job(const command_line *line, const char *policy, const char *device, const char *gpus,
                         run_config *out)
{
    int engine, own_count = gpus ? 8 : 6;
    TRY(engine_of_policy(policy, &engine));
    const char *const own[] = {
        "--mode", engine_table[engine]->name, "--policy", policy, "--device", device, "--gpus", gpus};
    memcpy(line->argv + 2 + line->argc, own, (size_t)own_count * sizeof *own);
    TRY(run_config_init(out));
    return run_config_parse(out, line->argc + own_count, line->argv + 2);
}

status command_refuse_options(const run_config *c, const char *const *names, const char *with)
{
    for (; *names; names++)
        for (int b = 0; b < BINDING_COUNT; b++)
            if (options_given(&c->bindings[b], *names))
                return fail(STATUS_USAGE, "--%s: unexpected with %s", *names, with);
    return STATUS_OK;
}

status command_refuse_unused(const run_config *c, const bool uses[ENGINE_COUNT])
{
    for (int e = 0; e < ENGINE_COUNT; e++) {
        const option_binding *b = &c->bindings[BINDING_COUNT - ENGINE_COUNT + e];
        for (size_t i = 0; i < b->table->count && !uses[e]; i++)
            if (options_given(b, b->table->options[i].name))
                return fail(STATUS_USAGE, "--%s: expected a policy of %s, got none",
                            b->table->options[i].name, engine_table[e]->name);
    }
    return STATUS_OK;
}
