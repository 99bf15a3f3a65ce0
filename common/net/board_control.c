/* The control words of a board: stop, turn, first failure. */
#include "common/net/board_impl.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

void board_notify(const board *b)
{
    uint64_t one = 1;
    ssize_t written = write(b->notify_fd, &one, sizeof one);
    (void)written; /* a full counter is already a notice */
}

void board_request_stop(board *b, board_stop stop)
{
    atomic_store_explicit(&b->header->stop, (int)stop, memory_order_release);
}

board_stop board_stop_requested(const board *b)
{
    return (board_stop)atomic_load_explicit(&b->header->stop, memory_order_acquire);
}

bool board_stop_here(board *b, int rank, int64_t step, int64_t slack)
{
    board_header *h = b->header;
    bool requested = atomic_load_explicit(&h->stop, memory_order_acquire) != BOARD_GO;
    if (slack == BOARD_UNBOUNDED) return requested;
    int64_t agreed = atomic_load_explicit(&h->stop_step, memory_order_acquire);
    if (rank == 0 && requested && agreed == INT64_MAX) {
        agreed = step + 1 + slack;
        atomic_store_explicit(&h->stop_step, agreed, memory_order_release);
    }
    return step >= agreed;
}

/* Not FUTEX_PRIVATE: the word is shared between processes. */
static void futex_wait(atomic_uint *word, unsigned seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static void futex_wake_all(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void board_turns_enable(board *b)
{
    atomic_store_explicit(&b->header->granted, 0, memory_order_release);
}

void board_turn_wait(board *b, int rank, uint32_t block)
{
    atomic_uint *granted = &b->header->granted;
    unsigned seen = atomic_load_explicit(granted, memory_order_acquire);
    if (seen > block) return;
    board_cell *cell = &b->cells[rank];
    board_operation before = (board_operation)atomic_load_explicit(&cell->operation, memory_order_relaxed);
    board_cell_enter(cell, BOARD_PARKED, clock_now_ns());
    atomic_store_explicit(&cell->state, BOARD_SLEEPING, memory_order_release);
    board_notify(b);
    while ((seen = atomic_load_explicit(granted, memory_order_acquire)) <= block) futex_wait(granted, seen);
    board_cell_enter(cell, before, clock_now_ns());
    atomic_store_explicit(&cell->state, BOARD_RUNNING, memory_order_release);
}

void board_turn_done(board *b, int rank, uint32_t block)
{
    atomic_store_explicit(&b->cells[rank].blocks_done, block + 1, memory_order_release);
    board_notify(b);
}

void board_turn_grant(board *b, uint32_t blocks)
{
    atomic_store_explicit(&b->header->granted, blocks, memory_order_release);
    futex_wake_all(&b->header->granted);
}

void board_turn_grant_all(board *b)
{
    board_turn_grant(b, UINT32_MAX);
}

uint32_t board_turn_granted(const board *b)
{
    return atomic_load_explicit(&b->header->granted, memory_order_acquire);
}

bool board_fail(board *b, int rank, status code, const char *text)
{
    board_header *h = b->header;
    atomic_store_explicit(&b->cells[rank].state, BOARD_FAILED, memory_order_release);
    int unclaimed = 0;
    if (!atomic_compare_exchange_strong(&h->failure_claimed, &unclaimed, 1)) return false;
    h->failure.code = code;
    board_cell_read(&b->cells[rank], &h->failure.where);
    snprintf(h->failure.text, sizeof h->failure.text, "%s", text);
    atomic_store_explicit(&h->failure_ready, 1, memory_order_release);
    board_notify(b);
    return true;
}

bool board_first_failure(const board *b, board_failure *out)
{
    if (!atomic_load_explicit(&b->header->failure_ready, memory_order_acquire)) return false;
    *out = b->header->failure;
    return true;
}
