/* harness whatif: predicts a model's performance on other machines. Prints a table in which each row is a
 * job of `harness run`. */
#include "harness/commands/jobs.h"

#include "harness/options/option_effects.h"
#include "harness/result/output.h"
#include "harness/sim/whatif.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct whatif_setup {
    const char *profile, *gpus, *policy, *measured, *json, *csv;
    int64_t draws;
    int stack;
    bool why;

    run_config config; /* Options of all jobs, which are parsed only to check them. */
    /* Job of the first policy, in which note_effects() finds options without effect. It has the batch of a
     * recorded job. Refers to `device`. */
    run_config first;
    char device[4200];
} whatif_setup;

static const char *const stack_names[] = {"policy", "unknown", NULL};

#define FIELD(name) offsetof(whatif_setup, name)
static const option option_list[] = {
    {"profile", OPTION_TEXT, FIELD(profile), .argument = "NAME",
     .help = "profile of the machines, as in --device sim:NAME, see `harness profiles` [" SIM_DEFAULT_PROFILE
             "]"},
    {"gpus", OPTION_TEXT, FIELD(gpus), .alias = "nproc-per-node", .argument = "LIST", .initial = "1,2,4,8",
     .help = "numbers of GPUs, 8,16,64 or 8,16,...,4096"},
    {"policy", OPTION_TEXT, FIELD(policy), .argument = "LIST", .initial = "ddp",
     .help =
         "policies of the ring and the parameter server, see `harness policies`; with keys: "
         "ddp:order=ready,sync; all: dp, ddp, zero1, zero2, zero3, fsdp, and sync with a server per rank"},
    {"measured", OPTION_TEXT, FIELD(measured), .argument = "GPUS:RATE,...",
     .help = "measured samples/s: of one GPU, which replaces the profile's efficiencies, and of several "
             "under the "
             "first policy, what they lose beyond the model, as in 1:119.6,8:921.3"},
    {"stack", OPTION_CHOICE, FIELD(stack), .choices = stack_names, .initial = "policy",
     .help =
         "framework: as the policy says; or unknown: the ranges then reach from full overlap of exchange and "
         "backward pass to none, and contain what such a framework may lose for other reasons"},
    {"why", OPTION_FLAG, FIELD(why),
     .help =
         "divide exposed communication: within hosts and between them; and name the constant on which the "
         "range depends most"},
    {"draws", OPTION_INT, FIELD(draws), .argument = "N", .initial = "16", .high = SIM_DRAWS,
     .help = "number of draws of the profile's constants, for the ranges"},
    {"json", OPTION_TEXT, FIELD(json), .argument = "FILE",
     .help = "write JSON there (- for stdout, without the table)"},
    {"csv", OPTION_TEXT, FIELD(csv), .argument = "FILE",
     .help = "write CSV there, one line per point (- for stdout, without the table)"},
};

