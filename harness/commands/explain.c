/* harness explain: shows what a step of a PyTorch job spends its time on. */
#include "harness/commands/commands.h"

#include "harness/result/output.h"
#include "harness/workload/torch/trace.h"

static const option option_list[] = {
    {"json", OPTION_TEXT, 0, .argument = "FILE",
     .help = "also write the figures there (- for stdout, only these)"},
};

static status run_explain(command_line *line)
{
    const char *const *json = line->options;
    json_t *figures = NULL;
    if (line->word_count == 0)
        return fail(STATUS_USAGE, "explain: expected a trace of torch.profiler; see harness explain --help");
    TRY(output_check(&(output_name){"json", *json}, 1, line->words, line->word_count));
    if (*json) TRY(output_probe(*json));
    TRY(torch_explain(line->words, line->word_count, &figures, line->out));
    if (command_is_stdout(*json)) text_free(line->out);
    return output_json(figures, *json);
}

const command command_explain = {
    .name = "explain",
    .usage = "TRACE.json[.gz]... [--json FILE]",
    .summary = "show what a step of a trace of torch.profiler spends its time on",
    .options_size = sizeof(const char *),
    .table = {"Explain", option_list, 1},
    .about = "\nShows the parts of the typical step, its collectives, and faults that the trace\n"
             "proves: gradients exchanged in every micro-batch, gradients that become ready\n"
             "at the end, a GPU that waits for its host, FSDP with a single unit, a rank that\n"
             "is late, and a wait for data. Traces of several ranks, recorded in the same\n"
             "steps, tell the transfer of a collective from waiting for other ranks.\n"
             "harness import --help shows how to record a trace.\n\n",
    .most_words = TORCH_MOST_TRACES,
    .run = run_explain};
