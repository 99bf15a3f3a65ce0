/* Links of a timed run: memory that the ranks share, one message per link. The grader is not in between. */
#ifndef LABS_RUNNER_RING_DIRECT_H
#define LABS_RUNNER_RING_DIRECT_H

#include "labs/lab.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct ring_link {
    _Atomic uint32_t full; /* 0: empty; 1: it holds a message */
    uint32_t unused;
    uint64_t n;
    char padding[48];
    float data[]; /* [capacity] */
} ring_link;

static inline size_t ring_link_bytes(size_t capacity)
{
    return (sizeof(ring_link) + capacity * sizeof(float) + 4095) / 4096 * 4096;
}

static inline ring_link *ring_link_at(void *memory, size_t capacity, int sender)
{
    return (ring_link *)((char *)memory + (size_t)sender * ring_link_bytes(capacity));
}

static inline void ring_link_await(ring_link *link, uint32_t full)
{
    while (atomic_load(&link->full) != full)
        syscall(SYS_futex, &link->full, FUTEX_WAIT, !full, NULL, NULL, 0);
}

static inline void ring_link_set(ring_link *link, uint32_t full)
{
    atomic_store(&link->full, full);
    syscall(SYS_futex, &link->full, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static inline int ring_link_send(ring_link *link, size_t capacity, const float *x, size_t n)
{
    if (n > capacity) return LAB_ESIZE;
    ring_link_await(link, 0);
    link->n = n;
    if (n > 0) memcpy(link->data, x, n * sizeof *x);
    ring_link_set(link, 1);
    return LAB_OK;
}

static inline int ring_link_receive(ring_link *link, float *x, size_t n)
{
    ring_link_await(link, 1);
    int rc = link->n == n ? LAB_OK : LAB_ESIZE;
    if (rc == LAB_OK && n > 0) memcpy(x, link->data, n * sizeof *x);
    ring_link_set(link, 0);
    return rc;
}

#endif
