/* harness lab: the teaching labs of labs/. */
#include "harness/commands/commands.h"

#include "harness/labs/grader.h"
#include "harness/result/output.h"

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

/* Returns `word`, the DIR of the command line, if it is given. If not, returns the lab's folder N-name. If
 * N-name must exist and does not, returns the present folder. */
static const char *folder_of(const lab *l, const char *word, bool must_exist, char *buffer, size_t size)
{
    if (word) return word;
    snprintf(buffer, size, "%d-%s", l->number, l->name);
    return must_exist && access(buffer, F_OK) != 0 ? "." : buffer;
}

static status list(text_buffer *out)
{
    text_append(out, "%3s  %-12s %6s  %-8s %-12s %s\n", "lab", "name", "points", "hours", "state", "what");
    for (int i = 0; i < lab_count; i++) {
        const lab *l = &lab_table[i];
        char folder[64], path[128];
        double points = l->source ? LAB_COMPILE_POINTS : 0;
        for (const lab_part *part = l->parts; part->key; part++) points += part->points;
        folder_of(l, NULL, false, folder, sizeof folder);
        snprintf(path, sizeof path, "%s/%s", folder, l->source ? l->source : "answers.txt");
        bool started = access(path, F_OK) == 0;
        text_append(out, "%3d  %-12s %6.4g  %-8s %-12s %s\n", l->number, l->name, points, l->hours,
                    started ? "started" : "not started", l->title);
    }
    return STATUS_OK;
}

static status start(const lab *l, const char *word, const command_line *line)
{
    const lab_options *o = line->options;
    char buffer[64];
    const char *folder = folder_of(l, word, false, buffer, sizeof buffer);
    TRY(grader_start(l, folder, o->student ? o->student : "student", line->out));
    text_append(line->out, "next: read %s/README.md, then harness lab check %d ", folder, l->number);
    text_append_shell_word(line->out, folder);
    text_append(line->out, "\n");
    return STATUS_OK;
}

static status check(const lab *l, const char *word, command_line *line)
{
    const lab_options *o = line->options;
    char buffer[64];
    if (o->out) TRY(output_probe(o->out));
    grader *g = calloc(1, sizeof *g);
    if (!g) return fail(STATUS_SYSTEM, "no memory for the grader");
    g->lab = l;
    g->prints = o->format == 0 || (o->out && strcmp(o->out, "-") != 0);
    g->folder = folder_of(l, word, true, buffer, sizeof buffer);
    g->folder_given = word != NULL;
    g->hidden = o->hidden;
    g->only = o->part;
    snprintf(g->student, sizeof g->student, "%s", o->student ? o->student : "");
    status rc =
        access(g->folder, R_OK | X_OK) == 0 ? grader_check(g) : fail_errno(STATUS_DATA, "%s", g->folder);
    if (rc == STATUS_OK && (o->format > 0 || o->out))
        rc = output_json(report_json(g, o->format), o->out ? o->out : "-");
    if (rc == STATUS_OK && g->score < g->points) line->exit_code = 1;
    grader_close(g);
    free(g);
    return rc;
}

static status pack(const command_line *line)
{
    const lab_options *o = line->options;
    const char *folder = line->word_count > 1 ? line->words[1] : ".";
    char *real = realpath(folder, NULL), path[4096];
    if (!real) return fail_errno(STATUS_DATA, "%s", folder);
    snprintf(path, sizeof path, "%s.zip", strrchr(real, '/') + 1);
    free(real);
    const char *target = o->out ? o->out : path;
    TRY(grader_pack(folder, target));
    text_append(line->out, "%s\n", target);
    return STATUS_OK;
}

static status autograder(const lab *l, const lab_options *o)
{
    if (o->format < 2)
        return fail(STATUS_USAGE, "--format: expected gradescope or prairielearn, got '%s'",
                    report_formats[o->format]);
    return grader_autograder(l, o->format, o->hidden, o->out ? o->out : "autograder.zip");
}

static status run_lab(command_line *line)
{
    enum { LIST, START, CHECK, PACK, AUTOGRADER };
    static const char *const actions[] = {"list", "start", "check", "pack", "autograder"};
    const lab *l;
    int action = LIST;
    if (line->word_count > 0)
        TRY(text_parse_choice("lab", line->words[0], actions, sizeof *actions, 5, &action));
    if (action == LIST) return list(line->out);
    if (action == PACK) return pack(line);
    if (line->word_count < 2)
        return fail(STATUS_USAGE, "lab: %s: expected the number of a lab; see harness lab list",
                    line->words[0]);
    TRY(lab_find(line->words[1], &l));
    const char *folder = line->word_count > 2 ? line->words[2] : NULL;
    if (action == START) return start(l, folder, line);
    return action == CHECK ? check(l, folder, line) : autograder(l, line->options);
}

const command command_lab = {
    .name = "lab",
    .usage = "list | start N [DIR] | check N [DIR] | pack [DIR] | autograder N [options]",
    .summary = "teaching labs: start one, check it, hand it in",
    .options_size = sizeof(lab_options),
    .table = {"Labs", lab_option_list, sizeof lab_option_list / sizeof lab_option_list[0]},
    .most_words = 3,
    .run = run_lab};
