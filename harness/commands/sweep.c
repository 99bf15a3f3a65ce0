/* harness sweep: runs over a grid of option values, and which of them is best. */
#include "harness/commands/commands.h"

#include "harness/run/output.h"
#include "harness/sweep/sweep.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct sweep_command {
    sweep sweep;
    bool dry_run;
} sweep_command;

/* Whether argv[*at] is the option `name` (or `letter`), with its value in the same word or in the next, to
 * which *at then moves. */
static status take(const char *name, const char *letter, int argc, char **argv, int *at, const char **value)
{
    const char *word = argv[*at];
    size_t length = strlen(name);
    *value = NULL;
    if (strncmp(word, name, length) == 0 && word[length] == '=') {
        *value = word + length + 1;
    } else if (strcmp(word, name) == 0 || (letter && strcmp(word, letter) == 0)) {
        if (*at + 1 == argc) return fail(STATUS_USAGE, "%s: expected a value", word);
        *value = argv[++*at];
    }
    return STATUS_OK;
}

/* "--mode ps,ring" and "--policy sync,ssp": a list of engines or policies is an axis. */
static status take_list(sweep *s, const char *name, const char *value)
{
    char axis[512];
    int length = snprintf(axis, sizeof axis, "%s=%s", name, value);
    if (length >= (int)sizeof axis) return fail(STATUS_USAGE, "--%s: expected fewer values", name);
    return sweep_vary(s, axis);
}

static status read_words(sweep_command *c, const command_line *line)
{
    sweep *s = &c->sweep;
    char **argv = line->argv + 2;
    s->rounds = 1;
    s->words = calloc((size_t)line->argc + 1, sizeof *s->words);
    if (!s->words) return fail(STATUS_SYSTEM, "no memory for the command line");
    for (int i = 0; i < line->argc; i++) {
        const char *value;
        int64_t rounds;
        TRY(take("--vary", NULL, line->argc, argv, &i, &value));
        if (value) {
            TRY(sweep_vary(s, value));
            continue;
        }
        TRY(take("--repeat", NULL, line->argc, argv, &i, &value));
        if (value) {
            TRY(text_parse_int("--repeat", value, 1, SWEEP_MOST_ROUNDS, &rounds));
            s->rounds = (int)rounds;
            continue;
        }
        TRY(take("--out", "-o", line->argc, argv, &i, &value));
        if (value) {
            s->folder = value;
            continue;
        }
        int before = i;
        TRY(take("--mode", NULL, line->argc, argv, &i, &value));
        if (value && strchr(value, ',')) {
            TRY(take_list(s, "mode", value));
            continue;
        }
        i = before;
        if (strcmp(argv[i], "--dry-run") == 0)
            c->dry_run = true;
        else
            s->words[s->word_count++] = argv[i];
    }
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
    if (rc == STATUS_OK && outcome.signal)
        *exit_code = 128 + outcome.signal;
    else if (rc == STATUS_OK)
        rc = show_table(s, &outcome);
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
        if (rc == STATUS_OK) rc = output_text(&text);
    } else if (rc == STATUS_OK) {
        rc = run_points(&c->sweep, &line->exit_code);
    }
    text_free(&text);
    sweep_free(&c->sweep);
    return rc;
}

static void help_sweep(bool all, text_buffer *out)
{
    (void)all;
    text_append(out, "\n  --vary NAME=V,V,...  an option of run and its values; several make a grid.\n"
                     "                       Values that hold commas are separated by ';'\n"
                     "  --mode ENGINE,...    as --vary mode=ENGINE,... [ps,ring]\n"
                     "  --repeat N           runs per point; 8 and more allow a verdict [1]\n"
                     "  -o, --out DIR        results; a sweep that was interrupted goes on there\n"
                     "  --dry-run            print what would be run\n"
                     "\nAll other options are those of harness run. Exit code 1: a run has failed.\n"
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
