/* harness import: makes a workload from traces of torch.profiler. */
#include "harness/commands/commands.h"

#include "harness/result/output.h"
#include "harness/workload/torch/trace.h"

#include <stddef.h>

typedef struct import_options {
    const char *output;
    double scale;
} import_options;

#define FIELD(name) offsetof(import_options, name)
static const option option_list[] = {
    {"output", OPTION_TEXT, FIELD(output), .letter = 'o', .argument = "FILE", .initial = "job.json",
     .help = "write the workload there (- for stdout, without the table)"},
    {"scale", OPTION_DOUBLE, FIELD(scale), .argument = "FACTOR", .initial = "1", .low = 1e-6, .high = 1e6,
     .help = "multiply the times of kernels, e.g. by 0.5 for a GPU twice as fast; idle times stay"},
};

static status run_import(command_line *line)
{
    const import_options *o = line->options;
    workload w;
    if (line->word_count == 0)
        return fail(STATUS_USAGE, "import: expected a trace of torch.profiler; see harness import --help");
    TRY(output_check(&(output_name){"output", o->output}, 1, line->words, line->word_count));
    TRY(output_probe(o->output));
    status rc = torch_import(line->words, line->word_count, o->scale, &w, line->out);
    if (rc == STATUS_OK) rc = workload_check(&w, line->words[0]);
    if (rc == STATUS_OK) rc = output_json(workload_to_json(&w), o->output);
    workload_free(&w);
    TRY(rc);
    if (command_is_stdout(o->output))
        text_free(line->out);
    else
        text_append(line->out, "wrote %s\n", o->output);
    return STATUS_OK;
}

const command command_import = {
    .name = "import",
    .usage = "TRACE.json[.gz]... [-o job.json] [options]",
    .summary = "make a workload from a trace of torch.profiler",
    .options_size = sizeof(import_options),
    .table = {"Import", option_list, sizeof option_list / sizeof option_list[0]},
    .about = "\nReads traces that export_chrome_trace() of torch.profiler has written, also\n"
             "compressed by gzip. Several traces must be ranks of one job; the lowest rank's\n"
             "is imported. Record a few steps with record_shapes=True, which stores sizes of\n"
             "gradients, and call prof.step() after each optimizer.step(). One call while\n"
             "the profiler records adds the facts that a trace does not contain:\n\n"
             "  prof.add_metadata_json(\"harness\", json.dumps({\n"
             "    \"parameters\": [[n, list(p.shape), str(p.dtype)[6:], p.requires_grad]\n"
             "                   for n, p in model.named_parameters()],\n"
             "    \"buffers\": [[n, b.numel(), str(b.dtype)[6:]]\n"
             "                for n, b in model.named_buffers()],\n"
             "    \"optimizer\": type(optimizer).__name__, \"gradient_type\": \"float32\",\n"
             "    \"batch\": SAMPLES_PER_RANK_AND_STEP, \"step_ms\": STEP_WITHOUT_PROFILER,\n"
             "    \"peak_bytes\": torch.cuda.max_memory_allocated()}))\n\n",
    .most_words = TORCH_MOST_TRACES,
    .run = run_import};
