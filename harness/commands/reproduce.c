/* harness reproduce TABLE: published tables, by virtual devices. */
#include "harness/commands/commands.h"

#include "harness/commands/output.h"
#include "harness/reproduce/reproduce.h"
#include "harness/run/run_result.h"

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
    {.name = "list", .type = OPTION_FLAG, .offset = FIELD(list), .help = "what can be reproduced"},
    {.name = "device",
     .argument = "sim:PROFILE",
     .type = OPTION_TEXT,
     .offset = FIELD(device),
     .help = "another profile than the rows' own, see `harness profiles`; torch-vs-apex: cuda, the GPUs here"},
    {.name = "calibration-only",
     .type = OPTION_FLAG,
     .offset = FIELD(calibration_only),
     .help = "only the rows that profiles are fitted to: held-out rows are not run"},
    {.name = "json",
     .argument = "FILE",
     .type = OPTION_TEXT,
     .offset = FIELD(json),
     .help = "write JSON there; -: to stdout, without the table"},
    {.name = "csv", .argument = "FILE", .type = OPTION_TEXT, .offset = FIELD(csv), .help = "write CSV there"},
    {.name = "markdown",
     .argument = "FILE",
     .type = OPTION_TEXT,
     .offset = FIELD(markdown),
     .help = "write Markdown there"},
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

static status render(const reproduction_report *r, const char *path,
                     void (*write)(const reproduction_report *r, text_buffer *out))
{
    text_buffer text = {0};
    if (!path) return STATUS_OK;
    write(r, &text);
    return output_file(&text, path);
}

static status print(const reproduction_report *r, const reproduce_options *o)
{
    text_buffer text = {0};
    TRY(render(r, o->csv, reproduction_csv));
    TRY(render(r, o->markdown, reproduction_markdown));
    if (o->json) TRY(output_json(reproduction_json(r), o->json));
    if (o->json && strcmp(o->json, "-") == 0) return STATUS_OK;
    reproduction_markdown(r, &text);
    return output_text(&text);
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

static status run_reproduce(int argc, char *argv[], int *exit_code)
{
    reproduce_options options;
    option_binding binding = {.table = &reproduce_option_table, .storage = &options};
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    int count = 0;
    *exit_code = 0;
    if (!words) return fail(STATUS_SYSTEM, "no memory for the command line");
    status rc = options_defaults(&binding, 1);
    if (rc == STATUS_OK) rc = options_parse(&binding, 1, argc, argv, words, &count);
    if (rc == STATUS_OK && options.list)
        rc = list();
    else if (rc == STATUS_OK && count != 1)
        rc = fail(STATUS_USAGE, "reproduce: expected one name, got %d; --list shows them", count);
    else if (rc == STATUS_OK)
        rc = reproduce_table(&options, words[0]);
    free(words);
    return rc;
}

static void help_reproduce(bool all, text_buffer *out)
{
    reproduce_options options;
    option_binding binding = {.table = &reproduce_option_table, .storage = &options};
    options_help(&binding, 1, all, out);
}

const command command_reproduce = {"reproduce", "TABLE [options]",
                                   "compare published tables with those of virtual devices", run_reproduce,
                                   help_reproduce};
