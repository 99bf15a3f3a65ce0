/* harness reproduce: runs published tables on virtual or real devices, or runs a result again. */
#include "harness/commands/commands.h"

#include "common/base/log.h"
#include "harness/commands/jobs.h"
#include "harness/compare/compare.h"
#include "harness/launch/launch.h"
#include "harness/report/report.h"
#include "harness/reproduce/reproduce.h"
#include "harness/result/output.h"
#include "harness/result/result_check.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct reproduce_options {
    bool list, calibration_only;
    const char *device, *link, *dp_host, *json, *csv, *markdown;
    int64_t repeat, draws;
    run_config config; /* Configuration of the run that is repeated. */
} reproduce_options;

#define FIELD(name) offsetof(reproduce_options, name)
static const option option_list[] = {
    {"list", OPTION_FLAG, FIELD(list), .help = "list the tables that can be reproduced"},
    {"device", OPTION_TEXT, FIELD(device), .argument = "sim:PROFILE",
     .help = "use this profile instead of the profiles of the rows, see `harness profiles`; torch-vs-apex: "
             "cuda for the GPUs of this machine, cpu for its processors"},
    {"link", OPTION_TEXT, FIELD(link), .argument = "RATE,LATENCY",
     .help = "--device cpu: emulated network between the ranks, as in `harness run --link` [4Gbit/s,50us]"},
    {"dp-host", OPTION_TEXT, FIELD(dp_host), .argument = "python|none",
     .help = "dp-vs-ddp: host of DataParallel's replicas, as in `harness run --dp-host` [python]"},
    {"calibration-only", OPTION_FLAG, FIELD(calibration_only),
     .help = "run only the rows that profiles are fitted to, not the held-out rows; --device cpu: only rows "
             "of 1 and 2 ranks"},
    {"draws", OPTION_INT, FIELD(draws), .argument = "N", .initial = "16", .high = SIM_DRAWS,
     .help = "draws of the constants from their ranges, which give the limits low and high (0 for no limits, "
             "in a 17th of the time)"},
    {"repeat", OPTION_INT, FIELD(repeat), .argument = "N", .low = 1, .high = REPRODUCTION_ROUNDS,
     .help = "FILE.json: run it N times; a verdict on real devices needs at least 5 runs on both sides [as "
             "often as recorded]; --device cpu: N rounds [3]"},
    {"json", OPTION_TEXT, FIELD(json), .argument = "FILE",
     .help = "write JSON there (- for stdout, without the table)"},
    {"csv", OPTION_TEXT, FIELD(csv), .argument = "FILE", .help = "write CSV there"},
    {"markdown", OPTION_TEXT, FIELD(markdown), .argument = "FILE", .help = "write Markdown there"},
};
_Static_assert(SIM_DRAWS == 16, "the initial value of --draws");

static status find(const char *name, const reproduction **out)
{
    enum { MOST = 8 };
    const char *names[MOST];
    int index;
    for (int i = 0; i < reproduction_count; i++) names[i] = reproduction_table[i]->name;
    TRY(text_parse_choice("reproduce", name, names, sizeof *names, (size_t)reproduction_count, &index));
    *out = reproduction_table[index];
    return STATUS_OK;
}

static status print(const reproduction_report *r, const reproduce_options *o, text_buffer *out)
{
    json_t *result = reproduction_json(r);
    text_buffer csv = {0}, markdown = {0};
    status rc = STATUS_OK;
    stop_signals_block(NULL, NULL); /* all outputs are written, or none */
    if (o->csv) {
        reproduction_csv(r, &csv);
        rc = output_file(&csv, o->csv);
    }
    if (rc == STATUS_OK && o->markdown) {
        report_reproduction(result, true, &markdown);
        rc = output_file(&markdown, o->markdown);
    }
    if (rc == STATUS_OK && o->json) rc = output_result(json_incref(result), o->json);
    if (!command_is_stdout(o->json)) report_reproduction(result, false, out);
    json_decref(result);
    return rc;
}

