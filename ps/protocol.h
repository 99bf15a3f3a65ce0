/* What workers and servers say to each other. A round is a synchronised step of the engine, from 0; a pull
 * is a worker's request for all parameters, numbered from 1 (under sync, pull r + 1 serves round r).
 *
 *   worker to server
 *   PUSH         step = round, key, count = elements, dtype, PS_INT_STEP, PS_INT_SEEN, PS_DOUBLE_RATE;
 *                frames: the key's pieces of the gradient, or none where the server can see them
 *   PUSH_PULL    the same; the answer to the next round's pull is sent as soon as it can be
 *   PULL         step = pull, PS_INT_ROUND, flags: what is asked for
 *   PARAMETERS   key, frames as above: what a server of its own starts from
 *   BUFFERS      step = the round whose forward pass they are for; frame: all buffers, packed
 *   server to worker
 *   PARAMETERS   step = pull, key, PS_INT_SEEN, PS_INT_LATE; frames: the key's parameters (the averaged
 *                gradient where the worker updates), or none where they are in place or in sight
 *   BUFFERS      step = pull, frame
 *   ACKNOWLEDGE  rank 0's buffers were taken
 *   both ways
 *   SUM          step = number of the sum, count; frame: float64 values; their sums
 *   CONTROL      step = round, PS_DOUBLE_NORM: a server's share of the squared norm; all servers' together
 *   FAILED       flags = status; frame: the reason */
#ifndef PS_PROTOCOL_H
#define PS_PROTOCOL_H

enum { PS_INT_STEP = 0, /* PUSH: the optimizer's step */
       PS_INT_ROUND = 0, /* PULL: the round that asks */
       PS_INT_SEEN = 1,  /* updates that the parameters had */
       PS_INT_LATE = 2 }; /* async: updates between the read and the update of the last push; or -1 */
enum { PS_DOUBLE_RATE = 0, PS_DOUBLE_NORM = 0 };

enum {
    PS_PULL_KEYS = 1,
    PS_PULL_BUFFERS = 2,
    PS_PULL_FIRST = 4,  /* of the run: what the rank holds is what the server beside it starts from */
    PS_PULL_SETTLE = 8, /* answered when all ranks ask for it: behind all updates */
};

#endif
