/* harness sweep: runs a grid of option values and shows the best point. */
#include "harness/commands/commands.h"

#include "common/base/log.h"
#include "harness/options/run_options.h"
#include "harness/result/output.h"
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
    /* Folder of the results. `vary` is not read, because take_words() parses --vary. */
    const char *folder, *vary;
    int64_t rounds;
    json_t *file_words; /* Options of `harness run` from the file of --config. */
    run_config checked; /* Receives the parsed options. The options are parsed only to check them. */
} sweep_command;

#define FIELD(name) offsetof(sweep_command, name)
static const option option_list[] = {
    {"vary", OPTION_TEXT, FIELD(vary), .argument = "NAME=V,V,...",
     .help = "an option of run and its values; several --vary make a grid; separate values that contain "
             "commas by ';'"},
    {"repeat", OPTION_INT, FIELD(rounds), .argument = "N", .initial = "1", .low = 1,
     .high = SWEEP_MOST_ROUNDS,
     .help = "runs per point; 8 and more allow a verdict; in virtual time all are identical"},
    {"out", OPTION_TEXT, FIELD(folder), .letter = 'o', .argument = "DIR",
     .help = "folder of the results; an interrupted sweep continues there"},
    {"dry-run", OPTION_FLAG, FIELD(dry_run), .help = "print the runs, and run nothing"},
};

/* Returns the value of option `name` if words[*at] is this option, else NULL. The value follows '=', or is
 * the next word. If it is the next word, increments *at. */
static const char *value_of(const char *name, char **words, int count, int *at)
{
    size_t length = strlen(name);
    if (strncmp(words[*at], name, length) != 0) return NULL;
    if (words[*at][length] == '=') return words[*at] + length + 1;
    return !words[*at][length] && *at + 1 < count ? words[++*at] : NULL;
}

static status vary_mode(sweep *s, const char *value)
{
    char axis[512];
    snprintf(axis, sizeof axis, "mode=%s", value);
    return sweep_vary(s, axis);
}

/* Adds the axes of the file's option "vary", a text or a list. Ignores an axis whose option is on the command
 * line. */
static status take_axes(sweep *s, const json_t *option)
{
    sweep given = *s;
    const json_t *texts = json_object_get(option, "texts");
    const char *text = json_string_value(json_object_get(option, "text"));
    for (size_t i = 0; text ? i == 0 : i < json_array_size(texts); i++) {
        const char *axis = text ? text : json_string_value(json_array_get(texts, i));
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(axis, "="), axis);
        if (!sweep_has_option(&given, name)) TRY(sweep_vary(s, axis));
    }
    return STATUS_OK;
}

/* Takes an option from the file of --config: sets an option of the sweep, or adds a word to the command of
 * all runs. Options on the command line take precedence. */
static status take_option(sweep_command *c, option_binding *own, const char *name, const json_t *option)
{
    option_binding all[1 + BINDING_COUNT] = {*own};
    const char *text = json_string_value(json_object_get(option, "text"));
    if (text && strcmp(name, "mode") == 0 && strchr(text, ','))
        return sweep_has_option(&c->sweep, name) ? STATUS_OK : vary_mode(&c->sweep, text);
    if (options_given(own, name)) return STATUS_OK;
    memcpy(all + 1, c->checked.bindings, sizeof c->checked.bindings);
    TRY(config_file_set(all, 1 + BINDING_COUNT, name, option));
    if (all[0].given != own->given) return STATUS_OK;
    json_array_append_new(c->file_words, json_sprintf("--%s=%s", name, text));
    return STATUS_OK;
}

/* Puts the words of the file before the words of the command line, which override them. */
static status add_file_words(sweep_command *c)
{
    sweep *s = &c->sweep;
    size_t count = json_array_size(c->file_words);
    const char **words = calloc(count + (size_t)s->word_count + 1, sizeof *words);
    if (!words) return fail(STATUS_SYSTEM, "no memory for the command line");
    for (size_t i = 0; i < count; i++) words[i] = json_string_value(json_array_get(c->file_words, i));
    memcpy(words + count, s->words, (size_t)s->word_count * sizeof *words);
    free(s->words);
    s->words = words;
    s->word_count += (int)count;
    return STATUS_OK;
}

static status read_file(sweep_command *c, option_binding *own, const char *path)
{
    const json_t *options;
    json_t *option;
    const char *name;
    int axes = c->sweep.axis_count;
    c->file_words = json_array();
    TRY(run_config_init(&c->checked));
    TRY(config_file_read(path, &options));
    if ((option = json_object_get(options, "vary")))
        TRY(config_file_failed(path, option, take_axes(&c->sweep, option)));
    json_object_foreach((json_t *)options, name, option)
    {
        if (sweep_axis_named(&c->sweep, name) >= axes)
            return config_file_failed(
                path, option, fail(STATUS_USAGE, "--vary: expected %s without an option %s", name, name));
        if (strcmp(name, "vary") != 0)
            TRY(config_file_failed(path, option, take_option(c, own, name, option)));
    }
    return add_file_words(c);
}

