/* Messages between workers and servers. An iteration is a synchronized step of the engine, from 0; a pull is
 * a worker's request for all parameters, numbered from 1 (under sync, pull i + 1 serves iteration i).
 *
 *   worker to server
 *   PUSH         step = iteration, key, count = elements, dtype, PS_INT_STEP, PS_INT_UPDATES, PS_DOUBLE_RATE;
 *                frames: the key's pieces of the gradient, or none where the server has mapped them
 *   PUSH_PULL    the same; also requests the parameters of the next iteration
 *   PULL         step = pull, PS_INT_ITERATION, flags: what is requested
 *   PARAMETERS   key, frames as above: the parameters that a server in its own process starts from
 *   BUFFERS      step = the iteration whose forward pass they are for; frame: all buffers, packed
 *   server to worker
 *   PARAMETERS   step = pull, key, PS_INT_SKIPPED, PS_INT_UPDATES, PS_INT_STALENESS; frames: the key's
 * parameters (the averaged gradient where the worker updates), or none where they are in place or mapped
 *   BUFFERS      step = pull, frame
 *   ACKNOWLEDGE  rank 0's buffers were accepted
 *   both ways
 *   SUM          step = number of the sum, count; frame: float64 values; their sums
 *   CONTROL      step = iteration, PS_DOUBLE_NORM: a server's share of the squared norm; the total of all
 * servers FAILED       flags = status; frame: the reason */
#ifndef PS_PROTOCOL_H
#define PS_PROTOCOL_H

enum {
    PS_INT_STEP = 0,      /* PUSH: the optimizer's step */
    PS_INT_ITERATION = 0, /* PULL: the iteration that begins */
    PS_INT_SKIPPED = 0,   /* PARAMETERS: updates that the server has skipped so far (--on-nonfinite skip) */
    PS_INT_UPDATES = 1,   /* that the parameters had */
    PS_INT_STALENESS = 2
}; /* async: updates between the read and the update of the last push; or -1 */
enum { PS_DOUBLE_RATE = 0, PS_DOUBLE_NORM = 0 };

enum {
    PS_PULL_KEYS = 1,
    PS_PULL_BUFFERS = 2,
    PS_PULL_FIRST = 4, /* of the run: a server in the rank's process starts from the rank's parameters */
    PS_PULL_FLUSH = 8, /* the reply is sent after all updates, when all ranks have requested it */
};

#endif
