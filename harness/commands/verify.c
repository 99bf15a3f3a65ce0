/* harness verify FILE.json ...: compares this program's engines with golden trajectories. */
#include "harness/commands/commands.h"

#include "harness/options/run_options.h"
#include "harness/result/output.h"
#include "harness/verify/verify.h"
#include "ps/policy.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct verify_setup {
    const char *device;
    int mode;
    const char *policy;
    int64_t threads;
    bool tf32, bf16, cuda_graph;

    shared_options shared;
    _Alignas(16) char engines[ENGINE_COUNT][ENGINE_OPTIONS_SIZE];
    const char *policies[ENGINE_COUNT];
    bool loss_given; /* --dp-loss */
} verify_setup;

enum { MODE_AUTO, MODE_ENGINE /* First engine. */, MODE_BOTH = MODE_ENGINE + ENGINE_BOTH };
static const char *const mode_names[] = {"auto", ENGINE_LIST(ENGINE_MODE) "both", NULL};

#define FIELD(name) offsetof(verify_setup, name)
static const option verify_option_list[] = {
    {"device", OPTION_TEXT, FIELD(device), .argument = "NAME", .initial = "cpu",
     .help = "cpu, cuda (all ranks on one GPU), or reference (float64, within 1e-9)"},
    {"mode", OPTION_CHOICE, FIELD(mode), .initial = "auto", .choices = mode_names,
     .help = "auto: none for files of one rank, ps and ring for files of several"},
    {"policy", OPTION_TEXT, FIELD(policy), .argument = "P|ps=P,ring=P",
     .help = "how an engine behaves, see `harness policies`"},
    {"threads", OPTION_INT, FIELD(threads), .argument = "N", .initial = "1", .low = 1, .high = 1024,
     .help = "compute threads per rank"},
    {"tf32", OPTION_FLAG, FIELD(tf32),
     .help = "cuda: matrix products in TF32; expects losses within 1/512 and tensors within 1.25% of the l2 "
             "norm"},
    {"bf16", OPTION_FLAG, FIELD(bf16),
     .help = "matrix products in bfloat16; expects losses within 1/128 and tensors within 5% of the l2 norm"},
    {"cuda-graph", OPTION_FLAG, FIELD(cuda_graph),
     .help = "cuda: record the passes of the second step as CUDA graphs, and launch the graphs from the "
             "third step on"},
};

static size_t bind_verify(void *options, option_binding *bindings)
{
    verify_setup *s = options;
    bindings[0] = (option_binding){.table = &shared_option_table, .storage = &s->shared};
    for (int e = 0; e < ENGINE_COUNT; e++)
        bindings[1 + e] = (option_binding){.table = engine_table[e]->options, .storage = s->engines[e]};
    return 1 + ENGINE_COUNT;
}

static bool engine_takes_part(const verify_setup *s, const golden_file *f, int engine)
{
    if (s->mode == MODE_AUTO) return engine_in_both(engine) && (engine == ENGINE_NONE) == (f->world == 1);
    if (s->mode == MODE_BOTH) return engine_in_both(engine) && engine != ENGINE_NONE;
    return engine == s->mode - MODE_ENGINE;
}

/* Returns the policy to compare with. If the file has one loss over the targets of all ranks, returns the
 * policy dp, because only DataParallel computes this loss. A policy that the user named takes precedence.
 * Returns NULL if the engine has no policy dp. */
static const char *policy_for(const verify_setup *s, const golden_file *f, int engine)
{
    if (!f->global_loss || s->policy) return s->policies[engine];
    return engine == ENGINE_PS ? "dp" : NULL;
}

/* Sets DataParallel's loss. In files of token models without a global loss, each rank has a loss over its
 * targets, so each replica must compute a loss. Options of the user take precedence. */
static void fit_options(verify_setup *s, const golden_file *f)
{
    ps_options *ps = (ps_options *)s->engines[ENGINE_PS];
    bool of_replicas = f->world > 1 && f->model.sequence > 0 && !f->global_loss;
    if (!s->policy && !s->loss_given) ps->dp_loss = of_replicas ? 1 + PS_DP_LOSS_REPLICA : 0;
}

typedef struct verdict {
    text_buffer line;
    double worst; /* Largest deviation, divided by the limit for this deviation. */
    int unchecked, tensors, ran;
} verdict;

