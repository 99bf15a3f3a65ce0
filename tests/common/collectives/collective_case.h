/* One collective call with known operands, checked against a plain loop on every rank. */
#ifndef TESTS_COMMON_COLLECTIVES_COLLECTIVE_CASE_H
#define TESTS_COMMON_COLLECTIVES_COLLECTIVE_CASE_H

#include "common/net/shm.h"
#include "tests/common/collectives/ranks.h"

/* The memory that holds the operands of a call. */
typedef enum case_memory {
    CASE_WINDOW,  /* The operands are contiguous in a window, so that peers reach them. */
    CASE_PRIVATE, /* The operands are in memory that no peer reaches. */
    CASE_MIXED,   /* The operands of rank 0 are in private memory, those of other ranks in windows. */
    CASE_PIECES,  /* The operands are in a window, in pieces with gaps between them. */
    CASE_PRIVATE_PIECES,
    CASE_SHIFTED, /* The operands are in a window, at a different offset on every rank. */
    CASE_UNLIKE,  /* In a window, `out` is in pieces and `in` is contiguous. */
    CASE_MEMORY_COUNT
} case_memory;

typedef struct collective_case {
    collective_kind kind;
    reduce_op op;
    dtype type;
    int64_t count;
    int root;
    bool in_place;
    case_memory memory;
} collective_case;

/* Memory of a rank for cases of up to `most` elements of 8 bytes. It is allocated once for all cases. */
typedef struct case_arena {
    shm_segment window;
    char *private;
    piece *pieces; /* The pieces of `in`, followed by the pieces of `out`. */
    int64_t most;
} case_arena;

status case_arena_open(int64_t most, case_arena *out);
void case_arena_close(case_arena *arena);

/* Posts the call, waits, and compares the result. If it is wrong, the message of STATUS_MISMATCH names the
 * case and the first wrong element. */
status case_run(collective_group *group, case_arena *arena, const collective_case *c);

char *case_format(const collective_case *c, char *buffer, size_t size);

#endif