/* Takes the sweep's words from the command line: varied options, and the file of options. */
static status take_words(sweep *s, char **words, int count, const char **file)
{
    for (int i = 0; i < count; i++) {
        int at = i;
        const char *value = value_of("--mode", words, count, &at);
        if (value && strchr(value, ',')) {
            TRY(vary_mode(s, value));
            i = at;
        } else if ((value = value_of("--vary", words, count, &i))) {
            TRY(sweep_vary(s, value));
        } else if ((value = value_of("--config", words, count, &i))) {
            if (*file || !*value)
                return fail(STATUS_USAGE, "--config: expected one file, got %s", *file ? "two" : "''");
            *file = value;
        } else {
            s->words[s->word_count++] = words[i];
        }
    }
    return STATUS_OK;
}

/* Refuses an option that is also varied, in which case its value would be ignored. */
static status check_axes(sweep_command *c)
{
    sweep *s = &c->sweep;
    uint64_t given[BINDING_COUNT];
    option_binding *b = c->checked.bindings;
    const char **rest = calloc((size_t)s->word_count + 1, sizeof *rest);
    int count;
    if (!rest) return sweep_no_memory();
    TRY(run_config_init(&c->checked));
    status rc = options_take(b, BINDING_COUNT, s->word_count, (char *const *)s->words, (char **)rest, &count);
    free(rest);
    TRY(rc);
    for (int k = 0; k < BINDING_COUNT; k++) given[k] = b[k].given;
    for (int i = 0; i < s->axis_count; i++)
        for (int k = 0; k < BINDING_COUNT; k++) {
            b[k].given = 0;
            if (options_set(&b[k], 1, s->axes[i].name, s->axes[i].values[0]) != STATUS_OK) error_clear();
            if (b[k].given & given[k])
                return fail(STATUS_USAGE, "--vary: expected %s without an option --%s", s->axes[i].name,
                            s->axes[i].name);
        }
    return STATUS_OK;
}

static status read_words(sweep_command *c, const command_line *line)
{
    sweep *s = &c->sweep;
    option_binding *own = line->bindings;
    char **words = calloc((size_t)line->argc + 1, sizeof *words);
    const char *file = NULL;
    s->words = (const char **)words; /* The sweep owns this array, which now has fewer words. */
    if (!words) return fail(STATUS_SYSTEM, "no memory for the command line");
    TRY(take_words(s, line->argv + 2, line->argc, &file));
    TRY(options_take(own, 1, s->word_count, words, words, &s->word_count));
    TRY(check_axes(c));
    if (file) TRY(read_file(c, own, file));
    s->folder = c->folder;
    s->rounds = (int)c->rounds;
    if (s->axis_count == 0)
        return fail(STATUS_USAGE, "sweep: expected --vary NAME=VALUE,VALUE,...; see harness sweep --help");
    if (!s->folder) return fail(STATUS_USAGE, "sweep: expected -o DIR, the folder for the results");
    return STATUS_OK;
}

static status show_table(const sweep *s, const sweep_outcome *outcome, text_buffer *out)
{
    char path[PATH_MAX];
    json_t *table = NULL;
    TRY(sweep_table(s, outcome->failures, &table));
    sweep_report(table, out);
    snprintf(path, sizeof path, "%s/table.json", s->folder);
    return output_result(table, path);
}

static status run_points(const sweep *s, command_line *line)
{
    int lock;
    sweep_outcome outcome = {0};
    TRY(sweep_open_folder(s, &lock));
    status rc = sweep_run(s, &outcome);
    if (rc == STATUS_OK) rc = show_table(s, &outcome, line->out);
    if (rc == STATUS_OK && outcome.signal) {
        rc = output_text(line->out);
        log_warn("the sweep was interrupted: the same command goes on");
        line->exit_code = 128 + outcome.signal;
    }
    if (rc == STATUS_OK && outcome.failed > 0 && !line->exit_code) line->exit_code = 1;
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
        if (rc == STATUS_OK) rc = output_file(&text, "-"); /* output_file() does not break long lines. */
    } else if (rc == STATUS_OK) {
        rc = run_points(&c->sweep, line);
    }
    text_free(&text);
    sweep_free(&c->sweep);
    json_decref(c->file_words);
    return rc;
}

const command command_sweep = {
    .name = "sweep",
    .usage = "--vary NAME=V,V,... -o DIR [options of run]",
    .summary = "run over a grid of option values, and show which is best",
    .options_size = sizeof(sweep_command),
    .table = {"Sweep", option_list, sizeof option_list / sizeof option_list[0]},
    .notes = "  --mode ENGINE,...       as --vary mode=ENGINE,... [ps,ring]\n"
             "  --config FILE           options of sweep and run by their long names, TOML (FILE.toml)\n"
             "                          or JSON; vary is a text or a list of texts\n"
             "\nAll other options are options of harness run. Exit code 1: a run has failed.\n"
             "\nexample:\n  harness sweep --vary bucket-cap-mb=1,5,25,100 --vary gpus=2,4,8 --mode ring \\\n "
             "   --device sim:dgx1-v100 --model resnet50 -o buckets\n",
    .most_words = COMMAND_READS_ITSELF,
    .run = run_sweep};
