/* harness compare: one workload under several policies of one engine, one run after the other. */
#include "harness/commands/commands.h"

#include "harness/report/report.h"
#include "harness/run/job.h"
#include "harness/run/output.h"
#include "harness/run/run_result.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_POLICIES = 16, OWN_WORDS = 4 };
static const char option_name[] = "--policies";

typedef struct comparison_run {
    const char *policies[MOST_POLICIES]; /* parts of `names` */
    int policy_count;
    char names[512];
    char **words; /* harness run ... --mode ENGINE --policy P */
    int word_count;
    const char *json;
} comparison_run;

/* ---- the command line --------------------------------------------------------------------------- */

static status take_policies(comparison_run *c, const char *text)
{
    if (strlen(text) >= sizeof c->names)
        return fail(STATUS_USAGE, "%s: expected at most %zu characters, got %zu", option_name, sizeof c->names - 1, strlen(text));
    snprintf(c->names, sizeof c->names, "%s", text);
    for (char *name = strtok(c->names, ","); name; name = strtok(NULL, ",")) {
        if (c->policy_count == MOST_POLICIES)
            return fail(STATUS_USAGE, "%s: expected at most %d names", option_name, MOST_POLICIES);
        c->policies[c->policy_count++] = name;
    }
    return STATUS_OK;
}

/* The option of this command, and the words that are every run's. */
static status read_words(comparison_run *c, const command_line *line)
{
    int argc = line->argc;
    char **argv = line->argv + 2;
    size_t length = sizeof option_name - 1;
    c->words = calloc((size_t)argc + 7, sizeof *c->words);
    if (!c->words) return fail(STATUS_SYSTEM, "no memory for the command line");
    c->words[c->word_count++] = (char *)"harness";
    c->words[c->word_count++] = (char *)"run";
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], option_name) == 0 && i + 1 < argc)
            TRY(take_policies(c, argv[++i]));
        else if (strncmp(argv[i], option_name, length) == 0 && argv[i][length] == '=')
            TRY(take_policies(c, argv[i] + length + 1));
        else
            c->words[c->word_count++] = argv[i];
    }
    if (c->policy_count == 0) return take_policies(c, "sync,ssp,async");
    return STATUS_OK;
}

static status engine_of_policy(const char *policy, const char **out)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(policy, ":"), policy); /* keys follow */
    for (int e = 0; e < ENGINE_COUNT; e++)
        for (int i = 0; i < engine_table[e]->policy_count; i++)
            if (strcmp(engine_table[e]->policies[i].name, name) == 0) {
                *out = engine_table[e]->name;
                return STATUS_OK;
            }
    const char *unused[ENGINE_COUNT];
    return engine_parse_policies(name, unused, NULL); /* fails, and lists the policies */
}

/* ---- runs --------------------------------------------------------------------------------------- */

static status run_one(run_config *config, run_plan *plan, int argc, char *const *words, json_t **out,
                      int *exit_code)
{
    run_jobs jobs;
    int64_t started = (int64_t)time(NULL);
    TRY(run_plan_make(config, plan));
    TRY(run_jobs_run(config, plan, words, &jobs));
    status rc = STATUS_OK;
    *exit_code = jobs.exit_code;
    if (jobs.cause[0]) rc = fail(STATUS_PEER, "%s", jobs.cause);
    run_result_input input = {.config = config,
                              .plan = plan,
                              .jobs = jobs.jobs,
                              .argc = argc,
                              .argv = words + 2,
                              .started_at_s = started};
    if (rc == STATUS_OK && *exit_code == 0) rc = run_result_build(&input, out);
    run_jobs_free(&jobs);
    return rc;
}

/* The configuration of a policy's run, to be freed; the words are its command line. */
static status configure(comparison_run *c, const char *policy, run_config **out)
{
    const char *engine = "";
    TRY(engine_of_policy(policy, &engine));
    char *const own[OWN_WORDS] = {(char *)"--mode", (char *)engine, (char *)"--policy", (char *)policy};
    memcpy(c->words + c->word_count, own, sizeof own);
    *out = calloc(1, sizeof **out);
    if (!*out) return fail(STATUS_SYSTEM, "no memory for a configuration");
    TRY(run_config_init(*out));
    TRY(run_config_parse(*out, c->word_count + OWN_WORDS - 2, c->words + 2));
    c->json = (*out)->run.json;
    return STATUS_OK;
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

static status run_compare(command_line *line)
{
    comparison_run *c = line->options;
    json_t *runs = json_array();
    status rc = runs ? read_words(c, line) : fail(STATUS_SYSTEM, "no memory for the results");
    for (int i = 0; i < c->policy_count && rc == STATUS_OK; i++) rc = check_policy(c, c->policies[i]);
    if (rc == STATUS_OK && c->json) rc = output_probe(c->json);
    for (int i = 0; i < c->policy_count && rc == STATUS_OK && line->exit_code == 0; i++)
        rc = run_policy(c, c->policies[i], runs, &line->exit_code);
    if (rc == STATUS_OK && json_array_size(runs) > 0) rc = finish(c, runs);
    json_decref(runs);
    free(c->words);
    return rc;
}

static void help_compare(bool all, text_buffer *out)
{
    (void)all;
    text_append(out, "\n  --policies P,P,...  what to compare, see `harness policies` [sync,ssp,async]\n"
                     "\nAll other options are those of harness run, but --mode and --policy.\n");
}

const command command_compare = {.name = "compare",
                                 .usage = "[--policies P,P,...] [options of run]",
                                 .summary = "train under several policies, and show their loss against time",
                                 .options_size = sizeof(comparison_run),
                                 .most_words = COMMAND_READS_ITSELF,
                                 .run = run_compare,
                                 .help = help_compare};
