/* harness memory: shows the memory of each rank under every policy, and which GPUs have enough memory. The
 * rows are the same as in `harness run --plan`. */
#include "harness/commands/jobs.h"

#include "common/base/log.h"
#include "common/sim/profile.h"
#include "harness/options/option_effects.h"
#include "harness/plan/plan.h"
#include "harness/report/report.h"
#include "harness/result/output.h"

#include <stddef.h>
#include <stdio.h>

enum { GIB = 1 << 30 };

/* Profile of the machines if there is no --device. This profile has any number of machines, and GPUs with all
 * precisions. The memory of these GPUs is not a limit here. */
#define ANY_MACHINE "dgx-a100-80g"

typedef struct memory_command {
    const char *policy_names, *profile, *json;

    run_config config;  /* Configuration that all rows share, and later the configuration of one row. */
    command_line *line; /* Has only options of `harness run` after read_words(). */
    char device[4200];  /* value of --device */
    policy_list policies;
    char all[96];
} memory_command;

#define FIELD(name) offsetof(memory_command, name)
static const option option_list[] = {
    {"policy", OPTION_TEXT, FIELD(policy_names), .argument = "LIST",
     .help = "policies of both engines, see `harness policies`; with keys: ddp:order=ready,zero3:group=8 "
             "[the list below]"},
    {"profile", OPTION_TEXT, FIELD(profile), .argument = "NAME", .help = "short for --device sim:NAME"},
    {"json", OPTION_TEXT, FIELD(json), .argument = "FILE",
     .help = "write JSON there (- for stdout, without the table)"},
};

/* ---- planning ------------------------------------------------------------------------------------------ */

/* Adds the plan of a policy to `jobs`. Sets *workload for the first policy; the caller owns it. */
static status plan_policy(memory_command *m, const char *policy, json_t *jobs, json_t **workload)
{
    run_config *config = &m->config;
    run_plan plan = {0};
    json_t *planned = NULL;
    *config = (run_config){0};
    status rc = command_parse_job(m->line, policy, m->device, NULL, config);
    if (rc == STATUS_OK) rc = run_config_check_outputs(config, &(output_name){"json", m->json}, 1);
    if (rc == STATUS_OK && !*workload && !config->run.quiet) option_effects_note_plan(config);
    if (rc == STATUS_OK) rc = run_plan_make(config, &plan);
    if (rc == STATUS_OK) rc = ledger_plan_make(config, &plan, &planned);
    if (rc == STATUS_OK) {
        json_t *planned_jobs = json_object_get(planned, "jobs");
        json_object_set_new(json_array_get(planned_jobs, 0), "row", json_string(policy));
        json_array_extend(jobs, planned_jobs);
    }
    if (rc == STATUS_OK && !*workload) {
        json_object_del(planned, "jobs");
        *workload = json_incref(planned);
    }
    json_decref(planned);
    run_plan_free(&plan);
    return rc;
}

/* Lists the memory sizes of GPUs in ascending order. Each size has the names of the profiles whose GPU has
 * this size. */
static status list_gpus(json_t **out)
{
    char **names = NULL;
    size_t count = 0;
    TRY(sim_profile_list(&names, &count));
    *out = json_array();
    for (size_t i = 0; i < count; i++) {
        sim_profile *p = NULL;
        if (sim_profile_load(names[i], &p) != STATUS_OK) {
            log_warn("%s", error_message());
            error_clear();
            continue;
        }
        json_int_t bytes = (json_int_t)(sim_profile_at(p, SIM_GPU_MEMORY, 0) * GIB);
        size_t at = 0;
        while (report_number_at(json_array_get(*out, at), "memory_bytes") < (double)bytes) at++;
        if (report_number_at(json_array_get(*out, at), "memory_bytes") != (double)bytes)
            json_array_insert_new(*out, at, json_pack("{s:I, s:[]}", "memory_bytes", bytes, "profiles"));
        json_array_append_new(json_object_get(json_array_get(*out, at), "profiles"), json_string(names[i]));
        sim_profile_free(&p);
    }
    sim_profile_free_names(names, count);
    return STATUS_OK;
}

/* ---- the command --------------------------------------------------------------------------------------- */

/* Lists all policies that differ in memory. If there are several machines, adds zero3 with one sharding group
 * per machine. */
