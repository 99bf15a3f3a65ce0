/* Lab 3: calls student_all_reduce() on one rank. Messages go through the grader, which counts them. In a
 * timed run messages go through shared memory. */
#include "labs/runner/runner.h"

#include "labs/runner/ring_direct.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct lab_ring {
    int rank, size;
    void *shared; /* links of a timed run, or NULL if the grader carries messages */
    size_t capacity;
    ring_path path;
};

static ring_link *left_link(const lab_ring *ring)
{
    return ring_link_at(ring->shared, ring->capacity, (ring->rank + ring->size - 1) % ring->size);
}

int lab_rank(const lab_ring *ring)
{
    return ring->rank;
}

int lab_size(const lab_ring *ring)
{
    return ring->size;
}

int lab_send_right(lab_ring *ring, const float *x, size_t n)
{
    if (ring->shared)
        return ring_link_send(ring_link_at(ring->shared, ring->capacity, ring->rank), ring->capacity, x, n,
                              &ring->path);
    return runner_ask((runner_message){RING_SEND, 0, (int64_t)n, (int64_t)(n * sizeof *x)}, x).code;
}

int lab_receive_left(lab_ring *ring, float *x, size_t n)
{
    if (ring->shared) return ring_link_receive(left_link(ring), x, n, &ring->path);
    runner_message m = runner_ask((runner_message){RING_RECEIVE, 0, (int64_t)n, 0}, NULL);
    if (m.code == LAB_OK) runner_read_data(x, m.bytes); /* the grader has checked that n elements follow */
    return m.code;
}

/* Prepares a timed call, as the reference does: calls the function once, so that all memory has been touched,
 * and then waits until all ranks are ready. */
static void prepare_timed(lab_ring *ring, float *x, size_t n)
{
    volatile float third = 1;
    /* Sets the floating-point state that the grader has. After a rounded result qemu adds twice as fast. */
    third /= 3;
    float *input = memcpy(runner_memory(n * sizeof *x), x, n * sizeof *x);
    student_all_reduce(ring, x, n);
    memcpy(x, input, n * sizeof *x);
    free(input);
    left_link(ring)->path_ns = 0; /* no other rank uses the link any more */
    runner_ask((runner_message){RING_READY, 0, 0, 0}, NULL);
    ring->path = ring_path_begin();
}

/* In a timed run the links hold runner_capacity elements. */
void runner_case(runner_message m, void *x)
{
    static lab_ring ring;
    ring.rank = runner_rank;
    ring.size = runner_size;
    ring.capacity = runner_capacity;
    if (ring.capacity > 0 && !ring.shared) {
        size_t bytes = (size_t)ring.size * ring_link_bytes(ring.capacity);
        ring.shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, RUNNER_SHARED, 0);
        if (ring.shared == MAP_FAILED) abort();
    }
    if (ring.shared) prepare_timed(&ring, x, (size_t)m.n);
    runner_watch_memory();
    int code = student_all_reduce(&ring, x, (size_t)m.n);
    int64_t most = runner_most_memory();
    if (ring.shared) ring_path_advance(&ring.path);
    runner_write((runner_message){RUNNER_RESULT, code, ring.shared ? ring.path.ns : most, m.bytes}, x);
}
