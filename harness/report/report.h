/* Reports rendered from a run's JSON (docs/results.md), which is the only source of their figures.
 *
 * The files of this folder, in the order in which data flow through them:
 *   statistics        a phase's times to a median and its like, for the JSON
 *   report_table      values by their path in the JSON, and tables with a column per job
 *   report_verdict    a run in ten lines
 *   report_text       a run: steps, communication, agreement of the engines
 *   report_memory     where a job's memory is
 *   report_steps      the steps of a job or rank, all or in stretches
 *   report_loss       the loss against time, and how stale reads were
 *   report_reproduction  a published table next to ours
 *   figures, svg      a run's figures: their numbers as tables, drawn as SVG (files figure_*)
 *   report_page       runs as a page of HTML with these figures
 *   significance      whether a difference between runs is shown */
#ifndef HARNESS_REPORT_REPORT_H
#define HARNESS_REPORT_REPORT_H

#include "common/base/text.h"

#include <jansson.h>
#include <stdbool.h>

/* The value at "ranks.0.memory.total" of an object (a number indexes an array); NULL, NaN or "" where there
 * is none. */
const json_t *report_at(const json_t *object, const char *path);
double report_number_at(const json_t *object, const char *path);
const char *report_text_at(const json_t *object, const char *path);

/* A run: what it shows, in at most ten lines of 80 columns (docs/measuring.md), and with `verbose` its
 * tables, side by side. */
void report_run(const json_t *result, bool verbose, text_buffer *out);

/* The sentences of the verdict alone, a line each. */
void report_sentences(const json_t *result, text_buffer *out);

/* The first line of every report, without its end: model, input, classes, parameters, data, batch, optimizer,
 * seed. */
void report_workload(const json_t *workload, text_buffer *out);

/* "ring and tree": the algorithms by which a job's buckets were all-reduced, or the one that was to be taken;
 * nothing for a job without buckets. With `counts` "ring 5 calls of 97.5 MiB, tree 1 call of 4 KiB", of a
 * step. */
void report_algorithms(const json_t *job, bool counts, text_buffer *out);

/* The memory of a run that was only planned (harness/run/plan.h). */
void report_plan(const json_t *plan, text_buffer *out);

/* A plan of several policies, with `gpus`: what `harness memory` prints. */
void report_memory_of_policies(const json_t *result, text_buffer *out);

/* A published table next to ours (harness/reproduce), as text or as Markdown, which has more columns. */
void report_reproduction(const json_t *result, bool markdown, text_buffer *out);

/* One page of HTML for an array of results of runs, self-contained: it loads nothing. */
void report_page(const json_t *results, text_buffer *out);

/* Figure `number`, from 0, of a result: as an SVG file of its own, or its numbers as CSV. Appends nothing
 * where the result has nothing to show. Returns its name; NULL: there is no such figure. */
const char *report_figure_svg(const json_t *result, int number, text_buffer *out);
const char *report_figure_csv(const json_t *result, int number, text_buffer *out);

/* The measured steps of a job, or of one of its ranks, in order: one by one or, if only some are kept, in
 * stretches. */
typedef struct report_steps {
    const json_t *of;     /* has "step_s", "losses", ..., each an array of `size` values */
    const json_t *counts; /* Number of steps in each stretch, or NULL if each value is of one step. */
    size_t size;
} report_steps;
report_steps report_steps_of(const json_t *job_or_rank);
double report_steps_in(const report_steps *s, size_t i);
/* The sum of array `key` over the steps of turn `turn` of `turns` equal ones, which may divide stretches;
 * *known: in how many of these steps it was measured. */
double report_steps_sum(const report_steps *s, const char *key, int turn, int turns, double *known);

/* Of a job: the seconds that the measured steps of its slowest rank took together; the mean of the losses of
 * all steps, of whichever rank, that ended in (from, until], where each rank has its own time, the sum of its
 * steps (NaN: none did); how many updates its reads were late in the mean (NaN: it has no stale reads). */
double report_duration(const json_t *job);
double report_loss_between(const json_t *job, double from, double until);
double report_mean_staleness(const json_t *job);

/* Of a job of a result: "none", "none (all cores)", "ps (sync)". Returns `buffer`. */
char *report_job_name(const json_t *job, char *buffer, size_t size);
/* Of row `number` of the job's ranks: "rank 3", or with --stages-on devices "device 1 of rank 0". */
char *report_rank_name(const json_t *job, double number, char *buffer, size_t size);

#endif