/* Parses the options of `harness run` once, to check the options that hold for all jobs. */
static status read_words(whatif_setup *s, command_line *line, whatif_question *q)
{
    static const char *const of_one_job[] = {"mode",        "plan",         "trace",  "trace-steps",
                                             "report",      "draw",         "repeat", "verbose",
                                             "print-steps", "print-shapes", NULL};
    run_config *c = &s->config;
    TRY(command_read_run_words(line, c));
    q->words = line->argv + 2;
    q->word_count = line->argc;
    q->has_length = options_given(&c->bindings[0], "steps") || options_given(&c->bindings[0], "epochs");
    q->draws = (int)s->draws;
    q->unknown_stack = s->stack;
    q->why = s->why;
    q->config = c;
    if (s->measured && options_given(&c->bindings[0], "efficiency"))
        return fail(STATUS_USAGE, "--efficiency: unexpected with --measured, which determines it");
    if (s->measured) TRY(whatif_parse_measured(s->measured, q));
    q->slow_rank = -1;
    for (const char *at = c->shared.slow; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (atoi(at) > q->slow_rank) q->slow_rank = atoi(at);
    return command_refuse_options(c, of_one_job, "whatif, which runs the jobs of --gpus and --policy");
}

static status find_profile(const whatif_setup *s, whatif_question *q)
{
    const run_config *c = &s->config;
    bool device = options_given(&c->bindings[0], "device") || c->run.gpu;
    q->profile = s->profile ? s->profile : SIM_DEFAULT_PROFILE;
    if (!device) return STATUS_OK;
    if (s->profile)
        return fail(STATUS_USAGE, "--%s: unexpected with --profile", c->run.gpu ? "gpu" : "device");
    if (!run_config_is_virtual(c))
        return fail(STATUS_USAGE, "--device: expected sim:PROFILE, got %s", c->run.device);
    q->profile = run_config_profile(c);
    return STATUS_OK;
}

/* Notes on stderr which options have no effect, as `harness run` does. Looks only at the job of the first
 * policy. */
static status note_effects(whatif_setup *s, const command_line *line, const whatif_question *q)
{
    char gpus[16];
    snprintf(s->device, sizeof s->device, "sim:%s", q->profile);
    snprintf(gpus, sizeof gpus, "%d", q->gpus[q->size_count - 1]);
    TRY(command_parse_job(line, q->policies.names[0], s->device, gpus, &s->first));
    if (!s->first.run.quiet) option_effects_note(&s->first);
    return STATUS_OK;
}

static status print(const whatif_setup *s, const whatif_question *q, const whatif_answer *answer,
                    text_buffer *out)
{
    text_buffer csv = {0};
    if (s->json) TRY(output_json(whatif_json(q, answer), s->json));
    if (s->csv) {
        whatif_csv(q, answer, &csv);
        TRY(output_file(&csv, s->csv));
    }
    if (!command_is_stdout(s->json) && !command_is_stdout(s->csv)) whatif_text(q, answer, out);
    return STATUS_OK;
}

static const char every_policy[] = "dp,ddp,zero1,zero2,zero3,fsdp,sync";

static status run_whatif(command_line *line)
{
    whatif_setup *s = line->options;
    whatif_question q = {0};
    TRY(read_words(s, line, &q));
    TRY(find_profile(s, &q));
    if (command_is_stdout(s->json) && command_is_stdout(s->csv))
        return fail(STATUS_USAGE, "--csv -: unexpected with --json -");
    TRY(whatif_parse_gpus(s->gpus, &q));
    q.server_per_rank = strcmp(s->policy, "all") == 0;
    TRY(policy_list_parse(q.server_per_rank ? every_policy : s->policy, &q.policies));
    q.measured_policy = q.server_per_rank ? "ddp" : q.policies.names[0];
    TRY(command_refuse_unused(&s->config, q.policies.uses));
    if (!s->config.run.quiet) options_notices(s->config.bindings, BINDING_COUNT);
    TRY(note_effects(s, line, &q));
    const output_name outputs[] = {{"json", s->json}, {"csv", s->csv}};
    TRY(run_config_check_outputs(&s->first, outputs, 2));
    if (q.one_rate > 0)
        q.step_ms = 1e3 * (double)(s->first.data.batch * s->first.run.accumulate) / q.one_rate;
    whatif_answer *answer = calloc(1, sizeof *answer);
    if (!answer) return fail(STATUS_SYSTEM, "no memory for the table");
    status rc = whatif_ask(&q, answer);
    if (rc == STATUS_OK) rc = print(s, &q, answer, line->out);
    whatif_answer_close(answer);
    free(answer);
    return rc;
}

const command command_whatif = {
    .name = "whatif",
    .usage = "[options] [options of run]",
    .summary = "step time, scaling and memory on machines that one does not have",
    .options_size = sizeof(whatif_setup),
    .table = {"What if", option_list, sizeof option_list / sizeof option_list[0]},
    .notes =
        "\nAll other options are options of harness run on a virtual device: --model,\n--batch, --nodes, "
        "--link RATE[,LATENCY] (of each network adapter), --adapters N,\n--oversubscription X, --gpu NAME "
        "with "
        "--per-host N, --nvlink or --topology FILE\n(machines without a profile), --tf32, --bf16, --fp16, "
        "--jitter, --slow,\n--optimizer, ...; see harness run --help=all. By default a table has --warmup "
        "2\n--steps 3, and 20 of both under ssp, async and with loaders.\n",
    .most_words = COMMAND_READS_ITSELF,
    .run = run_whatif};
