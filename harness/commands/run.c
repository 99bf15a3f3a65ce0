/* harness [run]: trains with both engines or one, and reports. */
#include "harness/commands/commands.h"

#include "common/net/rendezvous.h"
#include "harness/commands/jobs.h"
#include "harness/launch/environment.h"
#include "harness/launch/launch.h"
#include "harness/launch/processors.h"
#include "harness/options/option_effects.h"
#include "harness/plan/plan.h"
#include "harness/rank/rank.h"
#include "harness/report/report.h"
#include "harness/result/output.h"
#include "harness/result/run_result.h"
#include "harness/sim/next.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct run_command {
    run_config config;
    run_plan plan;
    command_line *line;
    int64_t started_at_s;
    int engine;
} run_command;

static status write_page(json_t *result, const char *path)
{
    json_t *results = json_pack("[O]", result);
    text_buffer page = {0};
    report_page(results, &page);
    json_decref(results);
    return output_file(&page, path);
}

/* Adds "next" to the result of a run in virtual time whose verdict is printed: a setting for the faster job.
 */
static status add_next(const run_command *c, json_t *result)
{
    const json_t *job = report_job(result, report_text_at(result, "verdict.faster"));
    int engine = c->config.run.mode;
    json_t *next;
    if (!run_config_is_virtual(&c->config) || engine == ENGINE_NONE || c->config.run.plan ||
        (engine == ENGINE_BOTH && !job))
        return STATUS_OK;
    if (job) TRY(engine_of_policy(report_text_at(job, "policy"), &engine));
    TRY(virtual_next(c->line->argv + 2, c->line->argc, engine, c->config.policies[engine], &next));
    json_object_set_new(result, "next", next);
    return STATUS_OK;
}

/* Writes the JSON and the page and prints the report, as the options ask. Takes over `result`. */
static status deliver(const run_command *c, json_t *result)
{
    const char *json = c->config.run.json;
    text_buffer text = {0};
    if (!command_is_stdout(json)) TRY(add_next(c, result));
    if (!command_is_stdout(json) && c->config.run.plan)
        report_plan(result, &text);
    else if (!command_is_stdout(json))
        report_run(result, c->config.run.verbose, &text);
    stop_signals_block(NULL, NULL); /* all outputs are written, or none */
    status drawn =
        c->config.run.report && !c->config.run.plan ? write_page(result, c->config.run.report) : STATUS_OK;
    status written = output_result(result, json);
    status printed = output_text(&text); /* The report is printed even if a file could not be written. */
    return written != STATUS_OK ? written : drawn != STATUS_OK ? drawn : printed;
}

/* ---- jobs -------------------------------------------------------------------------------------- */

/* Runs the jobs, or only plans them. */
static status run_and_report(run_command *c)
{
    command_line *line = c->line;
    json_t *result = NULL;
    if (c->config.run.plan) {
        TRY(run_plan_make(&c->config, &c->plan));
        TRY(ledger_plan_make(&c->config, &c->plan, &result));
        return deliver(c, result);
    }
    if (c->config.run.json) TRY(output_probe(c->config.run.json));
    if (c->config.run.report) TRY(output_probe(c->config.run.report));
    if (c->config.run.trace) TRY(output_probe(c->config.run.trace));
    status rc = command_run_repeated(&c->config, &c->plan, line->argv, &result, &line->exit_code);
    status delivered = result ? deliver(c, result) : STATUS_OK;
    return rc != STATUS_OK ? rc : delivered;
}

/* ---- a rank ------------------------------------------------------------------------------------ */

static status job_of(const run_config *c, const launch_environment *e, int *out)
{
    for (int i = 0; i < JOB_COUNT; i++) {
        bool mine = e->origin == LAUNCH_BY_HARNESS ? strcmp(e->job, job_name(i)) == 0
                                                   : c->run.mode != ENGINE_BOTH && run_config_uses(c, i);
        if (!mine) continue;
        *out = i;
        return STATUS_OK;
    }
    return fail(STATUS_USAGE,
                "--mode: expected none, ps or ring if another program starts the ranks, got both");
}