static status reproduce_table(const reproduce_options *o, const char *name, text_buffer *out)
{
    const reproduction *what = NULL;
    const char *device = o->device ? o->device : "sim", *profile = NULL;
    TRY(find(name, &what));
    bool cuda = strcmp(device, "cuda") == 0, cpu = strcmp(device, "cpu") == 0, measured = cuda || cpu;
    if (measured && what != &reproduce_torch_vs_apex)
        return fail(STATUS_USAGE,
                    "--device: expected sim:PROFILE for %s, got %s: only torch-vs-apex is measured",
                    what->name, device);
    if (measured && (o->draws != SIM_DRAWS || (cuda && o->calibration_only)))
        return fail(STATUS_USAGE, "--%s: expected --device sim:PROFILE, got %s",
                    o->draws != SIM_DRAWS ? "draws" : "calibration-only", device);
    if (o->link && !cpu) return fail(STATUS_USAGE, "--link: expected --device cpu, got %s", device);
    if (o->repeat && !cpu)
        return fail(STATUS_USAGE, "--repeat: expected the JSON of a run to be run again, or --device cpu");
    if (measured)
        what = cuda ? &reproduce_torch_vs_apex_cuda : &reproduce_torch_vs_apex_cpu;
    else if (strncmp(device, "sim:", 4) == 0 && device[4])
        profile = device + 4;
    else if (strcmp(device, "sim") != 0)
        return fail(STATUS_USAGE,
                    "--device: expected sim:PROFILE, or cuda or cpu for torch-vs-apex, got '%s'", device);
    reproduction_run run = {.profile = profile,
                            .dp_host = o->dp_host,
                            .calibration_only = o->calibration_only,
                            .draws = (int)o->draws,
                            .link = o->link ? o->link : "4Gbit/s,50us",
                            .rounds = o->repeat ? (int)o->repeat : 3};
    reproduction_report report = {0};
    status rc = reproduce(what, &run, &report);
    if (rc == STATUS_OK) rc = print(&report, o, out);
    reproduction_free(&report);
    return rc;
}

/* ---- a result ---------------------------------------------------------------------------------- */

/* Compares the final parameters with the parameters of the file, bit for bit. Returns null if the parameters
 * were not recorded. */
static json_t *compare_parameters(const json_t *before, const json_t *after)
{
    json_t *rows = json_array(), *a, *b;
    size_t i, j;
    json_array_foreach(json_object_get(before, "jobs"), i, a)
        json_array_foreach(json_object_get(after, "jobs"), j, b)
    {
        const json_t *mine = json_object_get(b, "parameter_hash"),
                     *recorded = json_object_get(a, "parameter_hash");
        if (!json_equal(json_object_get(a, "name"), json_object_get(b, "name"))) continue;
        bool known = json_is_string(mine) && json_is_string(recorded);
        json_array_append_new(rows,
                              json_pack("{s:O, s:o}", "name", json_object_get(a, "name"), "bit_identical",
                                        known ? json_boolean(json_equal(mine, recorded)) : json_null()));
    }
    return rows;
}

static status show_again(const reproduce_options *o, json_t *comparison, text_buffer *out)
{
    size_t i;
    json_t *row;
    if (o->json) TRY(output_json(json_incref(comparison), o->json));
    if (command_is_stdout(o->json)) return STATUS_OK;
    compare_report(comparison, out);
    json_array_foreach(json_object_get(comparison, "parameters"), i, row)
    {
        const json_t *same = json_object_get(row, "bit_identical");
        if (json_is_boolean(same))
            text_append(out, "%sparameters of %s at the end: %s\n", i ? "" : "\n",
                        report_text_at(row, "name"),
                        json_is_true(same) ? "bit-identical" : "different from the file");
    }
    return STATUS_OK;
}

