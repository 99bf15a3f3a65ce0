/* The layout of a board, for board*.c alone. */
#ifndef COMMON_NET_BOARD_IMPL_H
#define COMMON_NET_BOARD_IMPL_H

#include "common/net/board.h"
#include "common/net/shm.h"

#define BOARD_MAGIC UINT32_C(0x42445031) /* layout version in the last digit */

typedef struct board_header {
    uint32_t magic;
    int32_t world;
    uint64_t token;
    _Alignas(64) atomic_int stop;    /* board_stop */
    _Atomic int64_t stop_step;       /* INT64_MAX: not agreed */
    _Alignas(64) atomic_uint granted; /* the futex word: blocks that may run */
    _Alignas(64) atomic_int failure_claimed;
    atomic_int failure_ready; /* set behind `failure` */
    board_failure failure;
} board_header;

struct board {
    shm_segment memory;
    board_header *header;
    board_cell *cells; /* [world] */
    int notify_fd;
};

void board_notify(const board *b);

#endif
