/* One collective call with known operands, checked against a plain loop on every rank. */
#ifndef TESTS_COMMON_COLLECTIVES_COLLECTIVE_CASE_H
#define TESTS_COMMON_COLLECTIVES_COLLECTIVE_CASE_H

#include "common/net/shm.h"
#include "tests/common/collectives/ranks.h"

/* Where the operands of a call lie. */
typedef enum case_memory {
    CASE_WINDOW,  /* Contiguous in a window, so that peers reach them. */
    CASE_PRIVATE, /* In memory that no peer reaches. */
    CASE_MIXED,   /* Rank 0's operands in private memory, those of the others in windows. */
    CASE_PIECES,  /* In a window, in pieces with gaps between them. */
    CASE_PRIVATE_PIECES,
    CASE_SHIFTED, /* In a window, at a different offset on every rank. */
    CASE_UNLIKE,  /* In a window, with `out` in pieces and `in` contiguous. */
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

/* A rank's memory for cases of up to `most` elements of 8 bytes; allocated once. */
typedef struct case_arena {
    shm_segment window;
    char *private;
    piece *pieces; /* The pieces of in, then those of out. */
    int64_t most;
} case_arena;

status case_arena_open(int64_t most, case_arena *out);
void case_arena_close(case_arena *arena);

/* Posts the call, waits and compares. STATUS_MISMATCH names the case and the first wrong element. */
status case_run(collective_group *group, case_arena *arena, const collective_case *c);

char *case_format(const collective_case *c, char *buffer, size_t size);

#endif
