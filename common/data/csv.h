/* Feature tables in scikit-learn's form of comma-separated values: the first line holds the number of
 * samples, the number of features and the names of the classes; every other line one sample, its
 * features and then its class, counted from 0. Lines end with a line feed, with or without a carriage
 * return before it; the last one may end with the file.
 *
 * Errors are STATUS_DATA with `name`, line and column (in bytes, both from 1), what was found and what is
 * allowed. */
#ifndef COMMON_DATA_CSV_H
#define COMMON_DATA_CSV_H

#include "common/base/status.h"

#include <stdint.h>

enum { CSV_MAX_CLASSES = 256 };

typedef struct csv_table {
    int64_t samples, features;
    int classes;
    double *values;  /* (samples, features), finite */
    uint8_t *labels; /* (samples), below `classes` */
} csv_table;

/* What it allocates is in proportion to `size`, whatever the first line says. */
status csv_decode(const char *name, const uint8_t *bytes, size_t size, csv_table *out);
void csv_free(csv_table *table);

#endif