static status verify_engine(const verify_setup *s, const golden_file *f, int engine, verdict *v)
{
    const char *name = engine_table[engine]->name;
    comparison c;
    verify_config config = {.file = f,
                            .device = s->device,
                            .threads = (int)s->threads,
                            .precision = s->tf32   ? DEVICE_PRECISION_TF32
                                         : s->bf16 ? DEVICE_PRECISION_BF16
                                                   : DEVICE_PRECISION_F32,
                            .cuda_graph = s->cuda_graph,
                            .engine = engine_table[engine],
                            .engine_options = s->engines[engine],
                            .policy = policy_for(s, f, engine),
                            .divide = s->shared.divide};
    if (!config.policy) {
        text_append(&v->line,
                    "  %s not comparable: its loss is over the targets of all ranks, which takes ps=dp",
                    name);
        return STATUS_OK;
    }
    TRY(verify_run(&config, &c));
    text_append(&v->line, "  %s %.3g of the limit (%s)", name, c.share, c.what);
    if (c.share > 1) text_append(&v->line, ": found %.9g, expected %.9g", c.found, c.expected);
    if (c.share > v->worst) v->worst = c.share;
    v->unchecked += c.unchecked;
    v->tensors += c.tensors;
    v->ran++;
    return STATUS_OK;
}

static status print_verdict(const char *path, const verdict *v)
{
    text_buffer out = {0};
    const char *word = v->ran == 0 ? "skipped" : v->worst <= 1 ? "agrees" : "DISAGREES";
    text_append(&out, "%-9s %s%s", word, path, v->line.data);
    if (v->ran) text_append(&out, "; %d of %d tensors not checked", v->unchecked, v->tensors);
    text_append(&out, "\n");
    return isatty(STDOUT_FILENO) ? output_text(&out) : output_file(&out, "-");
}

static status verify_file(verify_setup *s, const char *path, bool *disagrees)
{
    golden_file *f = NULL;
    verdict v = {0};
    TRY(golden_open(path, &f));
    status rc = STATUS_OK;
    fit_options(s, f);
    for (int e = 0; e < ENGINE_COUNT && rc == STATUS_OK; e++)
        if (engine_takes_part(s, f, e)) rc = verify_engine(s, f, e, &v);
    golden_close(&f);
    if (rc == STATUS_OK)
        rc = print_verdict(path, &v);
    else
        error_context("%s", path);
    *disagrees = v.worst > 1;
    text_free(&v.line);
    return rc;
}

static status check_options(const verify_setup *s)
{
    bool cuda = strcmp(s->device, "cuda") == 0;
    if (s->tf32 && !cuda) return fail(STATUS_USAGE, "--tf32: expected --device cuda, got %s", s->device);
    if (s->cuda_graph && !cuda)
        return fail(STATUS_USAGE, "--cuda-graph: expected --device cuda, got %s", s->device);
    if (s->tf32 && s->bf16) return fail(STATUS_USAGE, "--bf16: unexpected with --tf32");
    return STATUS_OK;
}

static status run_verify(command_line *line)
{
    verify_setup *s = line->options;
    int disagreeing = 0;
    if (line->word_count == 0)
        return fail(STATUS_USAGE, "verify: expected one or more golden trajectories, got none");
    TRY(check_options(s));
    TRY(engine_parse_policies(s->policy, s->policies, NULL));
    s->loss_given = options_given(&line->bindings[2 + ENGINE_PS], "dp-loss");
    for (int i = 0; i < line->word_count; i++) {
        bool disagrees = false;
        TRY(verify_file(s, line->words[i], &disagrees));
        disagreeing += disagrees;
    }
    if (disagreeing) printf("%d of %d files disagree\n", disagreeing, line->word_count);
    if (fflush(stdout) != 0) return fail_errno(STATUS_CANNOT_CREATE, "stdout");
    line->exit_code = disagreeing ? status_exit_code(STATUS_MISMATCH) : 0;
    return STATUS_OK;
}

const command command_verify = {
    .name = "verify",
    .usage = "[options] FILE.json ...",
    .summary = "compare with golden trajectories computed by PyTorch",
    .options_size = sizeof(verify_setup),
    .table = {"Verify", verify_option_list, sizeof verify_option_list / sizeof verify_option_list[0]},
    .bind = bind_verify,
    .most_words = INT_MAX,
    .run = run_verify};
