/* Shared by the files that write the report. */
#ifndef HARNESS_REPORT_REPORT_IMPL_H
#define HARNESS_REPORT_REPORT_IMPL_H

#include "harness/report/report.h"

#include <stdbool.h>

/* Appends "; all-reduce: ring, shm" (the algorithm, and the library that carries the tensors) if a job of the
 * run has an all-reduce. */
void report_all_reduce(const json_t *result, text_buffer *out);

/* Appends how each job exchanges gradients, "ring (ddp): ring all-reduce, shm", with `between` between
 * jobs. Appends nothing if no job exchanges gradients. */
void report_ways(const json_t *result, const char *between, text_buffer *out);

/* Format of a figure. NaN is "-". */
typedef enum cell_format {
    CELL_TIME,
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

/* Row of a table with a column for each element of an array. */
typedef struct report_row {
    const char *label;
    cell_format format;
    const char *path;
    double (*value)(const json_t *column, const char *path); /* NULL to show the number at the path */
    const char *absent;                                      /* replaces "-" for a job that communicates */
    bool optional;                                           /* left out if no column has a value */
} report_row;

typedef struct report_layout {
    int label_width, column_width;
} report_layout;

void report_cell(report_layout layout, cell_format format, double value, text_buffer *out);
void report_rows(report_layout layout, const json_t *columns, const report_row *rows, size_t count,
                 text_buffer *out);
/* Writes the training time to --target-loss and --target-accuracy, if they were given. "-" if a job did
 * not reach the target. */
void report_target_rows(report_layout layout, const json_t *jobs, text_buffer *out);
/* Writes a line on how samples/s are counted if ranks do not wait for each other, and one on how clocks
 * are aligned. */
void report_notes(const json_t *jobs, text_buffer *out);
/* Writes the head of a table of jobs: their names. */
void report_heads(report_layout layout, const json_t *jobs, const char *label, text_buffer *out);

/* report_verdict.c: returns true if the interval of the factor includes 1. */
bool report_verdict_is_open(const json_t *verdict);

/* Returns true if the JSON is a sweep's table. */
static inline bool report_is_sweep(const json_t *result)
{
    return json_is_array(json_object_get(result, "vary"));
}

/* page_provenance.c: the end of a page, with how its results were obtained. */
void page_provenance(const json_t *result, text_buffer *out);

/* report_text.c: the tables of a run. */
void report_tables(const json_t *result, text_buffer *out);

/* report_memory.c: the memory of one job. report_dataparallel_memory() writes nothing unless the policy is
 * dp. */
void report_memory(const json_t *job, text_buffer *out);
void report_dataparallel_memory(const json_t *job, text_buffer *out);

/* report_loss.c: writes nothing if the job has no stale reads. */
void report_staleness(const json_t *job, text_buffer *out);

#endif
