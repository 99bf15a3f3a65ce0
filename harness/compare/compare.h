/* Compares two sides: results of runs, folders of results, sweeps, or two builds of the program. A sample is
 * a run (harness/report/significance.h). The step time decides the comparison. Holm's correction is applied
 * to the step times of all jobs and points, and separately to all other figures. If the two sides are equal,
 * a comparison therefore reports a difference between step times in at most one of a hundred cases, however
 * many jobs and points it has. Jobs that ran in virtual time on both sides are compared exactly. Jobs that
 * ran in virtual time on one side have no verdict. */
#ifndef HARNESS_COMPARE_COMPARE_H
#define HARNESS_COMPARE_COMPARE_H

#include "common/base/text.h"

#include <jansson.h>
#include <stdbool.h>

enum { COMPARE_SCHEMA_VERSION = 1 };

#define COMPARE_STEP_TIME "step time, median" /* The metric that decides a comparison. */

/* Compares two paths. A path is the JSON file of a run, a folder of JSON files of runs, or the folder of a
 * sweep. Every run of --repeat is a sample. Points of a sweep are compared with the same points of the other
 * sweep. *out is a new reference (docs/sweep.md). Returns STATUS_DATA if there are no results and
 * STATUS_CONFIG if the sweeps differ. */
status compare_paths(const char *a, const char *b, json_t **out);

/* Compares two results of runs. `before` was read from the file `path`. *out is a new reference. */
status compare_results(const char *path, const json_t *before, const json_t *after, json_t **out);

/* Runs the programs `a` and `b` once per round with the options `words` [count] of `harness run`, and
 * compares the results. The results remain in `folder`, so an interrupted comparison can be continued.
 * *signal is the signal that ended the comparison, or 0. After a signal *out is NULL. Returns
 * STATUS_UNAVAILABLE if a run has failed. */
status compare_builds(const char *a, const char *b, const char **words, int count, int rounds,
                      const char *folder, int *signal, json_t **out);

/* Writes a comparison as text of at most 80 columns. */
void compare_report(const json_t *comparison, text_buffer *out);

/* Returns the row of the step time in the "metrics" of a compared job, or NULL if a side has no step time. */
const json_t *compare_step_time(const json_t *job);

/* Returns true if, for any job, the step time of B is shown to be longer than the step time of A, and the
 * ratio of the medians is above 1 + `above`. */
bool compare_is_slower(const json_t *comparison, double above);

#endif
