/* A sweep runs `harness run` for every point of a grid of option values, several times, to compare the
 * points.
 *
 * The runs are grouped in rounds, each with one run per point in random order, so that a drift of the machine
 * affects all points equally. Real runs run one at a time, virtual runs on all processors at once. Every run
 * writes one file to the sweep's folder, complete or not at all. A sweep that is started again repeats only
 * runs without a valid file.
 *
 *   DIR/sweep.json                   varied options and program, which must be the same in a later start;
 *                                    a later start may have more rounds
 *   DIR/runs/point-P-round-R.json    result of a run (docs/results.md)
 *   DIR/failures.json                failed runs that have not been run again, written at each failure
 *   DIR/table.json                   medians, intervals and failures of all points
 *
 * Files, in the order in which data flow through them: sweep_grid.c (points), sweep_program.c (programs),
 * sweep_run.c (runs), sweep_table.c, sweep_loss.c and sweep_origin.c (the table). */
#ifndef HARNESS_SWEEP_SWEEP_H
#define HARNESS_SWEEP_SWEEP_H

#include "common/base/text.h"

#include <jansson.h>
#include <stdbool.h>

enum { SWEEP_MOST_AXES = 8, SWEEP_MOST_VALUES = 64, SWEEP_MOST_POINTS = 4096, SWEEP_MOST_ROUNDS = 1000 };

/* A varied option and its values. */
typedef struct sweep_axis {
    char *text; /* Memory of `name` and `values`, or NULL if they are borrowed. */
    const char *name;
    const char *values[SWEEP_MOST_VALUES];
    int count;
    const char *engine; /* Engine that has the option, or NULL if all engines have it. */
} sweep_axis;

typedef struct sweep {
    sweep_axis axes[SWEEP_MOST_AXES];
    int axis_count;
    /* Options of `harness run` for all points. The sweep owns the array, the words are borrowed. */
    const char **words;
    int word_count;
    int rounds;
    const char *folder; /* Borrowed. */
    int points;         /* Product of the axes' counts. sweep_has() leaves out some points. */
    /* True if --mode is given or varied. If false, each value of a varied policy determines the engine. */
    bool has_mode;
    bool builds;      /* True if the values of axis 0 are programs. */
    bool *is_virtual; /* [points] True if the device of the point is virtual. NULL before sweep_check(). */
} sweep;

/* Records that memory for the sweep ran out. Returns STATUS_SYSTEM. */
status sweep_no_memory(void);

/* Adds "NAME=VALUE,VALUE,...". Values that contain commas are separated by ';'. Returns STATUS_USAGE if the
 * text is invalid. */
status sweep_vary(sweep *s, const char *text);

/* Adds the axis `mode` if neither --mode nor a varied policy chooses an engine, counts the points, and checks
 * the command lines of the points. Returns STATUS_USAGE for an unknown option or an invalid value, and the
 * status of run_config_parse() if a file that the options name is invalid. */
status sweep_check(sweep *s);

/* Returns the index of the axis that varies the option `name`, or -1. */
int sweep_axis_named(const sweep *s, const char *name);

/* Returns true if the option `name` is given for all points, or varied. */
bool sweep_has_option(const sweep *s, const char *name);

/* Returns the words that all points share as a new JSON list. */
json_t *sweep_shared_words(const sweep *s);

/* Returns the words of a JSON list, borrowed, in an array that the caller frees. NULL if out of memory. */
const char **sweep_words_of(const json_t *list);

/* Reads the sweep in `folder`. Sets the number of rounds to the largest number of results that a point has.
 * Axes and words borrow texts of *definition, which the caller releases after sweep_free(). *definition is
 * NULL if the folder does not contain a sweep. */
status sweep_read(const char *folder, json_t **definition, sweep *out);

void sweep_free(sweep *s);

/* Returns the value of an axis at a point, 0 <= point < s->points. The last axis varies fastest. Returns
 * NULL if the point's engine does not have the option. */
const char *sweep_value(const sweep *s, int point, int axis);

/* Returns true if the point is run. If points differ only in options that their engine does not have, only
 * the first of these points is run. */
bool sweep_has(const sweep *s, int point);

/* Returns the words of `harness run` at a point as a new JSON array: "harness", "run", options. */
status sweep_words(const sweep *s, int point, json_t **out);

/* sweep_program.c: sweep_program() returns the program that runs a point. sweep_programs() sets *out to a new
 * array of the hashes of all programs (XXH3, hexadecimal), and returns STATUS_UNAVAILABLE if a program cannot
 * be read. */
const char *sweep_program(const sweep *s, int point);
status sweep_programs(const sweep *s, json_t **out);

/* Compares two definitions of sweeps. Returns true if the axes and the options are the same, even if the
 * programs differ. */
bool sweep_is_same(const json_t *a, const json_t *b);

/* Formats "DIR/runs/point-0003-round-000.json". Returns `buffer`. */
char *sweep_file(const sweep *s, int point, int round, char *buffer, size_t size);

/* Reads the result of a run as a new reference. *out is NULL if there is no result or the run was stopped
 * early. Returns STATUS_DATA if the file is damaged. */
status sweep_read_result(const sweep *s, int point, int round, json_t **out);
/* Returns the valid result of a run as a new reference, or NULL. Warns about a damaged result. */
json_t *sweep_result(const sweep *s, int point, int round);

/* Makes or opens the folder of the sweep. *lock is a file descriptor, which the caller closes after the
 * sweep. Returns STATUS_CONFIG if the folder contains another sweep or results of another build, or if
 * another process uses the folder. Returns STATUS_CANNOT_CREATE if the folder cannot be made. */
status sweep_open_folder(const sweep *s, int *lock);

typedef struct sweep_outcome {
    int failed, kept; /* Numbers of runs that failed in this start, and that earlier starts finished. */
    int signal;       /* Signal that ended the sweep, or 0. */
    json_t *failures; /* Array of {point, round, exit_code, message}, including failures of earlier starts. */
} sweep_outcome;

/* Returns the recorded failures of earlier starts as a new array. */
json_t *sweep_failures(const sweep *s);

/* Runs each point and round that has no result. The caller releases out->failures. */
status sweep_run(const sweep *s, sweep_outcome *out);

/* Writes the commands that sweep_run() would run, in their order, one per line, quoted for a shell. */
status sweep_list(const sweep *s, text_buffer *out);

/* sweep_loss.c: sweep_add_losses() adds "loss_over_time" to the table. The value is null in virtual time, or
 * if the sweep does not vary the policy. sweep_report_losses() writes nothing if "loss_over_time" is null. */
void sweep_add_losses(const sweep *s, json_t *table);
void sweep_report_losses(const json_t *table, text_buffer *out);

/* sweep_origin.c: add the origin of the results to the table. sweep_add_command() adds the command and the
 * "options" with which --config runs the sweep again. sweep_add_command() sets the other fields to null:
 * "started_at", "program", "host", "libraries" and "configuration". sweep_add_origin() adds the origin of one
 * result, which may be NULL. "configuration" keeps the options that are equal in all results. "one_origin" is
 * false if program, host or libraries differ. */
void sweep_add_command(const sweep *s, json_t *table);
void sweep_add_origin(const json_t *result, json_t *table);

/* sweep_table() makes the table of all results as JSON, a new reference. sweep_report() writes a table as
 * text of at most 80 columns. */
status sweep_table(const sweep *s, const json_t *failures, json_t **out);
void sweep_report(const json_t *table, text_buffer *out);

#endif
