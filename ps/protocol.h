/* Messages between workers and servers.
 *
 * An iteration is a synchronized step of the engine, numbered from 0. A pull is a worker's request for all
 * parameters, numbered from 1. Under sync, pull i + 1 serves iteration i.
 *
 *   worker to server
 *   PUSH         step = iteration, key, count = elements, dtype, PS_INT_STEP, PS_INT_UPDATES, PS_DOUBLE_RATE;
 *                frames: the key's pieces of the gradient, or none if the server has mapped them
 *   PUSH_PULL    a PUSH that also requests the parameters of the next iteration
 *   PULL         step = pull, PS_INT_ITERATION, flags = PS_PULL_...
 *   PARAMETERS   key, frames as in PUSH: initial parameters for a server in a separate process
 *   BUFFERS      step = the iteration whose forward pass uses the buffers; frame: all buffers, packed
 *
 *   server to worker
 *   PARAMETERS   step = pull, key, PS_INT_SKIPPED, PS_INT_UPDATES, PS_INT_STALENESS;
 *                frames: the key's parameters (the averaged gradient if workers update), or none if the
 *                server has written them in place or the worker has mapped them
 *   BUFFERS      step = pull; frame: all buffers, packed
 *   ACKNOWLEDGE  the server has accepted rank 0's buffers
 *
 *   both ways
 *   SUM          step = number of the sum, count; frame: the worker's float64 values, or the sums
 *   CONTROL      PS_DOUBLE_NORM = the server's part of a squared norm, or the worker's total of all servers
 *   FAILED       flags = status; frame: the reason */
#ifndef PS_PROTOCOL_H
#define PS_PROTOCOL_H

#include <stdint.h>

enum {
    PS_INT_STEP = 0,      /* Step of the optimizer, in a PUSH. */
    PS_INT_ITERATION = 0, /* Iteration that begins, in a PULL. */
    PS_INT_SKIPPED = 0,   /* Updates that the server has skipped (--on-nonfinite skip), in PARAMETERS. */
    PS_INT_UPDATES = 1,   /* Number of updates that the parameters had. */
    /* Under async, number of updates between the read and the update of the last push. -1 under other
     * policies. In PARAMETERS. */
    PS_INT_STALENESS = 2
};
enum { PS_DOUBLE_RATE = 0, PS_DOUBLE_NORM = 0 };

enum {
    PS_PULL_KEYS = 1,
    PS_PULL_BUFFERS = 2,
    PS_PULL_FIRST = 4, /* First pull of the run, which starts a server from its rank's parameters. */
    PS_PULL_FLUSH = 8, /* Reply after all updates, when all ranks have requested the flush. */
};

/* The optimizer's step and learning rate, the same in all pushes of an iteration. */
typedef struct ps_update_step {
    int64_t optimizer_step;
    double rate;
} ps_update_step;

#endif
