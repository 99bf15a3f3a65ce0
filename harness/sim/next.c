#include "harness/sim/next.h"

#include "harness/options/option_effects.h"
#include "harness/report/report.h"
#include "harness/sim/virtual_measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Jobs for which a setting is tried. */
typedef enum scope {
    ALL,
    LOADED,           /* by PyTorch's loaders */
    SEVERAL_MACHINES, /* with several ranks each */
    MORE_BATCHES,     /* in a pipeline */
    FEWER_STAGES,     /* in a pipeline */
    SEQUENTIAL_STAGES,
    DEVICES_OF_RANKS,
    SCOPES
} scope;

/* Settings of the scheme come before fewer stages, and fewer stages before settings that change the
 * precision. A setting of a later group is tried only if none of the groups before it saves NEXT_LEAST. */
static const struct {
    int group, engine;
    scope scope;
    const char *words; /* "%d" stands for job_measure.numbers[scope]; a second one for job_measure.batches. */
} settings[] = {{0, ENGINE_RING, ALL, "--bucket-cap-mb 1"},
                {0, ENGINE_RING, ALL, "--bucket-cap-mb 5"},
                {0, ENGINE_RING, ALL, "--bucket-cap-mb 100"},
                {0, ENGINE_RING, ALL, "--policy ddp"},
                {0, ENGINE_RING, ALL, "--policy zero1"},
                {0, ENGINE_RING, LOADED, "--loader-workers %d"},
                {0, ENGINE_RING, SEVERAL_MACHINES, "--policy zero1:group=%d"},
                {0, ENGINE_RING, SEVERAL_MACHINES, "--policy zero3:group=%d"},
                {0, ENGINE_RING, SEVERAL_MACHINES, "--algorithm hierarchical"},
                {0, ENGINE_RING, MORE_BATCHES, "--accumulate %d"},
                {0, ENGINE_RING, SEQUENTIAL_STAGES, "--schedule 1f1b"},
                {0, ENGINE_RING, DEVICES_OF_RANKS, "--stages-on ranks --gpus %d --accumulate %d"},
                {0, ENGINE_PS, ALL, "--servers %d"},
                {0, ENGINE_PS, ALL, "--mode ring --policy ddp"},
                {0, ENGINE_PS, LOADED, "--loader-workers %d"},
                {1, ENGINE_RING, FEWER_STAGES, "--stages %d"},
                {2, ENGINE_RING, ALL, "--bf16"},
                {2, ENGINE_RING, ALL, "--comm-hook bf16"},
                {2, ENGINE_RING, ALL, "--mixed-precision"},
                {2, ENGINE_PS, ALL, "--bf16"}};

typedef struct job_measure {
    double rate;         /* Samples per second. */
    int numbers[SCOPES]; /* 0 if the job is not in the scope. */
    int batches;         /* Micro-batches of a pipeline with a small bubble. */
} job_measure;

/* Finds the scopes of a job. */
static status find_scopes(const run_config *c, job_measure *out)
{
    int per_machine, gpus = (int)c->run.gpus, stages = (int)c->run.stages;
    bool devices = run_config_devices(c) > 1, pipeline = stages > 1 && !devices;
    sync_requirements needs;
    TRY(run_config_per_machine(c, &per_machine));
    TRY(run_config_requirements(c, (int)c->run.mode, gpus, &needs));
    out->numbers[ALL] = gpus;
    out->numbers[LOADED] = 2 * run_config_loader_workers(c, needs.whole_batch ? 1 : per_machine);
    out->numbers[SEVERAL_MACHINES] = per_machine >= 2 && per_machine < gpus ? per_machine : 0;
    out->numbers[MORE_BATCHES] = pipeline ? 2 * (int)c->run.accumulate : 0;
    out->numbers[FEWER_STAGES] = pipeline ? stages / 2 : 0;
    out->numbers[SEQUENTIAL_STAGES] = pipeline && c->run.schedule == PIPELINE_SEQUENTIAL;
    out->numbers[DEVICES_OF_RANKS] = devices ? gpus * stages : 0;
    out->batches = (int)fmax((double)c->run.accumulate, 4 * stages);
    return STATUS_OK;
}

/* Parses `words` [count] and then the words of `more`, which has no quotes. *all holds the words while the
 * configuration is used. */
