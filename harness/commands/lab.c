/* harness lab: the teaching labs of labs/. */
#include "harness/commands/commands.h"

#include "harness/labs/grader.h"
#include "harness/run/output.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct lab_options {
    const char *student, *part, *hidden, *out;
    int format;
} lab_options;

#define FIELD(name) offsetof(lab_options, name)
static const option lab_option_list[] = {
    {"student", OPTION_TEXT, FIELD(student), .argument = "ID",
     .help = "identity from which the numbers of the questions are drawn, such as an e-mail address; check: "
             "replaces the one in answers.txt"},
    {"part", OPTION_TEXT, FIELD(part), .letter = 'k', .argument = "PART,...",
     .help = "check: only these parts"},
    {"format", OPTION_CHOICE, FIELD(format), .argument = "FORMAT", .initial = "text",
     .choices = report_formats,
     .help = "check: format of the report; autograder: gradescope or prairielearn"},
    {"out", OPTION_TEXT, FIELD(out), .letter = 'o', .argument = "FILE",
     .help = "check: write the report there, and the text to stdout; pack, autograder: the archive"},
    {"hidden", OPTION_TEXT, FIELD(hidden), .argument = "DIR",
     .help = "folder with more tests of the instructor, see labs/INSTRUCTOR.md"},
};
static const option_table lab_option_table = {"Labs", lab_option_list,
                                              sizeof lab_option_list / sizeof lab_option_list[0]};

static size_t bind_lab(void *options, option_binding *bindings)
{
    bindings[0] = (option_binding){.table = &lab_option_table, .storage = options};
    return 1;
}

/* Returns DIR, or folder N-name, or the present folder. */
static const char *folder_of(const lab *l, const char *word, bool must_exist, char *buffer, size_t size)
{
    if (word) return word;
    snprintf(buffer, size, "%d-%s", l->number, l->name);
    return must_exist && access(buffer, F_OK) != 0 ? "." : buffer;
}

static status no_lab(const command_line *line)
{
    return fail(STATUS_USAGE, "lab: %s: expected the number of a lab; see harness lab list", line->words[0]);
}

static status list(const command_line *line)
{
    (void)line;
    text_buffer out = {0};
    text_append(&out, "%3s  %-12s %6s  %-8s %-12s %s\n", "lab", "name", "points", "hours", "state", "what");
    for (int i = 0; i < lab_count; i++) {
        const lab *l = lab_table[i];
        char folder[64], path[128];
        folder_of(l, NULL, false, folder, sizeof folder);
        snprintf(path, sizeof path, "%s/%s", folder, l->source ? l->source : "answers.txt");
        bool started = access(path, F_OK) == 0;
        text_append(&out, "%3d  %-12s %6.4g  %-8s %-12s %s\n", l->number, l->name, lab_points(l), l->hours,
                    started ? "started" : "not started", l->title);
    }
    return output_text(&out);
}

static status start(const command_line *line)
{
    const lab_options *o = line->options;
    const lab *l;
    char buffer[64];
    text_buffer out = {0};
    if (line->word_count < 2) return no_lab(line);
    TRY(lab_find(line->words[1], &l));
    const char *folder =
        folder_of(l, line->word_count > 2 ? line->words[2] : NULL, false, buffer, sizeof buffer);
    TRY(grader_start(l, folder, o->student ? o->student : "student", &out));
    text_append(&out, "next: read %s/README.md, then harness lab check %d ", folder, l->number);
    text_append_shell_word(&out, folder);
    text_append(&out, "\n");
    return output_text(&out);
}

static status check(command_line *line)
{
    const lab_options *o = line->options;
    char buffer[64];
    grader *g = calloc(1, sizeof *g);
    if (line->word_count < 2) {
        free(g);
        return no_lab(line);
    }
    status rc = g ? lab_find(line->words[1], &g->lab) : fail(STATUS_SYSTEM, "no memory for the grader");
    if (rc == STATUS_OK && o->out) rc = output_probe(o->out);
    if (rc == STATUS_OK) {
        g->prints = o->format == 0 || (o->out && strcmp(o->out, "-") != 0);
        g->folder =
            folder_of(g->lab, line->word_count > 2 ? line->words[2] : NULL, true, buffer, sizeof buffer);
        g->folder_given = line->word_count > 2;
        g->hidden = o->hidden;
        g->only = o->part;
        snprintf(g->student, sizeof g->student, "%s", o->student ? o->student : "");
        rc = access(g->folder, R_OK | X_OK) == 0 ? grader_check(g) : fail_errno(STATUS_DATA, "%s", g->folder);
        if (rc == STATUS_OK && (o->format > 0 || o->out))
            rc = output_json(report_json(g, o->format), o->out ? o->out : "-");
        if (rc == STATUS_OK && grader_score(g) < grader_points(g)) line->exit_code = 1;
        grader_close(g);
    }
    free(g);
    return rc;
}

static status pack(const command_line *line)
{
    const lab_options *o = line->options;
    const char *folder = line->word_count > 1 ? line->words[1] : ".";
    char *real = realpath(folder, NULL), path[4096];
    if (!real) return fail_errno(STATUS_DATA, "%s", folder);
    snprintf(path, sizeof path, "%s.tar.gz", strrchr(real, '/') + 1);
    free(real);
    const char *target = o->out ? o->out : path;
    TRY(grader_pack(folder, target));
    text_buffer out = {0};
    text_append(&out, "%s\n", target);
    return output_text(&out);
}

static status autograder(const command_line *line)
{
    const lab_options *o = line->options;
    const lab *l;
    if (line->word_count < 2) return no_lab(line);
    TRY(lab_find(line->words[1], &l));
    if (o->format < 2)
        return fail(STATUS_USAGE, "--format: expected gradescope or prairielearn, got '%s'",
                    report_formats[o->format]);
    return grader_autograder(l, o->format, o->hidden, o->out ? o->out : "autograder.zip");
}

static status run_lab(command_line *line)
{
    static const char *const actions[] = {"list", "start", "check", "pack", "autograder"};
    int action = 0;
    if (line->word_count > 0)
        TRY(text_parse_choice("lab", line->words[0], actions, sizeof *actions, 5, &action));
    switch (action) {
    case 1:
        return start(line);
    case 2:
        return check(line);
    case 3:
        return pack(line);
    case 4:
        return autograder(line);
    default:
        return list(line);
    }
}

const command command_lab = {.name = "lab",
                             .usage =
                                 "list | start N [DIR] | check N [DIR] | pack [DIR] | autograder N [options]",
                             .summary = "teaching labs: start one, check it, hand it in",
                             .options_size = sizeof(lab_options),
                             .bind = bind_lab,
                             .most_words = 3,
                             .run = run_lab};
