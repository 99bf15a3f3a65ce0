/* Two sides compared: results of runs, folders of them, sweeps, or two builds of the program. The sample is a
 * run (harness/report/significance.h). The step time decides. Holm's correction is over the step times of all
 * jobs and points of the comparison, and over all other figures, so that a comparison of any size finds a
 * difference between equal sides once in a hundred times. */
#ifndef HARNESS_COMPARE_COMPARE_H
#define HARNESS_COMPARE_COMPARE_H

#include "common/base/text.h"

#include <jansson.h>
#include <stdbool.h>

enum { COMPARE_SCHEMA_VERSION = 1 };

#define COMPARE_STEP_TIME "step time, median" /* the metric that decides */

/* Compares what lies at the two paths: a run's JSON, a folder of such files (of --repeat each run of them
 * counts), or the folder of a sweep, of which every point is compared with the same point of the other. *out
 * is a new reference, as docs/sweep.md describes. STATUS_DATA: no results there; STATUS_CONFIG: different
 * sweeps. */
status compare_paths(const char *a, const char *b, json_t **out);

/* Compares two results of runs, the first of which is that of the file `path`. *out as above. */
status compare_results(const char *path, const json_t *before, const json_t *after, json_t **out);

/* Runs `words` [count], options of `harness run`, with both programs in turn, `rounds` times, and compares.
 * The results stay in `folder`, where an interrupted comparison goes on. *signal: what ended it early, or 0;
 * then *out is NULL. STATUS_UNAVAILABLE: a run has failed. */
status compare_builds(const char *a, const char *b, const char **words, int count, int rounds,
                      const char *folder, int *signal, json_t **out);

/* As text of at most 80 columns. */
void compare_report(const json_t *comparison, text_buffer *out);

/* The row of the step time in "metrics" of one of the comparisons; NULL: a side has no step time. */
const json_t *compare_step_time(const json_t *job);

/* Whether B's step time is shown to be more than 1 + `above` times A's, in any of the comparisons. */
bool compare_is_slower(const json_t *comparison, double above);

#endif