/* Reports on rank 0 if a job manager started the ranks. */
static status report_alone(void *context, const run_job *outcome)
{
    run_command *c = context;
    run_job jobs[JOB_COUNT] = {{0}};
    json_t *result = NULL;
    jobs[c->engine] = *outcome;
    TRY(run_plan_make(&c->config, &c->plan));
    status traced =
        command_build_result(&c->config, &c->plan, jobs, c->line->argv + 2, c->started_at_s, &result);
    status delivered = result ? deliver(c, result) : STATUS_OK;
    return traced != STATUS_OK ? traced : delivered;
}

/* Sets the number of servers in separate processes. Subtracts these servers and the remote stage from
 * place->world, because the launcher counts them as ranks. */
static status find_servers(const run_command *c, const launch_environment *e, rank_place *place)
{
    const run_config *config = &c->config;
    int engine = place->engine;
    TRY(engine_servers(engine, config->engine_options[engine], config->policies[engine], place->world,
                       &place->servers));
    if (run_config_starts_stage(config)) place->world--;
    if (place->servers == 0) return STATUS_OK;
    if (e->origin != LAUNCH_BY_HARNESS)
        return fail(STATUS_CONFIG,
                    "--server-placement: expected rank if another program starts the ranks, got own");
    place->world -= place->servers;
    return STATUS_OK;
}

static status run_server(const run_command *c, const rank_place *place)
{
    char prefix[48];
    snprintf(prefix, sizeof prefix, "%s server %d", engine_table[place->engine]->name,
             place->rank - place->world);
    log_set_prefix(prefix);
    return (run_config_starts_stage(&c->config) ? stage_server_run : server_run)(&c->config, place);
}

/* Binds a rank that a job manager started. Must run before there is a second thread. The launcher binds the
 * ranks that it starts. */
static status bind_rank(run_config *c, const launch_environment *e, int job)
{
    if (e->processors) c->processors = e->processors;
    if (e->origin != LAUNCH_BY_MANAGER) return STATUS_OK;
    bound_by by;
    TRY(bind_self((bind_mode)c->run.bind, (bind_group){e->local_world, run_config_threads(c, job)},
                  e->local_rank, &by));
    c->bound = (int)by;
    return STATUS_OK;
}

static status run_rank(run_command *c, const launch_environment *e)
{
    rank_place place = {.rank = e->rank,
                        .world = e->world,
                        .local_rank = e->local_rank,
                        .token = e->token,
                        .key = e->key[0] ? e->key : NULL,
                        .stage_key = e->stage_key[0] ? e->stage_key : NULL,
                        .rendezvous =
                            e->origin == LAUNCH_BY_HARNESS ? e->rendezvous : c->config.run.rendezvous,
                        .table = e->table,
                        .gradients_fd = run_jobs_gradients_fd(),
                        .has_launcher = e->origin == LAUNCH_BY_HARNESS,
                        .report = report_alone,
                        .report_context = c};
    run_job outcome;
    char prefix[48], address[64];
    if (e->several_hosts) {
        rendezvous_own_address(getenv("MASTER_ADDR"), address, sizeof address);
        place.host_address = address;
    }
    TRY(job_of(&c->config, e, &place.job));
    place.engine = c->engine = job_engine(place.job);
    TRY(bind_rank(&c->config, e, place.job));
    TRY(find_servers(c, e, &place));
    if (place.rank >= place.world) return run_server(c, &place);
    snprintf(prefix, sizeof prefix, "%s rank %d", job_name(place.job), place.rank);
    log_set_prefix(prefix);
    if (!place.has_launcher) TRY(stop_signals_open(e->table));
    status rc = rank_run(&c->config, &place, &outcome);
    if (rc == STATUS_OK && place.has_launcher) rc = run_jobs_deliver(&outcome);
    /* Under the launcher only rank 0 returns the error, after it has delivered the results. If another rank
     * returned the error, the launcher could end rank 0 before that. */
    if (rc == STATUS_OK && outcome.late.code && !(place.has_launcher && place.rank > 0)) {
        rc = error_adopt(&outcome.late);
        job_fail(place.table, place.rank, rc, error_message());
    }
    if (!place.has_launcher) {
        stop_signals_close();
        if (rc == STATUS_STOPPED) rc = STATUS_OK;
        if (job_stop_requested(e->table)) c->line->exit_code = 128 + job_stop_requested(e->table);
    }
    json_decref(outcome.result);
    free(outcome.params);
    free(outcome.trace);
    return rc;
}

