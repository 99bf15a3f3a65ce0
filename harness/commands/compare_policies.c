/* One workload under several policies of one engine, one run after the other: `harness compare --policies`. */
#include "harness/commands/compare_policies.h"

#include "harness/commands/jobs.h"
#include "harness/report/report.h"
#include "harness/run/output.h"
#include "harness/run/run_result.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_POLICIES = 16, OWN_WORDS = 4 };

typedef struct compare_options {
    const char *policies;
} compare_options;

static const option option_list[] = {
    {"policies", OPTION_TEXT, offsetof(compare_options, policies), .argument = "P,P,...", .initial = "sync,ssp,async",
     .help = "what to compare, see `harness policies`"},
};
static const option_table compare_option_table = {"Compare", option_list, sizeof option_list / sizeof option_list[0]};

typedef struct comparison_run {
    compare_options options;
    const char *policies[MOST_POLICIES]; /* parts of `names` */
    int policy_count;
    bool uses[ENGINE_COUNT]; /* that one of them belongs to */
    char names[512];
    char **words; /* harness run ... --mode ENGINE --policy P */
    int word_count;
    const char *json;
} comparison_run;

/* ---- the command line --------------------------------------------------------------------------- */

static status split_policies(comparison_run *c)
{
    const char *text = c->options.policies;
    if (strlen(text) >= sizeof c->names)
        return fail(STATUS_USAGE, "--policies: expected at most %zu characters, got %zu", sizeof c->names - 1, strlen(text));
    snprintf(c->names, sizeof c->names, "%s", text);
    for (char *name = strtok(c->names, ","); name; name = strtok(NULL, ",")) {
        int engine;
        if (c->policy_count == MOST_POLICIES)
            return fail(STATUS_USAGE, "--policies: expected at most %d names", MOST_POLICIES);
        TRY(engine_of_policy(name, &engine));
        c->uses[engine] = true;
        c->policies[c->policy_count++] = name;
    }
    return c->policy_count ? STATUS_OK : fail(STATUS_USAGE, "--policies: expected a name, got none");
}

/* The option of this command, and the words that are every run's. */
static status read_words(comparison_run *c, const command_line *line)
{
    option_binding own = {.table = &compare_option_table, .storage = &c->options};
    c->words = calloc((size_t)line->argc + 2 + OWN_WORDS + 1, sizeof *c->words);
    if (!c->words) return fail(STATUS_SYSTEM, "no memory for the command line");
    c->words[0] = (char *)"harness";
    c->words[1] = (char *)"run";
    TRY(options_defaults(&own, 1));
    TRY(options_take(&own, 1, line->argc, line->argv + 2, c->words + 2, &c->word_count));
    c->word_count += 2;
    return split_policies(c);
}

/* ---- runs --------------------------------------------------------------------------------------- */

static status run_one(const run_config *config, run_plan *plan, int argc, char *const *words, json_t **out,
                      int *exit_code)
{
    run_jobs jobs;
    int64_t started = (int64_t)time(NULL);
    TRY(command_run_jobs(config, plan, words, &jobs));
    *exit_code = jobs.exit_code;
    run_result_input input = {.config = config,
                              .plan = plan,
                              .jobs = jobs.jobs,
                              .argc = argc,
                              .argv = words + 2,
                              .started_at_s = started};
    status rc = *exit_code == 0 ? run_result_build(&input, out) : STATUS_OK;
    run_jobs_free(&jobs);
    return rc;
}

/* The configuration of a policy's run, to be freed; the words are its command line. */
static status configure(comparison_run *c, const char *policy, run_config **out)
{
    int engine;
    TRY(engine_of_policy(policy, &engine));
    char *const own[OWN_WORDS] = {(char *)"--mode", (char *)engine_table[engine]->name, (char *)"--policy", (char *)policy};
    memcpy(c->words + c->word_count, own, sizeof own);
    *out = calloc(1, sizeof **out);
    if (!*out) return fail(STATUS_SYSTEM, "no memory for a configuration");
    TRY(run_config_init(*out));
    TRY(run_config_parse(*out, c->word_count + OWN_WORDS - 2, c->words + 2));
    c->json = (*out)->run.json;
    return STATUS_OK;
}

/* What one job has and several have not, and options of engines that none of the policies belongs to. */
static status refuse_other_options(const comparison_run *c)
{
    static const char *const names[] = {"mode", "policy", "plan", "trace", "trace-steps", "rendezvous", "save"};
    run_config *config = calloc(1, sizeof *config);
    const char **words = calloc((size_t)c->word_count + 1, sizeof *words);
    int engine, unused;
    status rc = config && words ? run_config_init(config) : fail(STATUS_SYSTEM, "no memory for a configuration");
    if (rc == STATUS_OK)
        rc = options_parse(config->bindings, BINDING_COUNT, c->word_count - 2, c->words + 2, words, &unused);
    for (size_t i = 0; i < sizeof names / sizeof names[0] && rc == STATUS_OK; i++)
        for (int b = 0; b < BINDING_COUNT && rc == STATUS_OK; b++)
            if (options_given(&config->bindings[b], names[i]))
                rc = fail(STATUS_USAGE, "--%s: unexpected with compare, whose runs are those of --policies", names[i]);
    const char *name = rc == STATUS_OK ? run_config_unused(config, c->uses, &engine) : NULL;
    if (name) rc = fail(STATUS_USAGE, "--%s: expected a policy of %s, got none", name, engine_table[engine]->name);
    free(words);
    free(config);
    return rc;
}

/* Before anything runs: a wrong word in the last policy would throw away what the others took. */
static status check_policy(comparison_run *c, const char *policy)
{
    run_config *config = NULL;
    status rc = configure(c, policy, &config);
    free(config);
    return rc;
}

static status run_policy(comparison_run *c, const char *policy, json_t *runs, int *exit_code)
{
    run_config *config = NULL;
    run_plan plan = {0};
    json_t *result = NULL;
    status rc = configure(c, policy, &config);
    if (rc == STATUS_OK) rc = run_one(config, &plan, c->word_count + OWN_WORDS - 2, c->words, &result, exit_code);
    if (result && json_array_append_new(runs, result) != 0)
        rc = fail(STATUS_SYSTEM, "no memory for the results");
    run_plan_free(&plan);
    free(config);
    return rc;
}

static status finish(const comparison_run *c, json_t *runs)
{
    text_buffer text = {0};
    bool only_json = c->json && strcmp(c->json, "-") == 0;
    if (c->json) TRY(output_json(json_pack("{s:i, s:O}", "schema_version", RESULT_SCHEMA_VERSION, "runs", runs), c->json));
    if (only_json) return STATUS_OK;
    report_compare(runs, &text);
    return output_text(&text);
}

status compare_policies(command_line *line)
{
    comparison_run own = {0}, *c = &own;
    json_t *runs = json_array();
    status rc = runs ? read_words(c, line) : fail(STATUS_SYSTEM, "no memory for the results");
    if (rc == STATUS_OK) rc = refuse_other_options(c);
    for (int i = 0; i < c->policy_count && rc == STATUS_OK; i++) rc = check_policy(c, c->policies[i]);
    if (rc == STATUS_OK && c->json) rc = output_probe(c->json);
    for (int i = 0; i < c->policy_count && rc == STATUS_OK && line->exit_code == 0; i++)
        rc = run_policy(c, c->policies[i], runs, &line->exit_code);
    if (rc == STATUS_OK && json_array_size(runs) > 0) rc = finish(c, runs);
    json_decref(runs);
    free(c->words);
    return rc;
}