static status parse(char *const *words, int count, char *more, run_config *config, char ***all)
{
    char *rest = NULL;
    int n = count;
    *all = calloc((size_t)count + strlen(more) / 2 + 1, sizeof **all);
    if (!*all) return fail(STATUS_SYSTEM, "no memory for a command line");
    memcpy(*all, words, (size_t)count * sizeof **all);
    for (char *w = strtok_r(more, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) (*all)[n++] = w;
    TRY(run_config_init(config));
    return run_config_parse(config, n, *all);
}

/* Runs a few steps of the job of `engine`. If `setting` is not "", fails if `harness run` would refuse it
 * after the user's words. */
static status measure(char *const *words, int count, int engine, const char *setting, job_measure *out)
{
    const virtual_variant variant = {.by_symmetry = true, .may_be_one_machine = true};
    char text[96], own[64], **all = NULL, **as_given = NULL;
    run_plan plan = {0};
    run_job job = {0};
    status rc = STATUS_OK;
    run_config *config = calloc(1, sizeof *config);
    if (!config) return fail(STATUS_SYSTEM, "no memory for a configuration");
    snprintf(own, sizeof own, "%s", setting);
    snprintf(text, sizeof text, "--mode %s %s", engine_table[engine]->name, setting);
    TRY_GOTO(rc, parse(words, count, own, config, &as_given), done);
    TRY_GOTO(rc, option_effects_check_engines(config), done);
    TRY_GOTO(rc, parse(words, count, text, config, &all), done);
    config->run.epochs = 0;
    config->run.warmup = config->run.mode == ENGINE_RING ? VIRTUAL_WARMUP : VIRTUAL_FREE_WARMUP;
    config->run.steps = config->run.mode == ENGINE_RING ? VIRTUAL_STEPS : VIRTUAL_FREE_STEPS;
    /* If ranks are alike, one machine stands for all. */
    bool alike = config->run.mode == ENGINE_RING && config->run.stages == 1 && !config->shared.slow &&
                 config->run.jitter == 0;
    if (!alike && config->run.gpus > NEXT_RANKS) TRY_GOTO(rc, STATUS_AGAIN, done);
    TRY_GOTO(rc, find_scopes(config, out), done);
    TRY_GOTO(rc, run_plan_make(config, &plan), done);
    TRY_GOTO(rc, virtual_run_job(config, &plan, config->run.mode, &variant, &job, NULL, 0), done);
    out->rate = report_number_at(job.result, "throughput.samples_per_s");
done:
    json_decref(job.result);
    free(job.trace);
    run_plan_free(&plan);
    free(as_given);
    free(all);
    free(config);
    return rc;
}

status virtual_next(char *const *words, int count, int engine, const char *policy, json_t **out)
{
    char setting[64], best[64] = "";
    double most;
    int group = 0;
    job_measure job = {0}, other = {0};
    *out = json_null();
    if (measure(words, count, engine, "", &job) != STATUS_OK || !(job.rate > 0)) {
        error_clear();
        return STATUS_OK;
    }
    json_t *names = json_array();
    most = job.rate / (1 - NEXT_LEAST);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        int number = job.numbers[settings[i].scope];
        if (settings[i].engine != engine || (best[0] && settings[i].group > group) || number == 0) continue;
        snprintf(setting, sizeof setting, settings[i].words, number, job.batches);
        if (strncmp(setting, "--policy ", 9) == 0 && strcmp(setting + 9, policy) == 0) continue;
        status rc = measure(words, count, engine, setting, &other);
        error_clear();
        if (rc != STATUS_OK) continue;
        json_array_append_new(names, json_string(setting));
        if (!(other.rate >= most)) continue;
        most = other.rate;
        group = settings[i].group;
        snprintf(best, sizeof best, "%s", setting);
    }
    bool larger = strstr(best, "--accumulate") || strstr(best, "--stages");
    *out = json_pack("{s:s, s:s, s:i, s:o, s:o, s:o, s:o}", "engine", engine_table[engine]->name, "policy",
                     policy, "tried", (int)json_array_size(names), "settings", names, "options",
                     best[0] ? json_string(best) : json_null(), "shorter",
                     report_json_number(best[0] && !larger ? 1 - job.rate / most : NAN), "more",
                     report_json_number(larger ? most / job.rate - 1 : NAN));
    return STATUS_OK;
}
