#include "harness/sim/next.h"

#include "harness/report/report.h"
#include "harness/sim/virtual_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Settings of the scheme come before those that change the precision. A setting of a later group is tried
 * only if none of the groups before it shortens the step by NEXT_LEAST. "%d" is the number of ranks. */
static const struct {
    int group, engine;
    const char *words;
} settings[] = {{0, ENGINE_RING, "--bucket-cap-mb 1"},
                {0, ENGINE_RING, "--bucket-cap-mb 5"},
                {0, ENGINE_RING, "--bucket-cap-mb 100"},
                {0, ENGINE_RING, "--policy ddp"},
                {0, ENGINE_RING, "--policy zero1"},
                {0, ENGINE_PS, "--servers %d"},
                {0, ENGINE_PS, "--mode ring --policy ddp"},
                {1, ENGINE_RING, "--bf16"},
                {1, ENGINE_PS, "--bf16"}};

/* Runs a few steps of the job with the words of `more`, which has no quotes. *rate is in samples per second.
 */
static status measure(char *const *words, int count, const char *more, double *rate)
{
    const virtual_variant variant = {.by_symmetry = true, .may_be_one_machine = true};
    char text[256], *rest = NULL;
    run_plan plan = {0};
    run_job job = {0};
    status rc = STATUS_OK;
    run_config *config = calloc(1, sizeof *config);
    char **all = calloc((size_t)count + sizeof text / 2, sizeof *all);
    int n = count;
    if (!config || !all) TRY_GOTO(rc, fail(STATUS_SYSTEM, "no memory for a configuration"), done);
    memcpy(all, words, (size_t)count * sizeof *all);
    snprintf(text, sizeof text, "%s", more);
    for (char *w = strtok_r(text, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) all[n++] = w;
    TRY_GOTO(rc, run_config_init(config), done);
    TRY_GOTO(rc, run_config_parse(config, n, all), done);
    TRY_GOTO(rc, run_plan_make(config, &plan), done);
    TRY_GOTO(rc, virtual_run_job(config, &plan, config->run.mode, &variant, &job, NULL, 0), done);
    *rate = report_number_at(job.result, "throughput.samples_per_s");
done:
    json_decref(job.result);
    free(job.trace);
    run_plan_free(&plan);
    free(all);
    free(config);
    return rc;
}

status virtual_next(char *const *words, int count, int engine, const char *policy, int gpus, json_t **out)
{
    char base[160], more[256], setting[64], best[64] = "";
    double rate, other, most = 0;
    int tried = 0, group = 0;
    *out = json_null();
    if (engine == ENGINE_PS && gpus > NEXT_SERVER_RANKS) return STATUS_OK;
    snprintf(base, sizeof base, "--mode %s --policy %s --warmup 2 --steps 3", engine_table[engine]->name,
             policy);
    if (measure(words, count, base, &rate) != STATUS_OK || !(rate > 0)) {
        error_clear();
        return STATUS_OK;
    }
    most = rate / (1 - NEXT_LEAST);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        if (settings[i].engine != engine || (best[0] && settings[i].group > group)) continue;
        snprintf(setting, sizeof setting, settings[i].words, gpus);
        snprintf(more, sizeof more, "%s %s", base, setting);
        status rc = measure(words, count, more, &other);
        error_clear();
        if (rc != STATUS_OK) continue;
        tried++;
        if (!(other >= most)) continue;
        most = other;
        group = settings[i].group;
        snprintf(best, sizeof best, "%s", setting);
    }
    *out = json_pack("{s:s, s:s, s:i, s:o, s:o}", "engine", engine_table[engine]->name, "policy", policy,
                     "tried", tried, "options", best[0] ? json_string(best) : json_null(), "shorter",
                     best[0] ? json_real(1 - rate / most) : json_null());
    return STATUS_OK;
}
