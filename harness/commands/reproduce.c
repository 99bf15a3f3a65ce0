/* harness reproduce TABLE: published tables, by virtual devices. */
#include "harness/commands/commands.h"

#include "harness/report/report.h"
#include "harness/run/output.h"
#include "harness/reproduce/reproduce.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reproduce_options {
    bool list, calibration_only;
    const char *device, *json, *csv, *markdown;
} reproduce_options;

#define FIELD(name) offsetof(reproduce_options, name)
static const option option_list[] = {
    {"list", OPTION_FLAG, FIELD(list), .help = "what can be reproduced"},
    {"device", OPTION_TEXT, FIELD(device), .argument = "sim:PROFILE",
     .help =
         "another profile than the rows' own, see `harness profiles`; torch-vs-apex: cuda, the GPUs here"},
    {"calibration-only", OPTION_FLAG, FIELD(calibration_only),
     .help = "only the rows that profiles are fitted to: held-out rows are not run"},
    {"json", OPTION_TEXT, FIELD(json), .argument = "FILE",
     .help = "write JSON there; -: to stdout, without the table"},
    {"csv", OPTION_TEXT, FIELD(csv), .argument = "FILE", .help = "write CSV there"},
    {"markdown", OPTION_TEXT, FIELD(markdown), .argument = "FILE", .help = "write Markdown there"},
};
static const option_table reproduce_option_table = {"Reproduce", option_list,
                                                    sizeof option_list / sizeof option_list[0]};

static status list(void)
{
    text_buffer out = {0};
    for (int i = 0; i < reproduction_count; i++)
        text_append(&out, "%-16s %s\n", reproduction_table[i]->name, reproduction_table[i]->summary);
    return output_text(&out);
}

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

static status profile_of(const char *device, const char **out)
{
    *out = NULL;
    if (!device || strcmp(device, "sim") == 0) return STATUS_OK;
    if (strncmp(device, "sim:", 4) != 0 || !device[4])
        return fail(STATUS_USAGE,
                    "--device: expected sim:PROFILE, or cuda for torch-vs-apex, got '%s'",
                    device);
    *out = device + 4;
    return STATUS_OK;
}

/* Markdown to a file, or to stdout. */
static status print_table(const json_t *result, const char *path)
{
    text_buffer text = {0};
    report_reproduction(result, &text);
    return output_file(&text, path);
}

static status write_csv(const reproduction_report *r, const char *path)
{
    text_buffer text = {0};
    reproduction_csv(r, &text);
    return output_file(&text, path);
}

static status print(const reproduction_report *r, const reproduce_options *o)
{
    json_t *result = reproduction_json(r);
    bool only_json = o->json && strcmp(o->json, "-") == 0;
    if (!result) return fail(STATUS_SYSTEM, "no memory for the report");
    status rc = o->csv ? write_csv(r, o->csv) : STATUS_OK;
    if (rc == STATUS_OK && o->markdown) rc = print_table(result, o->markdown);
    if (rc == STATUS_OK && o->json) rc = output_json(json_incref(result), o->json);
    if (rc == STATUS_OK && !only_json) rc = print_table(result, "-");
    json_decref(result);
    return rc;
}

static status reproduce_table(const reproduce_options *o, const char *name)
{
    const reproduction *what = NULL;
    const char *profile = NULL;
    TRY(find(name, &what));
    bool cuda = o->device && strcmp(o->device, "cuda") == 0;
    if (cuda && what != &reproduce_torch_vs_apex)
        return fail(STATUS_USAGE, "--device: expected sim:PROFILE for %s, got cuda: only torch-vs-apex is measured",
                    what->name);
    if (cuda) what = &reproduce_torch_vs_apex_cuda;
    if (!cuda) TRY(profile_of(o->device, &profile));
    reproduction_report *report = calloc(1, sizeof *report);
    if (!report) return fail(STATUS_SYSTEM, "no memory for the report");
    status rc = reproduce(what, profile, o->calibration_only, report);
    if (rc == STATUS_OK) rc = print(report, o);
    free(report);
    return rc;
}

static size_t bind_reproduce(void *options, option_binding *bindings)
{
    *bindings = (option_binding){.table = &reproduce_option_table, .storage = options};
    return 1;
}

static status run_reproduce(command_line *line)
{
    const reproduce_options *o = line->options;
    if (o->list) return list();
    if (line->word_count == 1) return reproduce_table(o, line->words[0]);
    return fail(STATUS_USAGE, "reproduce: expected one name, got %d; --list shows them", line->word_count);
}

const command command_reproduce = {.name = "reproduce",
                                   .usage = "TABLE [options]",
                                   .summary = "compare published tables with those of virtual devices",
                                   .options_size = sizeof(reproduce_options),
                                   .bind = bind_reproduce,
                                   .most_words = INT_MAX,
                                   .run = run_reproduce};
