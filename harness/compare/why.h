/* `harness compare --why A B`: explains the difference of two jobs by mechanism. A job is the result of a run
 * in virtual time, or a workload. One mechanism after another is switched from A to B, in the order of the
 * table in why.c, and each mixture is replayed in virtual time. The part of a mechanism is the difference of
 * two successive replays, so the parts add up.
 *
 *   why.c           the mechanisms and their parts
 *   why_job.c       reads a job, and replays it
 *   why_workload.c  switches parts of a workload
 *   why_trace.c     finds what changed the communication that two traces show
 *   why_report.c    writes the explanation as text */
#ifndef HARNESS_COMPARE_WHY_H
#define HARNESS_COMPARE_WHY_H

#include "common/base/text.h"

#include <jansson.h>
#include <stdbool.h>

enum { WHY_SCHEMA_VERSION = 1 };

/* Explains the difference of two files, or of workloads in numbers. `words` [count] are options of `harness
 * run` that both jobs get. *out is a new reference (docs/schemas/compare-why.schema.json). Returns
 * STATUS_CONFIG for the result of a run that was not in virtual time, and the errors of `harness run`. */
status why_explain(const char *a, const char *b, char *const *words, int count, json_t **out);

/* Writes an explanation as text of at most 80 columns. */
void why_report(const json_t *explanation, text_buffer *out);

/* ---- shared by the files above ---- */

/* Figures of a job. */
enum { WHY_STEP_NS, WHY_BYTES, WHY_FIGURES };

typedef struct why_job {
    const char *name;
    /* "options": long names and values as text; "workload": workload_to_json() without what no replay reads,
     * or null. Owned by the caller. */
    json_t *job;
    json_t *source;                                 /* of the workload, or NULL. Owned by the caller. */
    int64_t replay[WHY_FIGURES], file[WHY_FIGURES]; /* `file` is 0 unless the file is a trace's */
    bool traced;
} why_job;

/* Reads a file or numbers. The caller drops out->job and out->source, also after a failure. */
status why_job_open(const char *spec, why_job *out);
/* Runs the job in virtual time, and sets the figures of the replay. */
status why_job_replay(why_job *job, char *const *words, int count);

/* Copies parts of workload `b` to `mixture`. `paths` are the names of values, separated by blanks. A path
 * LIST.*.KEY is a value of each element; if the lists have different lengths, only the sum is copied, or the
 * maximum of bytes. Appends the old and the new values to `words`, except for a path that begins with '-'. */
void why_switch(const char *paths, const json_t *b, json_t *mixture, text_buffer *words);

/* Returns true if B keeps fewer activations and computes more in the backward pass than A, or the reverse. */
bool why_recomputes(const json_t *a, const json_t *b);

/* Compares the collectives that two traces show, whose `source` import has written. Returns the mechanism
 * that they prove, and appends its values to `words`, or returns NULL. */
const char *why_collectives(const json_t *a, const json_t *b, text_buffer *words);
/* Returns the exposed time that the rank waited for others, without the profiler. */
int64_t why_waiting_ns(const why_job *job);
/* Returns true if only one of two traces computes activations again. */
bool why_traces_recompute(const json_t *a, const json_t *b);
/* Returns the spread of the recorded steps, divided by the shortest. */
double why_spread(const json_t *source);

#endif
