/* harness sweep: runs over a grid of option values, and which of them is best. */
#include "harness/commands/commands.h"

#include "common/base/log.h"
#include "harness/run/output.h"
#include "harness/sweep/sweep.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct sweep_command {
    sweep sweep;
    bool dry_run;
    const char *folder;
    int64_t rounds;
} sweep_command;

#define FIELD(name) offsetof(sweep_command, name)
static const option option_list[] = {
    {"repeat", OPTION_INT, FIELD(rounds), .argument = "N", .initial = "1", .low = 1,
     .high = SWEEP_MOST_ROUNDS, .help = "runs per point; 8 and more allow a verdict"},
    {"out", OPTION_TEXT, FIELD(folder), .letter = 'o', .argument = "DIR",
     .help = "results; a sweep that was interrupted goes on there"},
    {"dry-run", OPTION_FLAG, FIELD(dry_run), .help = "print what would be run"},
};
static const option_table sweep_option_table = {"Sweep", option_list,
                                                sizeof option_list / sizeof option_list[0]};

/* The value of the option `name` in words[*at], after '=' or in the next word, to which *at then moves; NULL:
 * it is another word. */
static const char *value_of(const char *name, char **words, int count, int *at)
{
    size_t length = strlen(name);
    if (strncmp(words[*at], name, length) != 0) return NULL;
    if (words[*at][length] == '=') return words[*at] + length + 1;
    return !words[*at][length] && *at + 1 < count ? words[++*at] : NULL;
}

/* "--mode ps,ring": a list of engines is an axis. */
static status vary_mode(sweep *s, const char *value)
{
    char axis[512];
    snprintf(axis, sizeof axis, "mode=%s", value);
    return sweep_vary(s, axis);
}

static status read_words(sweep_command *c, const command_line *line)
{
    sweep *s = &c->sweep;
    option_binding own = {.table = &sweep_option_table, .storage = c};
    char **words = calloc((size_t)line->argc + 1, sizeof *words);
    int count = 0;
    s->words = (const char **)words; /* the sweep's, with fewer words */
    if (!words) return fail(STATUS_SYSTEM, "no memory for the command line");
    TRY(options_defaults(&own, 1));
    TRY(options_take(&own, 1, line->argc, line->argv + 2, words, &count));
    for (int i = 0; i < count; i++) {
        int at = i;
        const char *value = value_of("--mode", words, count, &at);
        if (value && strchr(value, ',')) {
            TRY(vary_mode(s, value));
            i = at;
        } else if ((value = value_of("--vary", words, count, &i))) {
            TRY(sweep_vary(s, value));
        } else {
            s->words[s->word_count++] = words[i];
        }
    }
    s->folder = c->folder;
    s->rounds = (int)c->rounds;
    if (s->axis_count == 0)
        return fail(STATUS_USAGE, "sweep: expected --vary NAME=VALUE,VALUE,...; see harness sweep --help");
    if (!s->folder) return fail(STATUS_USAGE, "sweep: expected -o DIR, the folder for the results");
    return STATUS_OK;
}

static status show_table(const sweep *s, const sweep_outcome *outcome)
{
    char path[PATH_MAX];
    json_t *table = NULL;
    text_buffer text = {0};
    TRY(sweep_table(s, outcome->failures, &table));
    sweep_report(table, &text);
    snprintf(path, sizeof path, "%s/table.json", s->folder);
    status rc = output_json(table, path);
    if (rc == STATUS_OK) return output_text(&text);
    text_free(&text);
    return rc;
}

static status run_points(const sweep *s, int *exit_code)
{
    int lock;
    sweep_outcome outcome = {0};
    TRY(sweep_open_folder(s, &lock));
    status rc = sweep_run(s, &outcome);
    if (rc == STATUS_OK) rc = show_table(s, &outcome); /* after an interruption of what there is */
    if (rc == STATUS_OK && outcome.signal) {
        log_warn("the sweep was interrupted: the same command goes on");
        *exit_code = 128 + outcome.signal;
    }
    if (rc == STATUS_OK && outcome.failed > 0 && !*exit_code) *exit_code = 1;
    json_decref(outcome.failures);
    close(lock);
    return rc;
}

static status run_sweep(command_line *line)
{
    sweep_command *c = line->options;
    text_buffer text = {0};
    status rc = read_words(c, line);
    if (rc == STATUS_OK) rc = sweep_check(&c->sweep);
    if (rc == STATUS_OK && c->dry_run) {
        rc = sweep_list(&c->sweep, &text);
        if (rc == STATUS_OK) rc = output_file(&text, "-"); /* commands are not broken into lines */
    } else if (rc == STATUS_OK) {
        rc = run_points(&c->sweep, &line->exit_code);
    }
    text_free(&text);
    sweep_free(&c->sweep);
    return rc;
}

static void help_sweep(bool all, text_buffer *out)
{
    option_binding own = {.table = &sweep_option_table};
    text_append(out, "\n  --vary NAME=V,V,...  an option of run and its values; several make a grid. Values\n"
                     "                       that hold commas are separated by ';'\n"
                     "  --mode ENGINE,...    as --vary mode=ENGINE,... [ps,ring]\n");
    options_help(&own, 1, all, out);
    text_append(out, "\nAll other options are those of harness run. Exit code 1: a run has failed.\n"
                     "\nexample:\n"
                     "  harness sweep --vary bucket-cap-mb=1,5,25,100 --vary gpus=2,4,8 --mode ring \\\n"
                     "    --device sim:dgx1-v100 --model resnet50 -o buckets\n");
}

const command command_sweep = {.name = "sweep",
                               .usage = "--vary NAME=V,V,... -o DIR [options of run]",
                               .summary = "run over a grid of option values, and show which is best",
                               .options_size = sizeof(sweep_command),
                               .most_words = COMMAND_READS_ITSELF,
                               .run = run_sweep,
                               .help = help_sweep};
