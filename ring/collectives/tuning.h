/* Which algorithm `auto` chooses for an all-reduce: a table by ranks and bytes.
 *
 * The first row that covers the call applies. The table compiled in has one row, two-shot for every size, as measured
 * on two cores with 2 to 8 ranks (tests/bench); `harness bench --tune` measures one for the machine at hand. */
#ifndef RING_COLLECTIVES_TUNING_H
#define RING_COLLECTIVES_TUNING_H

#include "common/base/status.h"
#include "common/base/text.h"

#include <stdint.h>

typedef enum collective_algorithm { COLLECTIVE_ALGORITHM_TWO_SHOT, COLLECTIVE_ALGORITHM_RING } collective_algorithm;

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

extern const collective_tuning collective_tuning_default;

/* Two-shot where no row covers the call. */
collective_algorithm collective_tuning_choose(const collective_tuning *t, int ranks, int64_t bytes);

/* One row per line: "ranks<=8 bytes<=1048576 two-shot"; '#' begins a comment. Reading fails with STATUS_DATA
 * and the line's number. */
void collective_tuning_write(const collective_tuning *t, text_buffer *out);
status collective_tuning_read(const char *text, collective_tuning *out);

#endif
