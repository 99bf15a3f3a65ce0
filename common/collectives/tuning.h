/* Which algorithm `--algorithm tuned` chooses for a call in shared memory: a table by ranks and bytes, which
 * `harness bench --tune` measures on the machine at hand. The first row that covers the call applies. */
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

/* Ring where no row covers the call. */
collective_algorithm collective_tuning_choose(const collective_tuning *t, int ranks, int64_t bytes);

/* One row per line: "ranks<=8 bytes<=1048576 two-shot"; '#' begins a comment. Reading fails with STATUS_DATA
 * and the line's number. */
void collective_tuning_write(const collective_tuning *t, text_buffer *out);
status collective_tuning_read(const char *text, collective_tuning *out);
/* From a file; `what` is the option that names it. */
status collective_tuning_load(const char *what, const char *path, collective_tuning *out);

#endif