static status list_all(memory_command *m)
{
    run_config *c = &m->config;
    int each;
    size_t used = (size_t)snprintf(m->all, sizeof m->all, "dp,sync,ddp,zero1,zero2,zero3,fsdp");
    if (m->policy_names) return STATUS_OK;
    m->policy_names = m->all;
    c->run.device = m->device;
    if (!run_config_is_virtual(c)) return STATUS_OK;
    TRY(run_config_per_machine(c, &each));
    if (each > 1 && each < c->run.gpus)
        snprintf(m->all + used, sizeof m->all - used, ",zero3:group=%d", each);
    return STATUS_OK;
}

static status read_words(memory_command *m)
{
    static const char *const of_one_job[] = {"mode", "plan",       "trace", "trace-steps",
                                             "save", "rendezvous", NULL};
    TRY(command_read_run_words(m->line, &m->config));
    bool has_gpu = m->config.run.gpu, has_device = has_gpu || options_given(&m->config.bindings[0], "device");
    if (has_device && m->profile)
        return fail(STATUS_USAGE, "--%s: unexpected with --profile", has_gpu ? "gpu" : "device");
    snprintf(m->device, sizeof m->device, "%s%s", has_device ? "" : "sim:",
             has_device   ? m->config.run.device
             : m->profile ? m->profile
                          : ANY_MACHINE);
    TRY(command_refuse_options(&m->config, of_one_job,
                               "memory, which prints one row per policy of --policy"));
    TRY(list_all(m));
    TRY(policy_list_parse(m->policy_names, &m->policies));
    return command_refuse_unused(&m->config, m->policies.uses);
}

static status plan_all(memory_command *m, json_t **out)
{
    json_t *jobs = json_array(), *refused = json_array(), *gpus = NULL, *workload = NULL;
    error_record refusal = {0};
    status rc = list_gpus(&gpus);
    for (int i = 0; i < m->policies.count && rc == STATUS_OK; i++) {
        const char *p = m->policies.names[i];
        rc = plan_policy(m, p, jobs, &workload);
        if (rc != STATUS_USAGE && rc != STATUS_CONFIG) continue;
        /* The policy cannot run with the other options. */
        if (!refusal.code) error_copy(&refusal);
        json_array_append_new(refused, json_pack("{s:s, s:s}", "row", p, "reason", error_message()));
        error_clear();
        rc = STATUS_OK;
    }
    if (rc == STATUS_OK && !workload) rc = error_adopt(&refusal); /* No policy can run. */
    if (rc == STATUS_OK) {
        json_object_update_new(workload,
                               json_pack("{s:O, s:O, s:O}", "jobs", jobs, "refused", refused, "gpus", gpus));
        *out = json_incref(workload);
    }
    json_decref(workload);
    json_decref(jobs);
    json_decref(refused);
    json_decref(gpus);
    return rc;
}

static status run_memory(command_line *line)
{
    memory_command *m = line->options;
    json_t *result = NULL;
    m->line = line;
    TRY(read_words(m));
    const char *json = m->json;
    TRY(run_config_check_outputs(&m->config, &(output_name){"json", json}, 1));
    if (json) TRY(output_probe(json));
    TRY(plan_all(m, &result));
    if (!command_is_stdout(json)) report_memory_of_policies(result, line->out);
    status rc = output_result(result, json);
    if (rc != STATUS_OK)
        output_text(line->out); /* The table is printed even if the file could not be written. */
    return rc;
}

const command command_memory = {
    .name = "memory",
    .usage = "[options] [options of run]",
    .summary = "memory per rank under every policy, and the GPUs that it fits on",
    .options_size = sizeof(memory_command),
    .table = {"Memory", option_list, sizeof option_list / sizeof option_list[0]},
    .notes = "\nPolicies by default: dp, sync, ddp, zero1, zero2, zero3, fsdp; on several full\n"
             "machines also zero3 in groups of the GPUs of each machine. All other options\n"
             "are options of harness run, such as the model, the batch and --gpus. Without\n"
             "--device the ranks are virtual GPUs. The figures are bytes of the ledger,\n"
             "without the memory of libraries (a CUDA context takes 0.3 to 0.6 GiB).\n"
             "See harness run --help=all.\n",
    .most_words = COMMAND_READS_ITSELF,
    .run = run_memory};