/* ---- a remote stage that was started by hand ---- */

static status serve_stage(const run_command *c)
{
    char key[NET_KEY_TEXT] = "";
    TRY(launch_environment_key("HARNESS_KEY", key));
    rank_place place = {.job = ENGINE_RING,
                        .engine = ENGINE_RING,
                        .world = (int)c->config.run.gpus,
                        .stage_key = key[0] ? key : NULL};
    log_set_prefix("remote stage");
    return stage_server_run(&c->config, &place);
}

/* ---- launcher and ranks ------------------------------------------------------------------------- */

static status start(run_command *c)
{
    bool is_rank = launch_environment_is_rank() || launch_environment_is_of_node();
    signal(SIGPIPE, SIG_IGN); /* a closed stdout must not end the training */
    TRY(run_config_init(&c->config));
    c->config.may_be_started = true;
    TRY(run_config_parse(&c->config, c->line->argc, c->line->argv + 2));
    if (!is_rank) {
        TRY(option_effects_check_engines(&c->config));
        if (!c->config.run.quiet) options_notices(c->config.bindings, BINDING_COUNT);
    }
    log_set_level((log_level)c->config.run.log_level);
    if (!is_rank && !c->config.run.quiet) option_effects_note(&c->config);
    if (c->config.run.plan || run_config_is_virtual(&c->config)) return run_and_report(c);
    if (c->config.run.rendezvous || c->config.run.serve_stage || c->config.run.remote_stage)
        TRY(launch_environment_read_key_file());
    if (c->config.run.serve_stage) return serve_stage(c);
    if (!is_rank) TRY(run_node_check(&c->config));
    if (c->config.run.nnodes > 1 && !is_rank) return run_node(&c->config, c->line->argv, &c->line->exit_code);
    launch_environment e;
    if (c->config.run.rendezvous) TRY(rendezvous_check(c->config.run.rendezvous));
    TRY(launch_environment_open(c->config.run.rendezvous != NULL, &e));
    status rc = e.origin == LAUNCH_BY_HAND ? run_and_report(c) : run_rank(c, &e);
    if (e.origin == LAUNCH_BY_HARNESS) { /* The launcher prints the error once. */
        if (rc != STATUS_OK) job_fail(e.table, e.rank, rc, error_message());
        error_clear();
    }
    launch_environment_close(&e);
    return rc;
}

static status run_run(command_line *line)
{
    run_command *c = line->options;
    c->line = line;
    c->started_at_s = (int64_t)time(NULL);
    status rc = start(c);
    run_plan_free(&c->plan);
    return rc;
}

static void help_run(void *options, bool all, text_buffer *out)
{
    run_config *c = &((run_command *)options)->config;
    if (run_config_init(c) == STATUS_OK) options_help(c->bindings, BINDING_COUNT, all, out);
    text_append(out, all ? "\nA line with a colon is a key of the policy: --policy ring=ddp:order=ready.\n"
                         : "\nharness run --help=all lists every option and the keys of policies,\n"
                           "harness run --help=effects what each does under which engine and device.\n");
}

static void print_effects(void *options, text_buffer *out)
{
    run_config *c = &((run_command *)options)->config;
    if (run_config_init(c) == STATUS_OK) option_effects_text(c->bindings, BINDING_COUNT, out);
}

const command command_run = {
    .name = "run",
    .usage = "[options]",
    .summary = "train with none, ps and ring; report where time and memory went",
    .options_size = sizeof(run_command),
    .about = "\nexamples:\n"
             "  harness run --model resnet18 --gpus 2            # none, ps and ring compared\n"
             "  harness run --mode ring --model lenet --data fashion-mnist --epochs 2\n"
             "  harness run --mode ps --policy dp --device sim:dgx1-v100 --gpus 8\n",
    .most_words = COMMAND_READS_ITSELF,
    .run = run_run,
    .effects = print_effects,
    .help = help_run};
