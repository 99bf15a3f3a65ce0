/* The figures of a run's report. A figure collects its numbers from the run's JSON into a table, and is
 * drawn only from the table, so that figure, HTML table and CSV show the same numbers.
 *
 *   figure_table      the tables, and colors of jobs
 *   figure_steps      the parts of a step; throughput compared with the ideal
 *   figure_timeline   one step of all ranks, and its buckets
 *   figure_memory     memory by class and rank
 *   figure_curves     loss, staleness
 *   figure_points     the points of a sweep as a table
 *   figure_sweep      curves, heat maps and winners of a sweep
 *
 * A table is {"summary": a sentence, "columns": [{"key", "name", "format", "color"}], "rows": [[text or
 * number or null]]}. */
#ifndef HARNESS_REPORT_FIGURES_H
#define HARNESS_REPORT_FIGURES_H

#include "harness/report/svg.h"

enum { FIGURE_TEXT = -1 }; /* format of a column of texts */

typedef struct report_figure {
    const char *name; /* name of the figure's files, such as "step-parts" */
    const char *title;
    const char *reading; /* one or two sentences on how to read the figure */
    bool half;           /* true if the figure takes half the width of the page */
    /* Returns a new table. If the table has no rows, the figure is not shown. */
    json_t *(*collect)(const json_t *result);
    void (*draw)(const json_t *table, svg *s);
} report_figure;

extern const report_figure figure_step_parts, figure_timeline, figure_throughput, figure_memory,
    figure_buckets, figure_loss_steps, figure_loss_time, figure_staleness, figure_sweep_winners,
    figure_sweep_losses, figure_sweep_curves, figure_sweep_heat;

typedef struct figure_column {
    const char *key, *name;
    int format;        /* cell_format, or FIGURE_TEXT */
    const char *color; /* color of the column's marks, or NULL */
} figure_column;

/* Makes a table without rows. A last column with the key "color" is used only for drawing. */
json_t *figure_table(const figure_column *columns, size_t count);

/* Adds a row. `kinds` has a letter for each cell: s for a text, f for a number. figure_put() appends a number
 * to a row. NaN becomes null. Both functions return the row, borrowed. figure_summary() sets the summary,
 * frees `sentence`, and returns the table. */
json_t *figure_add(json_t *table, const char *kinds, ...);
json_t *figure_put(json_t *row, double value);
json_t *figure_summary(json_t *table, text_buffer *sentence);

size_t figure_rows(const json_t *table);
size_t figure_columns(const json_t *table); /* number of columns, without "color" */
double figure_number(const json_t *table, size_t row, size_t column);
const char *figure_label(const json_t *table, size_t row, size_t column);
const char *figure_column_text(const json_t *table, size_t column, const char *what);
int figure_format(const json_t *table, size_t column);
double figure_largest(const json_t *table, size_t column);

/* Returns the next row after `first` in which one of the first `columns` cells differs from row `first`, or
 * the number of rows. */
size_t figure_end(const json_t *table, size_t first, size_t columns);

/* Draws the legend of the columns that have a color and a value above 0. Returns the y below the legend. */
double figure_legend(const json_t *table, svg *s);

/* Names a job as the text report does. Adds the number of servers if there are several: "ps (sync, 8
 * servers)". */
short_text figure_job_name(const json_t *job);

/* Returns the color class of job `i`. The class depends on the engine. Jobs of one engine alternate between
 * two classes. */
const char *figure_job_color(const json_t *jobs, size_t i);

#endif
