/* harness whatif: what a model would take on machines that one does not have. */
#include "harness/commands/commands.h"

#include "common/net/link.h"
#include "harness/commands/output.h"
#include "harness/sim/whatif.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct whatif_options {
    const char *profile, *gpus, *policy, *link, *json, *csv;
    int64_t batch, nodes;
    bool tf32, bf16;
    uint64_t jitter;
} whatif_options;

#define FIELD(name) offsetof(whatif_options, name)
static const option option_list[] = {
    {.name = "profile",
     .argument = "NAME",
     .type = OPTION_TEXT,
     .offset = FIELD(profile),
     .initial = SIM_DEFAULT_PROFILE,
     .help = "the machines, see `harness profiles`"},
    {.name = "gpus",
     .argument = "LIST",
     .type = OPTION_TEXT,
     .offset = FIELD(gpus),
     .initial = "1,2,4,8",
     .help = "8,16,64 or 8,16,...,4096"},
    {.name = "policy",
     .argument = "LIST",
     .type = OPTION_TEXT,
     .offset = FIELD(policy),
     .initial = "ddp",
     .help = "of the ring or the parameter server, see `harness policies`"},
    {.name = "batch",
     .argument = "N",
     .type = OPTION_INT,
     .offset = FIELD(batch),
     .initial = "32",
     .low = 1,
     .high = 1e6,
     .help = "samples per rank"},
    {.name = "nodes",
     .argument = "N",
     .type = OPTION_INT,
     .offset = FIELD(nodes),
     .initial = "0",
     .high = 65536,
     .help = "machines [as many as the GPUs fill]"},
    {.name = "link",
     .argument = "RATE,LATENCY",
     .type = OPTION_TEXT,
     .offset = FIELD(link),
     .help = "of a network adapter instead of the profile's: 100Gbit/s,2us"},
    {.name = "tf32",
     .type = OPTION_FLAG,
     .offset = FIELD(tf32),
     .help = "matrix products and convolutions multiply in TF32"},
    {.name = "bf16",
     .type = OPTION_FLAG,
     .offset = FIELD(bf16),
     .help = "products multiply in bfloat16, and activations are stored in it"},
    {.name = "jitter",
     .argument = "SEED",
     .type = OPTION_INT,
     .offset = FIELD(jitter),
     .initial = "0",
     .high = 0x1p62,
     .help = "GPUs and kernels differ, drawn from SEED (0: all alike)"},
    {.name = "json",
     .argument = "FILE",
     .type = OPTION_TEXT,
     .offset = FIELD(json),
     .help = "write JSON there; -: to stdout, without the table"},
    {.name = "csv",
     .argument = "FILE",
     .type = OPTION_TEXT,
     .offset = FIELD(csv),
     .help = "write CSV there, a line a point; -: likewise"},
};
static const option_table whatif_option_table = {"What if", option_list,
                                                 sizeof option_list / sizeof option_list[0]};

enum { BINDINGS = 3 };

typedef struct bound {
    whatif_options options;
    model_options model;
    optimizer_options optimizer;
    option_binding bindings[BINDINGS];
} bound;

static status bind(bound *b)
{
    *b = (bound){0};
    b->bindings[0] = (option_binding){.table = &whatif_option_table, .storage = &b->options};
    b->bindings[1] = (option_binding){.table = &model_option_table, .storage = &b->model};
    b->bindings[2] = (option_binding){.table = &optimizer_option_table, .storage = &b->optimizer};
    return options_defaults(b->bindings, BINDINGS);
}

/* "100Gbit/s,2us", or the rate only. */
static status parse_link(const char *text, simulation_config *out)
{
    net_link link = {0};
    if (!text) return STATUS_OK;
    TRY(strchr(text, ',') ? net_link_parse(text, &link) : text_parse_rate("--link", text, &link.bytes_per_second));
    out->link_rate = (double)link.bytes_per_second / 1e9;
    out->link_latency = (double)link.latency_ns / 1e3;
    return STATUS_OK;
}

static bool to_stdout(const char *path)
{
    return path && strcmp(path, "-") == 0;
}

static status ask(bound *b)
{
    whatif_question q = {.machine = {.profile = b->options.profile,
                                     .machines = (int)b->options.nodes,
                                     .precision = b->options.tf32   ? SIM_TF32
                                                  : b->options.bf16 ? SIM_BF16
                                                                    : SIM_FP32,
                                     .jitter_seed = b->options.jitter},
                         .model = b->model,
                         .optimizer = b->optimizer,
                         .batch = b->options.batch};
    if (b->options.tf32 && b->options.bf16)
        return fail(STATUS_USAGE, "--bf16: unexpected with --tf32");
    if (to_stdout(b->options.json) && to_stdout(b->options.csv))
        return fail(STATUS_USAGE, "--csv -: unexpected with --json -");
    TRY(parse_link(b->options.link, &q.machine));
    TRY(whatif_parse_gpus(b->options.gpus, &q));
    TRY(whatif_parse_policies(b->options.policy, &q));
    whatif_answer *answer = calloc(1, sizeof *answer);
    if (!answer) return fail(STATUS_SYSTEM, "no memory for the table");
    status rc = whatif_ask(&q, answer);
    text_buffer text = {0};
    if (rc == STATUS_OK && b->options.json) rc = output_json(whatif_json(&q, answer), b->options.json);
    if (rc == STATUS_OK && b->options.csv) {
        whatif_csv(&q, answer, &text);
        rc = output_file(&text, b->options.csv);
    }
    if (rc == STATUS_OK && !to_stdout(b->options.json) && !to_stdout(b->options.csv)) {
        whatif_text(&q, answer, &text);
        rc = output_text(&text);
    }
    free(answer);
    return rc;
}

static status run_whatif(int argc, char *argv[], int *exit_code)
{
    bound b;
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    int count = 0;
    *exit_code = 0;
    if (!words) return fail(STATUS_SYSTEM, "no memory for the command line");
    status rc = bind(&b);
    if (rc == STATUS_OK) rc = options_parse(b.bindings, BINDINGS, argc, argv, words, &count);
    if (rc == STATUS_OK && count > 0)
        rc = fail(STATUS_USAGE, "whatif: unexpected argument '%s'; see --help", words[0]);
    if (rc == STATUS_OK) rc = optimizer_resolve(&b.bindings[2]);
    if (rc == STATUS_OK) rc = ask(&b);
    free(words);
    return rc;
}

static void help_whatif(bool all, text_buffer *out)
{
    bound b;
    if (bind(&b) == STATUS_OK) options_help(b.bindings, BINDINGS, all, out);
}

const command command_whatif = {"whatif", "[options]",
                                "step time, efficiency and memory on machines that one does not have",
                                run_whatif, help_whatif};
