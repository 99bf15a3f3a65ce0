/* The grader of the teaching labs. A lab is a table of parts; a part is one line of the report, worth points.
 * The student's code runs in processes of its own (students.h) and returns data; parts compare it and never
 * trust it.
 *
 * To add a lab: a file lab_NAME.c here with its table, a row in labs.c, the folder labs/N-name with handout
 * and starter files, the carrier of its messages in labs/runner/NAME.c, and its solution and mutants in
 * tests/labs. */
#ifndef HARNESS_LABS_GRADER_H
#define HARNESS_LABS_GRADER_H

#include "common/base/text.h"

#include <jansson.h>
#include <limits.h>

typedef struct grader grader;

typedef struct lab_test {
    const char *key;
    char title[96];
    bool hidden;
    double points, score; /* the score may exceed the points by a bonus */
    bool failed;
    double seconds;
    char cost[160];      /* shown next to the score: bytes sent, time per call */
    text_buffer details; /* why points were lost; lines */
    double ratio;        /* for the leaderboard; 0: none */
} lab_test;

typedef struct lab_part {
    const char *key, *title;
    double points;
    bool answers;                          /* it reads only answers.txt: no code is needed */
    status (*run)(grader *g, lab_test *t); /* an error ends the whole check: the grader itself cannot go on */
} lab_part;

typedef struct lab {
    int number;
    const char *name, *title, *hours; /* "3", "ring", "ring all-reduce", "2 to 3" */
    const char *source;               /* the student's C file; NULL: only answers */
    const char *function;             /* its main function, to name what is missing */
    const char *runner;               /* labs/runner/NAME.c */
    const lab_part *parts;
    int part_count;
    const char *leaderboard; /* what lab_test.ratio is; NULL: no leaderboard */
    /* A line "POINTS ..." of the instructor's file that names no part: the words after POINTS. NULL: there
     * are none. */
    status (*hidden)(grader *g, lab_test *t, const char *words);
    void (*questions)(uint64_t seed,
                      text_buffer *out); /* answers.txt as handed to the student; NULL: no questions */
} lab;

enum { LAB_MOST_TESTS = 32, LAB_MOST_ANSWERS = 64, LAB_COMPILE_POINTS = 5 };

struct grader {
    const lab *lab;
    const char *folder, *hidden, *only; /* the student's files; further tests; the parts to run, "two,even" */
    bool folder_given;    /* on the command line: commands that the report suggests need it, too */
    char data[PATH_MAX];  /* the folder that holds labs/ */
    char build[PATH_MAX]; /* for programs; removed at the end */
    char student[128];
    uint64_t seed; /* from the student's id */
    bool built, built_fast, compiles, compiles_fast;
    text_buffer compiler;  /* what it printed */
    char unprotected[160]; /* which protection the kernel lacks; "" none */
    char *answers[LAB_MOST_ANSWERS][2];
    int answer_count;
    double hours; /* of time.txt; below 0: not given */
    lab_test tests[LAB_MOST_TESTS];
    int test_count;
    double seconds;
};

extern const lab *const lab_table[];
extern const int lab_count;
status lab_find(const char *number_or_name, const lab **out);
double lab_points(const lab *l);

/* ---- files (files.c) ---- */
/* The folder that holds labs/: of the source tree or of the installation. */
status grader_data_folder(char out[PATH_MAX]);
/* A regular file of at most 1 MiB, as text; never follows a link, which could lead to a file that only the
 * grader may read. STATUS_DATA where there is none. */
status grader_read_file(const char *folder, const char *name, text_buffer *out);
status grader_read_answers(grader *g);
const char *grader_answer(const grader *g, const char *key); /* NULL: not given */
status grader_start(const lab *l, const char *folder, const char *student, text_buffer *out);
status grader_pack(const char *folder, const char *path);
status grader_autograder(const lab *l, int format, const char *hidden, const char *path);

/* ---- build.c ---- */
/* Compiles the student's file and links it with the runner, once: with sanitizers, or fast. Sets g->compiles
 * or g->compiles_fast, and appends what the compiler prints. */
status grader_build(grader *g, bool fast, text_buffer *printed);

/* ---- check.c ---- */
/* Within the relative tolerance; not if it is not a number. */
bool is_within(double value, double expected, double tolerance);
/* Loses points; the first line says what was found and what was expected. */
void test_fail(lab_test *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void test_note(lab_test *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A question's answer against the expected one, for questions that are compared as text, as integers or as
 * numbers within a relative tolerance. Fails `t` with a message that does not give the answer away; `hint`
 * goes on where to look. */
bool test_answer_number(const grader *g, lab_test *t, const char *key, double expected, double tolerance,
                        const char *hint);
bool test_answer_text(const grader *g, lab_test *t, const char *key, const char *expected, const char *hint);
/* Runs the lab's parts, or only `g->only`; prints each as it ends where `text`. */
status grader_check(grader *g, bool text);
void grader_close(grader *g);
double grader_score(const grader *g);
double grader_points(const grader *g);

/* ---- report.c ---- */
void report_begin(const grader *g, text_buffer *out);
void report_test(const grader *g, const lab_test *t, text_buffer *out);
void report_end(const grader *g, text_buffer *out);
/* Of the formats that report_formats lists, from 1 on; 0 is text. */
extern const char *const report_formats[];
json_t *report_json(const grader *g, int format);

#endif
