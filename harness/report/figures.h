/* The figures of a run's report. A figure collects its numbers from the run's JSON into a table, and is
 * drawn only from the table, so that figure, HTML table and CSV show the same numbers.
 *
 *   figure_table      the tables, and colors of jobs
 *   figure_steps      the parts of a step; throughput compared with the ideal
 *   figure_timeline   one step of all ranks, and its buckets
 *   figure_memory     memory by class and rank
 *   figure_curves     loss, staleness
 *   figure_sweep      curves, heat maps and winners of a sweep
 *
 * A table is {"summary": a sentence, "columns": [{"key", "name", "format", "color"}], "rows": [[text or
 * number or null]]}. */
#ifndef HARNESS_REPORT_FIGURES_H
#define HARNESS_REPORT_FIGURES_H

#include "harness/report/svg.h"

enum { FIGURE_TEXT = -1 }; /* format of a column of texts */

typedef struct report_figure {
    const char *name; /* name of its files: "step-parts" */
    const char *title;
    const char *reading;                      /* one or two sentences on how to read the figure */
    bool half;                                /* half the page's width */
    json_t *(*collect)(const json_t *result); /* returns a new table, or NULL if there is nothing to show */
    void (*draw)(const json_t *table, svg *s);
} report_figure;

extern const report_figure figure_step_parts, figure_timeline, figure_throughput, figure_memory,
    figure_buckets, figure_loss_steps, figure_loss_time, figure_staleness, figure_sweep_winners,
    figure_sweep_losses, figure_sweep_curves, figure_sweep_heat;

json_t *figure_table(void);
void figure_column(json_t *table, const char *key, const char *name, int format, const char *color);
json_t *figure_row(json_t *table);          /* borrowed */
void figure_put(json_t *row, double value); /* NaN becomes null */
void figure_put_text(json_t *row, const char *text);
void figure_summary(json_t *table, text_buffer *sentence); /* frees the text */

size_t figure_rows(const json_t *table);
double figure_number(const json_t *table, size_t row, size_t column);
const char *figure_label(const json_t *table, size_t row, size_t column);
const char *figure_column_text(const json_t *table, size_t column, const char *what);
int figure_format(const json_t *table, size_t column);
size_t figure_columns(const json_t *table);
double figure_largest(const json_t *table, size_t column);

/* Names a job as the text report does. Adds the number of servers if there are several: "ps (sync, 8
 * servers)". Returns `buffer`. */
char *figure_job_name(const json_t *job, char *buffer, size_t size);

/* Returns the color of job `i`: a class of its engine, and a different one for each job of the engine. */
const char *figure_job_color(const json_t *jobs, size_t i);

#endif
