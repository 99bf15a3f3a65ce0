/* Declarations that the files of the report share. */
#ifndef HARNESS_REPORT_REPORT_IMPL_H
#define HARNESS_REPORT_REPORT_IMPL_H

#include "harness/report/report.h"

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

/* Appends "; all-reduce: ring, shm" (the algorithm, and the library that carries the tensors) if a job of the
 * run has an all-reduce. */
void report_all_reduce(const json_t *result, text_buffer *out);

/* Appends how each job exchanges gradients, "ring (ddp): ring all-reduce, shm", and `between` between two
 * jobs. Appends nothing if no job exchanges gradients. */
void report_ways(const json_t *result, const char *between, text_buffer *out);

/* Counts the consecutive objects of an array, from `first` on, that have equal values at `path`. */
size_t report_alike(const json_t *array, size_t first, const char *path);

/* Explains how samples/s are counted if ranks do not wait for each other, and how clocks are aligned. */
void report_notes(const json_t *job, text_buffer *out);
/* Writes the head of a table of jobs, with the name of each job. */
void report_heads(report_layout layout, const json_t *jobs, const char *label, text_buffer *out);

/* report_head.c: writes the first lines of the text report, with and without tables. */
enum { REPORT_COLUMNS = 80 };
void report_context(const json_t *result, text_buffer *out);
void report_header(const json_t *result, text_buffer *out);
/* Appends the text in at most `most` lines of at most REPORT_COLUMNS. Indents all lines after the first.
 * Drops the words that do not fit, and cuts a word that is longer than a line. */
void report_lines(const char *text, int most, text_buffer *out);

/* report_ways.c: writes who sums the job's gradients, and which transports carry them. */
void report_transports(const json_t *job, text_buffer *out);

/* report_verdict.c: returns true if the verdict does not show which engine is faster. */
bool report_verdict_is_open(const json_t *verdict);

/* Returns true if the JSON is a sweep's table. */
static inline bool report_is_sweep(const json_t *result)
{
    return json_is_array(json_object_get(result, "vary"));
}

/* report_page.c: begins a part of a page. The part opens when the reader clicks on it, and its content
 * scrolls. `style` is the class of the part, or "". The caller ends the part with "</div></details>". */
void page_details(const char *style, const char *summary, const char *label, text_buffer *out);
/* page_provenance.c: writes the end of a page, which says how the results were obtained. */
void page_provenance(const json_t *result, text_buffer *out);

/* report_text.c: finds the rank for which the other ranks (dp: rank 0) waited longest. Returns the number of
 * this rank if `path` is "rank", or the time that others waited for it, per step and rank, if `path` is "s".
 * Returns NaN if no rank waited. */
double report_longest_wait(const json_t *job, const char *path);

/* report_text.c: writes the tables of a run. */
void report_tables(const json_t *result, text_buffer *out);

/* report_memory.c: writes the memory of one job and, if the policy is dp, its memory by phase. */
void report_memory(const json_t *job, text_buffer *out);

/* report_loss.c: writes the histogram of report_reads. Writes nothing if no reads were counted. */
void report_staleness(const json_t *job, text_buffer *out);

#endif
