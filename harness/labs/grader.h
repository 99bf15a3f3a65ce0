/* The grader of the teaching labs. A lab is a table of parts. A part is one line of the report and is worth
 * points. The student's code runs in separate processes (students.h) and returns data, which the parts check.
 *
 * To add a lab, write a file lab_NAME.c here with its table, a row in labs.c, the folder labs/N-name with
 * handout and starter files, runner_case() in labs/runner/NAME.c, and a solution and mutants in
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
    int variant; /* lab_part.variant */
    bool hidden;
    double points, score; /* a bonus may raise the score above the points */
    bool failed;
    double seconds;
    char cost[160];      /* cost of the code, such as bytes sent; shown next to the score */
    text_buffer details; /* lines that say why points were lost */
    double ratio;        /* value for the leaderboard, or 0 */
} lab_test;

typedef struct lab_part {
    const char *key, *title;
    double points;
    bool answers; /* reads only answers.txt, so no code is needed */
    /* Checks the part and scores `t`. Returns an error only if the grader itself fails, which ends the whole
     * check. */
    status (*run)(grader *g, lab_test *t);
    int variant; /* distinguishes parts with the same function */
} lab_part;

/* The answer to a question, a number within a relative tolerance. `hint` says where to look. */
typedef struct lab_answer {
    const char *key;
    double number, tolerance;
    const char *hint;
} lab_answer;

typedef struct lab {
    int number;
    /* For example name "ring" (the file labs/runner/ring.c), title "ring all-reduce", hours "2 to 3". */
    const char *name, *title, *hours;
    const char *source;    /* C file of the student, or NULL if there are only answers */
    const lab_part *parts; /* the last element has the key NULL */
    /* Appends the questions of the student's answers.txt. No answers are filled in. */
    void (*questions)(uint64_t seed, text_buffer *out);
    const char *leaderboard; /* name of lab_test.ratio, or NULL without a leaderboard */
    /* Runs a hidden test, which is a line "POINTS ..." of the instructor's file that names no part. `words`
     * are the words after POINTS. NULL if the lab has no hidden tests of this kind. */
    status (*hidden)(grader *g, lab_test *t, const char *words);
} lab;

enum { LAB_MOST_TESTS = 32, LAB_MOST_ANSWERS = 64, LAB_COMPILE_POINTS = 5 };

struct grader {
    const lab *lab;
    /* `folder` has the student's files. `hidden` has the hidden tests, or is NULL. `only` names the parts to
     * run, such as "two,even", or is NULL for all parts. */
    const char *folder, *hidden, *only;
    bool prints; /* true to print each part when it ends */
    /* True for each test that runs: compiles, hidden, then the parts (indices in check.c). */
    bool chosen[LAB_MOST_TESTS];
    /* True if the folder is on the command line. The commands in the report then contain the folder, too. */
    bool folder_given;
    char data[PATH_MAX];  /* folder that contains labs/ */
    char build[PATH_MAX]; /* folder for programs, removed at the end */
    char student[128];
    uint64_t seed; /* drawn from the student's id */
    bool built, built_fast, compiles, compiles_fast;
    text_buffer compiler;  /* output of the compiler */
    char unprotected[160]; /* protection that the kernel lacks, or "" */
    text_buffer answers_text;
    const char *answers[LAB_MOST_ANSWERS][2]; /* keys and values in answers_text */
    int answer_count;
    double hours; /* the student's hours in time.txt, or below 0 if there are none */
    lab_test tests[LAB_MOST_TESTS];
    int test_count;
    double score, points; /* sums over all tests */
    double seconds;
    struct students *students; /* processes of the current test (students.h); the end of the test ends them */
    struct lab_ranks
        *ranks; /* ranks of the current test that train (ranks.h), or NULL; closed with the test */
};

extern const lab lab_table[];
extern const int lab_count;
status lab_find(const char *number_or_name, const lab **out);

/* ---- files (files.c) ---- */
/* Finds the folder that contains labs/. Looks first in the installation, then in the source tree. */
status grader_data_folder(char out[PATH_MAX]);
/* Reads a regular file of at most 1 MiB as text. Never follows a link, which could lead to a file that
 * only the grader may read. Returns STATUS_DATA if the file does not exist. */
status grader_read_file(const char *folder, const char *name, text_buffer *out);
void grader_read_answers(grader *g);
const char *grader_answer(const grader *g, const char *key); /* NULL if not given */
status grader_start(const lab *l, const char *folder, const char *student, text_buffer *out);
status grader_pack(const char *folder, const char *path);
status grader_autograder(const lab *l, int format, const char *hidden, const char *path);

/* ---- build.c ---- */
/* Compiles the student's file and links it with the runner: optimized if `fast`, else with sanitizers. Does
 * nothing if the program has been built before. Sets g->compiles or g->compiles_fast, and appends the output
 * of the compiler. */
status grader_build(grader *g, bool fast, text_buffer *printed);

/* ---- check.c ---- */
/* Returns true if the value is within the relative tolerance. Returns false for NaN. */
bool is_within(double value, double expected, double tolerance);
/* Writes a random permutation of 0 ... count - 1. Uses the random numbers of seed `start`, beginning with
 * number `index`. */
void draw_order(uint64_t start, uint64_t index, int count, int *order);
/* Returns true if a float equals `want` within a relative tolerance. */
bool is_near(float got, double want, double tolerance);
/* Fails the test, which loses its points, and adds a message to its details. The first line of the message
 * says what was found and what was expected. */
void test_fail(lab_test *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Returns the student's answer. Fails the test and returns NULL if there is none yet. */
const char *test_given_answer(const grader *g, lab_test *t, const char *key);
/* Compare answers to questions with the expected ones. A wrong answer fails `t` with a message that does not
 * give the answer away. test_answers() adds `points` to the score for each right answer. */
bool test_answer_text(const grader *g, lab_test *t, const char *key, const char *expected, const char *hint);
void test_answers(const grader *g, lab_test *t, double points, const lab_answer *answers, int count);
/* Runs the parts that g->only names, or all parts of the lab if g->only is NULL. */
status grader_check(grader *g);
void grader_close(grader *g);

/* ---- report.c ---- */
void report_begin(const grader *g, text_buffer *out);
void report_test(const grader *g, const lab_test *t, text_buffer *out);
void report_end(const grader *g, text_buffer *out);
/* Names of the formats. Format 0 is text. report_json() takes the index of any other format. */
extern const char *const report_formats[];
json_t *report_json(const grader *g, int format);

#endif
