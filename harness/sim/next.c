#include "harness/sim/next.h"

#include "harness/options/option_effects.h"
#include "harness/report/report.h"
#include "harness/sim/virtual_measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Settings of the scheme come before those that change the precision. A setting of a later group is tried
 * only if none of the groups before it shortens the step by NEXT_LEAST. "%d" is the number of ranks or, if
 * `of_machine` is true, that of a machine with several of them. */
static const struct {
    int group, engine;
    const char *words;
    bool of_machine;
} settings[] = {{0, ENGINE_RING, "--bucket-cap-mb 1", false},
                {0, ENGINE_RING, "--bucket-cap-mb 5", false},
                {0, ENGINE_RING, "--bucket-cap-mb 100", false},
                {0, ENGINE_RING, "--policy ddp", false},
                {0, ENGINE_RING, "--policy zero1", false},
                {0, ENGINE_RING, "--policy zero1:group=%d", true},
                {0, ENGINE_RING, "--policy zero3:group=%d", true},
                {0, ENGINE_RING, "--algorithm hierarchical", true},
                {0, ENGINE_PS, "--servers %d", false},
                {0, ENGINE_PS, "--mode ring --policy ddp", false},
                {1, ENGINE_RING, "--bf16", false},
                {1, ENGINE_RING, "--comm-hook bf16", false},
                {1, ENGINE_RING, "--mixed-precision", false},
                {1, ENGINE_PS, "--bf16", false}};

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
 * after the user's words. *rate is in samples per second. *per_machine is the number of ranks of a machine.
 */
static status measure(char *const *words, int count, int engine, const char *setting, double *rate,
                      int *per_machine)
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
    TRY_GOTO(rc, run_config_per_machine(config, per_machine), done);
    TRY_GOTO(rc, run_plan_make(config, &plan), done);
    TRY_GOTO(rc, virtual_run_job(config, &plan, config->run.mode, &variant, &job, NULL, 0), done);
    *rate = report_number_at(job.result, "throughput.samples_per_s");
done:
    json_decref(job.result);
    free(job.trace);
    run_plan_free(&plan);
    free(as_given);
    free(all);
    free(config);
    return rc;
}

status virtual_next(char *const *words, int count, int engine, const char *policy, int gpus, json_t **out)
{
    char setting[64], best[64] = "";
    double rate, other, most = 0;
    int per_machine, group = 0;
    *out = json_null();
    if (measure(words, count, engine, "", &rate, &per_machine) != STATUS_OK || !(rate > 0)) {
        error_clear();
        return STATUS_OK;
    }
    json_t *names = json_array();
    most = rate / (1 - NEXT_LEAST);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        int number = settings[i].of_machine ? per_machine : gpus, unused;
        if (settings[i].engine != engine || (best[0] && settings[i].group > group)) continue;
        if (settings[i].of_machine && (per_machine < 2 || per_machine >= gpus)) continue;
        snprintf(setting, sizeof setting, settings[i].words, number);
        if (strncmp(setting, "--policy ", 9) == 0 && strcmp(setting + 9, policy) == 0) continue;
        status rc = measure(words, count, engine, setting, &other, &unused);
        error_clear();
        if (rc != STATUS_OK) continue;
        json_array_append_new(names, json_string(setting));
        if (!(other >= most)) continue;
        most = other;
        group = settings[i].group;
        snprintf(best, sizeof best, "%s", setting);
    }
    *out = json_pack("{s:s, s:s, s:i, s:o, s:o, s:o}", "engine", engine_table[engine]->name, "policy", policy,
                     "tried", (int)json_array_size(names), "settings", names, "options",
                     best[0] ? json_string(best) : json_null(), "shorter",
                     best[0] ? json_real(1 - rate / most) : json_null());
    return STATUS_OK;
}
