/* The table with which `--algorithm tuned` chooses the algorithm of a collective in shared memory from the
 * number of ranks and bytes. `harness
 * bench --tune` measures a table on the machine at hand. The first row that covers the call applies. */
#ifndef COMMON_COLLECTIVES_TUNING_H
#define COMMON_COLLECTIVES_TUNING_H

#include "common/base/status.h"
#include "common/base/text.h"
#include "common/collectives/collective.h"

#include <stdint.h>

typedef struct collective_tuning_row {
    int most_ranks;
    int64_t most_bytes;
    collective_algorithm algorithm;
} collective_tuning_row;

enum { COLLECTIVE_TUNING_ROWS = 32, COLLECTIVE_TUNING_MOST_RANKS = 64 };

typedef struct collective_tuning {
    collective_tuning_row rows[COLLECTIVE_TUNING_ROWS];
    int count;
} collective_tuning;

/* Returns the algorithm of the first row that covers the call, or ring if no row covers it. */
collective_algorithm collective_tuning_choose(const collective_tuning *t, int ranks, int64_t bytes);

/* Write and read one row per line, such as "ranks<=8 bytes<=1048576 two-shot". '#' begins a comment. Reading
 * returns STATUS_DATA with the line number if a line is invalid. */
void collective_tuning_write(const collective_tuning *t, text_buffer *out);
status collective_tuning_read(const char *text, collective_tuning *out);
/* Reads the table from the file of --collective-table. Returns STATUS_DATA if no row is for `ranks` ranks. */
status collective_tuning_load(const char *path, int ranks, collective_tuning *out);

#endif
