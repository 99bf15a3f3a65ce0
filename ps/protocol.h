/* Messages between workers and servers.
 *
 * An iteration is a synchronized step of the engine, numbered from 0. A pull is a worker's request for all
 * parameters, numbered from 1. Under sync, pull i + 1 requests the parameters for iteration i.
 *
 *   worker to server
 *   PUSH         step = iteration, key, count = number of elements, dtype, PS_INT_STEP, PS_INT_UPDATES,
 *                PS_DOUBLE_RATE; frames: the pieces of the key's gradient, or no frames if the server
 *                has mapped the gradient
 *   PUSH_PULL    a PUSH that also requests the parameters of the next iteration
 *   PULL         step = pull, PS_INT_ITERATION, flags = PS_PULL_...
 *   PARAMETERS   key, frames as in PUSH: initial parameters for a server in a separate process
 *   BUFFERS      step = the iteration whose forward pass uses the buffers; frame: all buffers, packed
 *
 *   server to worker
 *   PARAMETERS   step = pull, key, PS_INT_SKIPPED, PS_INT_UPDATES, PS_INT_STALENESS;
 *                frames: the key's parameters (the averaged gradient if workers update), or no frames if
 *                the server has written the parameters in place or the worker has mapped them
 *   BUFFERS      step = pull; frame: all buffers, packed
 *   ACKNOWLEDGE  the server has accepted rank 0's buffers
 *
 *   both ways
 *   SUM          step = number of the sum, count; frame: the worker's float64 values, or the sums
 *   CONTROL      PS_DOUBLE_NORM = a server's part of a squared norm, or the sum of the parts of all servers
 *   FAILED       flags = status; frame: the reason */
#ifndef PS_PROTOCOL_H
#define PS_PROTOCOL_H

#include <stdint.h>

enum {
    PS_INT_STEP = 0,      /* In a PUSH: step of the optimizer. */
    PS_INT_ITERATION = 0, /* In a PULL: iteration that begins. */
    /* In PARAMETERS: number of updates that the server has skipped (--on-nonfinite skip). */
    PS_INT_SKIPPED = 0,
    /* In PARAMETERS: number of updates that the parameters include. In a PUSH: number of updates that the
     * worker's parameters included when the gradient was computed. */
    PS_INT_UPDATES = 1,
    /* In PARAMETERS: staleness (ps.h) of the read from which the worker's last push was computed (async). -1
     * under other policies, or if this staleness has already been reported. */
    PS_INT_STALENESS = 2
};
enum { PS_DOUBLE_RATE = 0, PS_DOUBLE_NORM = 0 };

enum {
    PS_PULL_KEYS = 1,
    PS_PULL_BUFFERS = 2,
    /* First pull of the run. A server in the process of this rank then copies its initial parameters from the
     * rank. */
    PS_PULL_FIRST = 4,
    /* Requests a reply that is sent when all ranks have requested the flush and all updates are done. */
    PS_PULL_FLUSH = 8,
};

/* The optimizer's step and learning rate, which are the same in all pushes of an iteration. */
typedef struct ps_update_step {
    int64_t optimizer_step;
    double rate;
} ps_update_step;

#endif
