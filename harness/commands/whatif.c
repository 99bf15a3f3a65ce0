/* harness whatif: what a model would take on machines that one does not have. */
#include "harness/commands/commands.h"

#include "common/net/link.h"
#include "harness/run/output.h"
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
    {"profile", OPTION_TEXT, FIELD(profile), .argument = "NAME", .initial = SIM_DEFAULT_PROFILE,
     .help = "the machines, see `harness profiles`"},
    {"gpus", OPTION_TEXT, FIELD(gpus), .argument = "LIST", .initial = "1,2,4,8",
     .help = "8,16,64 or 8,16,...,4096"},
    {"policy", OPTION_TEXT, FIELD(policy), .argument = "LIST", .initial = "ddp",
     .help = "of the ring or the parameter server, see `harness policies`"},
    {"batch", OPTION_INT, FIELD(batch), .argument = "N", .initial = "32", .low = 1, .high = 1e6,
     .help = "samples per rank"},
    {"nodes", OPTION_INT, FIELD(nodes), .argument = "N", .initial = "0", .high = 65536,
     .help = "machines [as many as the GPUs fill]"},
    {"link", OPTION_TEXT, FIELD(link), .argument = "RATE,LATENCY",
     .help = "of a network adapter instead of the profile's: 100Gbit/s,2us"},
    {"tf32", OPTION_FLAG, FIELD(tf32), .help = "matrix products and convolutions multiply in TF32"},
    {"bf16", OPTION_FLAG, FIELD(bf16),
     .help = "products multiply in bfloat16, and activations are stored in it"},
    {"jitter", OPTION_INT, FIELD(jitter), .argument = "SEED", .initial = "0", .high = 0x1p62,
     .help = "GPUs and kernels differ, drawn from SEED (0: all alike)"},
    {"json", OPTION_TEXT, FIELD(json), .argument = "FILE",
     .help = "write JSON there; -: to stdout, without the table"},
    {"csv", OPTION_TEXT, FIELD(csv), .argument = "FILE",
     .help = "write CSV there, a line per point; -: to stdout, without the table"},
};
static const option_table whatif_option_table = {"What if", option_list,
                                                 sizeof option_list / sizeof option_list[0]};

typedef struct whatif_setup {
    whatif_options options;
    model_options model;
    optimizer_options optimizer;
} whatif_setup;

static size_t bind_whatif(void *options, option_binding *bindings)
{
    whatif_setup *s = options;
    bindings[0] = (option_binding){.table = &whatif_option_table, .storage = &s->options};
    bindings[1] = (option_binding){.table = &model_option_table, .storage = &s->model};
    bindings[2] = (option_binding){.table = &optimizer_option_table, .storage = &s->optimizer};
    return 3;
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

static status run_whatif(command_line *line)
{
    whatif_setup *s = line->options;
    const whatif_options *o = &s->options;
    TRY(optimizer_resolve(&line->bindings[2]));
    whatif_question q = {.machine = {.profile = o->profile,
                                     .machines = (int)o->nodes,
                                     .precision = o->tf32   ? SIM_TF32
                                                  : o->bf16 ? SIM_BF16
                                                                    : SIM_FP32,
                                     .jitter_seed = o->jitter},
                         .model = s->model,
                         .optimizer = s->optimizer,
                         .batch = o->batch};
    if (o->tf32 && o->bf16)
        return fail(STATUS_USAGE, "--bf16: unexpected with --tf32");
    if (to_stdout(o->json) && to_stdout(o->csv))
        return fail(STATUS_USAGE, "--csv -: unexpected with --json -");
    TRY(parse_link(o->link, &q.machine));
    TRY(whatif_parse_gpus(o->gpus, &q));
    TRY(whatif_parse_policies(o->policy, &q));
    whatif_answer *answer = calloc(1, sizeof *answer);
    if (!answer) return fail(STATUS_SYSTEM, "no memory for the table");
    status rc = whatif_ask(&q, answer);
    text_buffer text = {0};
    if (rc == STATUS_OK && o->json) rc = output_json(whatif_json(&q, answer), o->json);
    if (rc == STATUS_OK && o->csv) {
        whatif_csv(&q, answer, &text);
        rc = output_file(&text, o->csv);
    }
    if (rc == STATUS_OK && !to_stdout(o->json) && !to_stdout(o->csv)) {
        whatif_text(&q, answer, &text);
        rc = output_text(&text);
    }
    free(answer);
    return rc;
}

const command command_whatif = {.name = "whatif",
                                .usage = "[options]",
                                .summary = "step time, efficiency and memory on machines that one does not have",
                                .options_size = sizeof(whatif_setup),
                                .bind = bind_whatif,
                                .run = run_whatif};
