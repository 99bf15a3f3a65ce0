/* Shared by the files that write the report; nobody else includes it. */
#ifndef HARNESS_REPORT_REPORT_IMPL_H
#define HARNESS_REPORT_REPORT_IMPL_H

#include "harness/report/report.h"

#include <stdbool.h>

/* "; all-reduce: ring, shm" where a job of the run has one: the algorithm, and the library that carries the
 * tensors. */
void report_all_reduce(const json_t *result, text_buffer *out);

/* What each job exchanges by, "ring (ddp): ring all-reduce, shm", with `between` between jobs; empty where
 * none exchanges. */
void report_ways(const json_t *result, const char *between, text_buffer *out);

/* How a figure is written; NaN is "-". */
typedef enum cell_format {
    CELL_TIME,
    CELL_BYTES,
    CELL_RATE,
    CELL_COUNT,
    CELL_RATIO,
    CELL_LOSS,
    CELL_PERCENT,
    CELL_MEAN,
    CELL_MILLISECONDS, /* without the unit, as the next one */
    CELL_HUNDREDTHS
} cell_format;

/* A row of a table that has a column for each element of an array. */
typedef struct report_row {
    const char *label;
    cell_format format;
    const char *path;
    double (*value)(const json_t *column, const char *path); /* NULL: the number at the path */
    const char *absent;                                      /* instead of "-" for a job that communicates */
    bool optional;                                           /* left out where no column has it */
} report_row;

typedef struct report_layout {
    int label_width, column_width;
} report_layout;

void report_cell(report_layout layout, cell_format format, double value, text_buffer *out);
void report_rows(report_layout layout, const json_t *columns, const report_row *rows, size_t count,
                 text_buffer *out);
/* The training time to --target-loss and --target-accuracy, where they were chosen; "-": not reached. */
void report_target_rows(report_layout layout, const json_t *jobs, text_buffer *out);
/* How samples/s are counted where ranks do not wait for each other; how clocks are aligned. A line each,
 * where it applies. */
void report_notes(const json_t *jobs, text_buffer *out);
/* The head of a table of jobs: their names. */
void report_heads(report_layout layout, const json_t *jobs, const char *label, text_buffer *out);

/* report_verdict.c: whether the interval of the factor includes 1. */
bool report_verdict_is_open(const json_t *verdict);

/* The JSON is that of a sweep's table. */
static inline bool report_is_sweep(const json_t *result)
{
    return json_is_array(json_object_get(result, "vary"));
}

/* page_provenance.c: the end of a page, how its results were obtained, and how to obtain them again. */
void page_provenance(const json_t *result, text_buffer *out);

/* report_text.c: the tables of a run. */
void report_tables(const json_t *result, text_buffer *out);

/* report_memory.c: of one job; the second writes nothing where the policy is another than dp. */
void report_memory(const json_t *job, text_buffer *out);
void report_dataparallel_memory(const json_t *job, text_buffer *out);

/* report_loss.c: nothing where the job has no stale reads. */
void report_staleness(const json_t *job, text_buffer *out);

#endif
