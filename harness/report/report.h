/* Writes reports from a run's JSON (docs/results.md), which is the only source of their figures.
 *
 * The files of this folder, in the order in which data flow through them:
 *   statistics        median and other statistics of a phase's times, for the JSON
 *   report_table      values by their path in the JSON, and tables with a column per job
 *   report_head       the first lines of a run's reports
 *   report_ways       how jobs exchange gradients
 *   report_verdict    a run in ten lines
 *   report_text       a run: steps, communication, agreement of the engines
 *   report_memory     memory of a job
 *   report_steps      the steps of a job or rank, all or in stretches
 *   report_loss       the loss against time, and the staleness of reads
 *   report_reproduction  a published table next to the reproduced one
 *   figures, svg      a run's figures as tables of numbers and as SVG (files figure_*)
 *   report_page       runs as a page of HTML with these figures
 *   significance      whether a difference between runs is shown */
#ifndef HARNESS_REPORT_REPORT_H
#define HARNESS_REPORT_REPORT_H

#include "common/base/text.h"

#include <jansson.h>
#include <stdbool.h>

/* Return the value at a path in an object, such as "ranks.0.memory.total". A number in the path is an index
 * into an array. The functions return NULL, NaN or "" if there is no value. */
const json_t *report_at(const json_t *object, const char *path);
double report_number_at(const json_t *object, const char *path);
const char *report_text_at(const json_t *object, const char *path);

/* Returns the number as JSON, a new reference, or null if it is not finite. */
json_t *report_json_number(double value);

/* Returns the first object of an array whose text at `path` is `text`, or NULL. */
json_t *report_find(const json_t *array, const char *path, const char *text);
/* Returns the mean time of the phase `key`, such as "forward_s", of a job's step. NaN if it was not measured.
 */
double report_phase(const json_t *job, const char *key);
/* Returns true if the ranks of the job exchange data. */
bool report_communicates(const json_t *job);
/* Returns the job with the name `name` in the result of a run, or NULL. */
const json_t *report_job(const json_t *result, const char *name);
/* Return the smallest and the largest number at `path` of an array's objects, or NaN if there is none. */
double report_smallest(const json_t *array, const char *path);
double report_largest(const json_t *array, const char *path);
/* Returns the sum of the numbers at `path` of an array's objects, or NaN if an object has no number there. */
double report_sum(const json_t *array, const char *path);
/* Counts the objects of an array in which the value at `path` is true. */
size_t report_count_true(const json_t *array, const char *path);

/* Returns the number of the first ranks whose means the parts of a step of the job are. DataParallel is one
 * process: only rank 0 loads and updates, and the other ranks wait for it, so only its parts count. */
size_t report_ranks_of_step(const json_t *job, const json_t *ranks);

/* Returns by how much the memory of DataParallel's device 0 exceeds the memory of another device between two
 * steps, when the replicas of the next step have been made: gradients and optimizer state. Returns NaN for
 * other policies. */
double report_between_steps(const json_t *job);

/* A text that a function returns by value, to be used within the same expression: report_value(CELL_TIME,
 * seconds).text */
typedef struct short_text {
    char text[64];
} short_text;

/* Format of a figure. NaN is written as "-". */
typedef enum cell_format {
    CELL_TIME, /* in seconds */
    CELL_BYTES,
    CELL_RATE,
    CELL_COUNT,
    CELL_RATIO,
    CELL_LOSS,
    CELL_PERCENT,
    CELL_MEAN,
    CELL_MILLISECONDS, /* written without the unit, like CELL_HUNDREDTHS */
    CELL_HUNDREDTHS
} cell_format;
short_text report_value(cell_format format, double value);
/* Writes the value right-aligned, `width` characters wide. */
void report_cell(int width, cell_format format, double value, text_buffer *out);

/* Row of a table with a column for each element of an array. */
typedef struct report_row {
    const char *label;
    cell_format format;
    const char *path;
    double (*value)(const json_t *column, const char *path); /* NULL to show the number at the path */
    bool optional;                                           /* left out if no column has a value */
} report_row;

typedef struct report_layout {
    int label_width, column_width;
} report_layout;

void report_rows(report_layout layout, const json_t *columns, const report_row *rows, size_t count,
                 text_buffer *out);
