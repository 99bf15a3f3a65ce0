/* Published tables: CSV files with `#` comments and a header line, in results/published. */
#ifndef HARNESS_REPRODUCE_PUBLISHED_H
#define HARNESS_REPRODUCE_PUBLISHED_H

#include "common/base/status.h"

enum { PUBLISHED_COLUMNS = 12, PUBLISHED_ROWS = 64 };

typedef struct published_table {
    char *text; /* of the file, cut at its commas and lines */
    const char *header[PUBLISHED_COLUMNS];
    const char *cells[PUBLISHED_ROWS][PUBLISHED_COLUMNS]; /* "" where a row is short */
    int columns, rows;
} published_table;

/* `name` without suffix, from where the build or the installation keeps them. STATUS_DATA. */
status published_open(const char *name, published_table *out);
void published_close(published_table *t);

/* The cell of a column; "" where there is no such column. */
const char *published_text(const published_table *t, int row, const char *column);
double published_number(const published_table *t, int row, const char *column);

#endif
