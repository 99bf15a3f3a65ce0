/* A sweep: `harness run` for every point of a grid of option values, several times, so that points can be
 * compared.
 *
 * The runs of a round are in a drawn order, and round follows round, so that a drift of the machine hits all
 * points alike. Real work runs one run at a time, virtual devices on all processors at once. Every run leaves
 * one file in the sweep's folder, whole or not at all; a sweep that is started again runs only what has no
 * valid file.
 *
 *   DIR/sweep.json                   what is varied, and by which program; a later start must be the same
 *                                    sweep, but may have more rounds
 *   DIR/runs/point-P-round-R.json    the result of a run (docs/results.md)
 *   DIR/failures.json                runs that have failed and not been run again, written at each failure
 *   DIR/table.json                   medians, intervals and failures of all points
 *
 * The files of this folder, in the order of the flow: sweep_grid.c (the points), sweep_program.c (what runs
 * them), sweep_run.c (the runs), sweep_table.c, sweep_loss.c and sweep_origin.c (what they show). */
#ifndef HARNESS_SWEEP_SWEEP_H
#define HARNESS_SWEEP_SWEEP_H

#include "common/base/text.h"

#include <jansson.h>
#include <stdbool.h>

enum { SWEEP_MOST_AXES = 8, SWEEP_MOST_VALUES = 64, SWEEP_MOST_POINTS = 4096, SWEEP_MOST_ROUNDS = 1000 };

/* An option and the values that it takes. */
typedef struct sweep_axis {
    char *text; /* owns the words below */
    const char *name;
    const char *values[SWEEP_MOST_VALUES];
    int count;
    const char *engine; /* whose option it is; NULL: of all */
} sweep_axis;

typedef struct sweep {
    sweep_axis axes[SWEEP_MOST_AXES];
    int axis_count;
    const char *
        *words; /* options of run that all points have; the array is the sweep's, the words are borrowed */
    int word_count;
    int rounds;
    const char *folder; /* borrowed */
    int points;         /* the product of the axes' counts; see sweep_has() */
    bool has_mode; /* all points have the engines of --mode, or it varies; else a policy that varies has its
                      own */
    bool builds;   /* the values of axis 0 are programs to be run, instead of an option's */
} sweep;

/* Adds "NAME=VALUE,VALUE,..."; where values hold commas they are separated by ';'. STATUS_USAGE. */
status sweep_vary(sweep *s, const char *text);

/* Adds the axis `mode` where nothing chooses an engine, neither --mode nor a policy that varies, counts the
 * points and checks the command line of each. STATUS_USAGE for an option that `run` does not have or a value
 * that it does not take. */
status sweep_check(sweep *s);

/* Whether some word or axis is the option `name`. */
bool sweep_has_option(const sweep *s, const char *name);

/* The options of run that words give, by their long names, without those of output: a new reference. NULL:
 * they are none. */
json_t *sweep_options(const char **words, int count);

/* The words of a list of JSON, which has them: an array that the caller frees; NULL without memory. */
const char **sweep_words_of(const json_t *list);

/* The sweep whose results lie in `folder`: its axes and words borrow the texts of *definition, the caller's
 * to drop after sweep_free(), and it has as many rounds as there are results. *definition is NULL where the
 * folder holds no sweep. */
status sweep_read(const char *folder, json_t **definition, sweep *out);

void sweep_free(sweep *s);

/* The value of an axis at a point, 0 <= point < s->points; the last axis varies fastest. NULL: the option is
 * that of another engine than the point's, and is left out. */
const char *sweep_value(const sweep *s, int point, int axis);

/* Whether the point is run: of points that differ only in options of other engines, the first is. */
bool sweep_has(const sweep *s, int point);

/* The words of `harness run` at a point: "run", options, NULL. `out` has room for s->word_count + 2 *
 * s->axis_count + 3; the words of the axes are in `text`, which the caller frees after use. */
status sweep_words(const sweep *s, int point, text_buffer *text, const char **out);

/* Whether the point's device is virtual. */
status sweep_is_virtual(const sweep *s, int point, bool *out);

/* The order of a round: a permutation of the points, a function of the round. STATUS_SYSTEM without memory.
 */
status sweep_order(const sweep *s, int round, int *order);

/* sweep_program.c: the program that a point runs, and the hashes (XXH3, hexadecimal) of the bytes of all of
 * them: an array, a new reference. STATUS_UNAVAILABLE: one cannot be read. */
const char *sweep_program(const sweep *s, int point);
status sweep_programs(const sweep *s, json_t **out);

/* Whether the definitions of two sweeps vary the same options, whichever programs ran them. */
bool sweep_is_same(const json_t *a, const json_t *b);

/* "DIR/runs/point-0003-round-000.json". Returns `buffer`. */
char *sweep_file(const sweep *s, int point, int round, char *buffer, size_t size);

/* The result of a run, a new reference; NULL if there is none, or none of a whole run. STATUS_DATA if the
 * file is damaged. */
status sweep_read_result(const sweep *s, int point, int round, json_t **out);
/* The valid result of a run, a new reference; NULL if there is none. A damaged one is announced on stderr. */
json_t *sweep_result(const sweep *s, int point, int round);

/* Makes the folder, or finds that of the same sweep; *lock is to be closed at the end. STATUS_CONFIG: it
 * holds another sweep or the results of another build, or another process uses it. STATUS_CANNOT_CREATE. */
status sweep_open_folder(const sweep *s, int *lock);

typedef struct sweep_outcome {
    int run, failed, kept; /* runs of this start; runs that an earlier start had finished */
    int signal;            /* that ended it early, or 0 */
    json_t *failures;      /* array of {point, round, exit_code, message}, also of earlier starts */
} sweep_outcome;

/* The failures that earlier starts recorded: a new array. */
json_t *sweep_failures(const sweep *s);

/* Runs everything that has no result. The caller drops out->failures. */
status sweep_run(const sweep *s, sweep_outcome *out);

/* The commands that a start would run, in its order, as a shell reads them, one per line. */
status sweep_list(const sweep *s, text_buffer *out);

/* sweep_loss.c: adds "loss_over_time" to the table of a sweep over policies, whose steps help differently:
 * null in others, and in virtual time. As text: nothing where it is null. */
status sweep_add_losses(const sweep *s, json_t *table);
void sweep_report_losses(const json_t *table, text_buffer *out);

/* sweep_origin.c: adds to the table what describes its runs: first the command, the "options" with which
 * --config runs the sweep again, "started_at", "program", "host", "libraries" and "configuration", null until
 * a result is added; then of each result, which may be NULL. The configuration keeps what all results share;
 * "one_origin" is false where program, host or libraries differ. */
void sweep_add_command(const sweep *s, json_t *table);
void sweep_add_origin(const json_t *result, json_t *table);

/* The table of all results as JSON, a new reference, and as text of at most 80 columns. */
status sweep_table(const sweep *s, const json_t *failures, json_t **out);
void sweep_report(const json_t *table, text_buffer *out);

#endif