/* Writes the training time until --target-loss and --target-accuracy were reached, if these options were
 * given. Writes "-" for a job that did not reach the target. `loss` and `accuracy` are the labels, with %g
 * for the target. A label is at most layout.label_width - 1 wide; layout.label_width must be at most 64. */
void report_target_rows(report_layout layout, const json_t *jobs, cell_format format, const char *loss,
                        const char *accuracy, text_buffer *out);

/* Writes the results of a run in at most ten lines of 80 columns (docs/measuring.md). If `verbose` is true,
 * also writes the tables, with a column per job. */
void report_run(const json_t *result, bool verbose, text_buffer *out);

/* Writes the setting in "next" (harness/sim/next.h) that shortens a step most, without a period. */
void report_next(const json_t *next, text_buffer *out);

/* Writes only the sentences of the verdict, one per line. */
void report_sentences(const json_t *result, text_buffer *out);

/* Writes the first line of every report, without a line feed: model, input, parameters, data, batch,
 * optimizer, seed. */
void report_workload(const json_t *workload, text_buffer *out);

/* Writes the algorithms that all-reduced a job's buckets, such as "ring and tree". If no algorithm ran,
 * writes the configured algorithm. Writes nothing for a job without buckets. If `counts` is true, also writes
 * the calls and bytes per step: "ring 5 calls of 97.5 MiB, tree 1 call of 4 KiB". */
void report_algorithms(const json_t *job, bool counts, text_buffer *out);

/* Writes the memory of a run that was only planned (harness/plan/plan.h). */
void report_plan(const json_t *plan, text_buffer *out);

/* Writes the planned memory of several policies, and the GPUs in "gpus" on which it fits, for `harness
 * memory`. */
void report_memory_of_policies(const json_t *result, text_buffer *out);

/* Writes a published table next to the reproduced one (harness/reproduce), as text or as Markdown, which
 * has more columns. */
void report_reproduction(const json_t *result, bool markdown, text_buffer *out);

/* Writes one page of HTML for an array of runs' results. The page is self-contained and loads nothing. */
void report_page(const json_t *results, text_buffer *out);

/* Writes a text as a field of CSV, in quotes. */
void report_csv_text(const char *text, text_buffer *out);

/* Writes figure `number` of a result, counted from 0, as an SVG file or, if `csv` is true, its numbers as
 * CSV. Appends nothing if the table of the figure has no rows. Returns the name of the figure, or NULL if
 * there is no figure `number`. */
const char *report_figure_file(const json_t *result, int number, bool csv, text_buffer *out);

/* Measured steps of a job, or of one of its ranks, in order. A value belongs to a single step or, if the run
 * did not keep every step, to a stretch of steps. */
typedef struct report_steps {
    const json_t *of;     /* object with "step_s", "losses", ..., each an array with a value per step */
    const json_t *counts; /* number of steps in each stretch, or NULL if each value is of one step */
} report_steps;
report_steps report_steps_of(const json_t *job_or_rank);
double report_steps_in(const report_steps *s, size_t i);
/* Divides the sequence of steps into `turns` equal sections. Returns the sum of the array `key` over the
 * steps of the section with the number `turn`, counted from 0. A section may begin or end within a stretch.
 * *known is the number of steps of this section in which the value was measured. */
double report_steps_sum(const json_t *job_or_rank, const char *key, int turn, int turns, double *known);

/* report_duration() returns the seconds that all measured steps of the job's slowest rank took.
 * report_loss_between() returns the mean loss of all steps of all ranks that ended in (from, until], or NaN
 * if there are none. A rank's steps are timed from the begin of its first measured step, without gaps. */
double report_duration(const json_t *job);
double report_loss_between(const json_t *job, double from, double until);

/* The parameter reads of a job's ranks, by the number of updates that a read missed. */
typedef struct report_reads {
    double reads, largest, mean; /* The mean is NaN if there are no reads. */
    double bins[64];             /* Histogram, summed over the ranks. */
    int used;
} report_reads;
report_reads report_reads_of(const json_t *job);

/* Names a job: "none", "none (all cores)", "ps (sync)". */
short_text report_job_name(const json_t *job);
/* Names row `number` of the job's ranks: "rank 3", or "device 1 of rank 0" if "--stages-on devices" was
 * given. */
short_text report_rank_name(const json_t *job, double number);

#endif
