/* The points of a sweep (harness/sweep) as a table, from which the figures of a sweep are drawn. */
#ifndef HARNESS_REPORT_FIGURE_POINTS_H
#define HARNESS_REPORT_FIGURE_POINTS_H

#include "harness/report/figures.h"

enum { MOST_VALUES = 64, MOST_SERIES = 8, LABEL = 128 };

/* Distinct values of an option. The values are in numeric order if all of them are numbers, else in the order
 * of the sweep. The texts are borrowed. */
typedef struct axis_values {
    const char *name, *texts[MOST_VALUES];
    int count;
    bool numeric;
} axis_values;

axis_values points_axis(const json_t *sweep, const char *name);
axis_values axis_of_column(const json_t *table, size_t column);

/* Returns the index of a value, or -1. */
int axis_place(const axis_values *v, const char *text);

/* Returns the value of an option at a point, or "". */
const char *points_value(const json_t *point, const char *axis);

/* Returns the axis `first` if it is numeric and has two or more values. If not, returns the numeric axis with
 * the most values, leaving out the axis `not`. Returns NULL if no axis remains that is numeric and has two
 * values. */
const char *points_numeric_axis(const json_t *sweep, const char *first, const char * not );

/* Makes the table of the points over the options `x` and `y`; `y` may be NULL. A series consists of the
 * points with equal values of all other options. The table is empty if `x` is NULL. *count is the number of
 * series, at most MOST_SERIES. */
json_t *points_table(const json_t *sweep, const char *x, const char *y, int *count);
enum { SERIES, X, Y, RATE, LOW, HIGH, COLOR }; /* columns */

/* Makes the table over two numeric options. The table is empty if the sweep varies fewer than two numeric
 * options. */
json_t *points_grid(const json_t *sweep);

#endif
