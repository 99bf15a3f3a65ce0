/* harness compare: shows whether runs, sweeps or two builds of the program differ. */
#include "harness/commands/commands.h"

#include "common/base/log.h"
#include "harness/compare/compare.h"
#include "harness/compare/why.h"
#include "harness/result/output.h"
#include "harness/sweep/sweep.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct compare_options {
    bool builds, why;
    const char *json, *folder, *fail_above;
    int64_t rounds;
} compare_options;

#define FIELD(name) offsetof(compare_options, name)
static const option option_list[] = {
    {"builds", OPTION_FLAG, FIELD(builds), .help = "A and B are programs that run OPTIONS in turn"},
    {"why", OPTION_FLAG, FIELD(why),
     .help =
         "explain the difference by mechanism: A and B are results in virtual time, or workloads that run "
         "with OPTIONS"},
    {"repeat", OPTION_INT, FIELD(rounds), .argument = "N", .initial = "10", .low = 1,
     .high = SWEEP_MOST_ROUNDS, .help = "rounds of --builds; each round runs both programs"},
    {"out", OPTION_TEXT, FIELD(folder), .letter = 'o', .argument = "DIR",
     .help = "folder of the results of --builds; an interrupted comparison continues there"},
    {"fail-above", OPTION_TEXT, FIELD(fail_above), .argument = "P%",
     .help = "exit code 1 if B is shown to be slower and its median step takes more than P% longer"},
    {"json", OPTION_TEXT, FIELD(json), .argument = "FILE",
     .help = "write the comparison as JSON there (- for stdout, without the text)"},
};

/* Parses "5%" or "0.05" to 0.05. Sets *out to -1 if `text` is NULL. */
static status read_share(const char *text, double *out)
{
    char number[32];
    size_t length = text ? strlen(text) : 0;
    *out = -1;
    if (!text) return STATUS_OK;
    bool percent = length > 0 && text[length - 1] == '%';
    if (length >= sizeof number)
        return fail(STATUS_USAGE, "--fail-above: expected a share such as 5%%, got '%s'", text);
    snprintf(number, sizeof number, "%.*s", (int)(length - percent), text);
    TRY(text_parse_double("--fail-above", number, 0, 1000, out));
    if (percent) *out /= 100;
    return STATUS_OK;
}

static status check(const compare_options *o, const command_line *line)
{
    int words = line->word_count;
    if (o->why && (o->builds || o->fail_above))
        return fail(STATUS_USAGE, "--%s: unexpected with --why", o->builds ? "builds" : "fail-above");
    if (words < 2)
        return fail(STATUS_USAGE, "compare: expected two %s; see harness compare --help",
                    o->builds ? "programs" : "files or folders");
    if (o->builds && !o->folder)
        return fail(STATUS_USAGE, "compare: expected -o DIR, the folder for the results");
    if (!o->builds && !o->why && words > 2)
        return fail(STATUS_USAGE, "compare: expected --builds or --why before options of run");
    if (!o->builds && o->folder) return fail(STATUS_USAGE, "--out: expected --builds, got two results");
    if (!o->builds && options_given(line->bindings, "repeat"))
        return fail(STATUS_USAGE, "--repeat: expected --builds");
    return STATUS_OK;
}

static status run_why(command_line *line)
{
    static const char *const others[] = {"--workload", "--config", "--json", "--trace", "--report"};
    const compare_options *o = line->options;
    for (int w = 2; w < line->word_count; w++)
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
            if (strncmp(line->words[w], others[i], strlen(others[i])) == 0)
                return fail(STATUS_USAGE, "%s: unexpected after compare --why A B --", line->words[w]);
    json_t *explanation = NULL;
    TRY(why_explain(line->words[0], line->words[1], (char *const *)line->words + 2, line->word_count - 2,
                    &explanation));
    if (!command_is_stdout(o->json)) why_report(explanation, line->out);
    return output_json(explanation, o->json);
}

static status run_compare(command_line *line)
{
    const compare_options *o = line->options;
    const char **words = line->words;
    json_t *comparison = NULL;
    double above;
    int signal = 0;
    TRY(read_share(o->fail_above, &above));
    TRY(check(o, line));
    TRY(output_check(&(output_name){"json", o->json}, 1, words, 2));
    if (o->why) return run_why(line);
    TRY(o->builds ? compare_builds(words[0], words[1], words + 2, line->word_count - 2, (int)o->rounds,
                                   o->folder, &signal, &comparison)
                  : compare_paths(words[0], words[1], &comparison));
    if (signal) {
        log_warn("the comparison was interrupted: the same command goes on");
        line->exit_code = 128 + signal;
        return STATUS_OK;
    }
    if (!command_is_stdout(o->json)) compare_report(comparison, line->out);
    if (above >= 0 && compare_is_slower(comparison, above)) line->exit_code = 1;
    return output_json(comparison, o->json);
}

const command command_compare = {
    .name = "compare",
    .usage = "A B | --builds A B -o DIR -- OPTIONS | --why A B -- OPTIONS",
    .summary = "decide whether two results, sweeps or builds differ",
    .options_size = sizeof(compare_options),
    .table = {"Comparison", option_list, sizeof option_list / sizeof option_list[0]},
    .about = "\nA and B: a run's JSON, a folder of them, or a sweep's folder.\n",
    .notes = "\nexamples:\n"
             "  harness compare before.json after.json\n"
             "  harness compare --why before.json after.json\n"
             "  harness compare --builds old/harness new/harness -o builds -- --mode ring --gpus 2\n"
             "\nPolicies are compared by a sweep: harness sweep --vary policy=sync,ssp,async -o DIR\n",
    .most_words = INT_MAX,
    .run = run_compare};