/* Runs a result again. `words` are: harness run --config=FILE --repeat=N. */
static status run_again(run_config *c, const char *path, char *const *words, json_t **out, int *exit_code)
{
    run_plan plan = {0};
    int argc = 0;
    while (words[2 + argc]) argc++;
    TRY(run_config_init(c));
    TRY(run_config_parse(c, argc, words + 2));
    if (c->run.rendezvous) return fail(STATUS_CONFIG, "%s: expected a run whose ranks harness starts", path);
    status rc = command_run_repeated(c, &plan, words, out, exit_code);
    run_plan_free(&plan);
    return rc;
}

static status reproduce_result(reproduce_options *o, const char *path, command_line *line)
{
    char config[PATH_MAX + 16], repeat[40];
    json_t *before = NULL, *after = NULL, *comparison = NULL;
    if (o->device || o->link || o->csv || o->markdown || o->calibration_only || o->draws != SIM_DRAWS)
        return fail(STATUS_USAGE, "reproduce: expected only --repeat and --json with %s", path);
    if (o->json) TRY(output_probe(o->json));
    TRY(result_read(path, false, &before));
    snprintf(config, sizeof config, "--config=%s", path);
    snprintf(repeat, sizeof repeat, "--repeat=%lld", (long long)o->repeat);
    char *words[] = {(char *)"harness", (char *)"run", config, o->repeat ? repeat : NULL, NULL};
    status rc = json_array_size(json_object_get(before, "jobs")) > 0
                    ? run_again(&o->config, path, words, &after, &line->exit_code)
                    : fail(STATUS_DATA, "%s: expected the JSON of harness run", path);
    bool whole = after && !json_is_true(json_object_get(after, "stopped_early"));
    status compared = whole ? compare_results(path, before, after, &comparison) : STATUS_OK;
    if (compared == STATUS_OK && comparison) {
        json_object_set_new(comparison, "parameters", compare_parameters(before, after));
        compared = show_again(o, comparison, line->out);
    } else if (line->exit_code > 128) {
        log_warn("no run ended, so nothing is compared with %s", path);
    }
    if (rc == STATUS_OK) rc = compared;
    json_decref(before);
    json_decref(after);
    json_decref(comparison);
    return rc;
}

static bool is_file(const char *word)
{
    return strchr(word, '/') || (word[0] && text_ends_with(word + 1, ".json"));
}

static status run_reproduce(command_line *line)
{
    reproduce_options *o = line->options;
    const char *word = line->word_count == 1 ? line->words[0] : NULL;
    if (o->list && (line->word_count > 0 || (line->bindings->given & (line->bindings->given - 1))))
        return fail(STATUS_USAGE, "--list: expected no other option and no name");
    for (int i = 0; i < reproduction_count && o->list; i++)
        text_append(line->out, "%-16s %s\n", reproduction_table[i]->name, reproduction_table[i]->summary);
    if (o->list) return STATUS_OK;
    const output_name outputs[] = {{"json", o->json}, {"csv", o->csv}, {"markdown", o->markdown}};
    const char *inputs[] = {word, o->device && strncmp(o->device, "sim:", 4) == 0 ? o->device + 4 : NULL};
    TRY(output_check(outputs, 3, inputs, 2));
    if (word && is_file(word)) return reproduce_result(o, word, line);
    if (word) return reproduce_table(o, word, line->out);
    return fail(STATUS_USAGE, "reproduce: expected one name or file, got %d; --list shows the names",
                line->word_count);
}

const command command_reproduce = {
    .name = "reproduce",
    .usage = "TABLE | FILE.json [options]",
    .summary = "compare published tables with virtual devices; run a result again",
    .options_size = sizeof(reproduce_options),
    .table = {"Reproduce", option_list, sizeof option_list / sizeof option_list[0]},
    .most_words = INT_MAX,
    .run = run_reproduce};
