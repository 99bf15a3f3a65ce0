/* The labs' interface: all that a student's code needs besides the C library. Functions return 0 or a LAB_E... code.
 * Counts are elements, not bytes, and may be 0. Memory belongs to the caller unless a comment says otherwise. */
#ifndef LABS_LAB_H
#define LABS_LAB_H

#include <stddef.h>
#include <stdint.h>

enum {
    LAB_OK = 0,
    LAB_EMISSING = -1,  /* the function has not been written yet: what starter files return */
    LAB_ESIZE = -2,     /* the message has another number of elements than its receiver expects */
    LAB_EDEADLOCK = -3, /* every rank waits, so that no message can arrive */
    LAB_EMEMORY = -4,   /* for your own use, where malloc() returns NULL */
    LAB_END = 1,        /* lab_receive_push(): training has ended */
};

/* ---- lab 3: ring ------------------------------------------------------------------------------------------------ */

/* A rank's place in a ring of lab_size() ranks. Rank r sends to (r + 1) % size and receives from (r + size - 1) % size. */
typedef struct lab_ring lab_ring;
int lab_rank(const lab_ring *ring);
int lab_size(const lab_ring *ring);

/* Sends a copy of x[0..n) to the right neighbor, which may be the rank itself. The link holds one message that has not
 * been received: a second send waits until the first is received. LAB_EDEADLOCK. */
int lab_send_right(lab_ring *ring, const float *x, size_t n);

/* Waits for the left neighbor's next message and stores it in x[0..n). LAB_ESIZE: the message does not have n elements.
 * LAB_EDEADLOCK: every rank waits to receive or to send. */
int lab_receive_left(lab_ring *ring, float *x, size_t n);

/* Yours: replaces x[0..n) of every rank by the sum over all ranks. Allocates at most ceil(n / size) elements. */
int student_all_reduce(lab_ring *ring, float *x, size_t n);

#endif
