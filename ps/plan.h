/* How the parameters are cut into keys, keys are dealt to servers, and when each may be pushed. Pure
 * arithmetic from the program and the policy: alike on all ranks, immutable, shared by worker and server.
 *
 * A key is what is pushed, summed, updated and pulled at once: neighboring parameters that can be pushed
 * at the same point of the backward pass, cut at shard boundaries and at every `partition_bytes`. Keys
 * are numbered in the order of the arena, which is the order of registration.
 *
 * A parameter is pushed when its gradient is complete and the backward pass has read the parameter itself
 * for the last time: then all pushes of a key together allow everybody to overwrite the parameter. */
#ifndef PS_PLAN_H
#define PS_PLAN_H

#include "common/memory/piece.h"
#include "common/nn/params.h"
#include "ps/policy.h"

/* Of a plan; pieces of a key, which are frames of its message. */
enum { PS_MOST_KEYS = 1 << 20, PS_KEY_PIECES = 16 };

typedef struct ps_key {
    int server;
    int first_piece, piece_count; /* of ps_plan.pieces */
    int first_param, param_count; /* that it holds elements of */
    int64_t elements;
} ps_key;

typedef struct ps_shard {
    int first_key, key_count;
    piece_list pieces; /* of all its keys, in order */
    int64_t elements;
    int64_t begin, end; /* of the arena: its extent, padding between included */
} ps_shard;

typedef struct ps_plan {
    int param_count, server_count, key_count;
    ps_key *keys;
    piece *pieces;
    ps_shard *shards; /* [server_count] */
    int *first_key;   /* [param_count] the keys of a parameter follow each other */
    int *keys_of;     /* [param_count] their number */
    /* pushable[push_first[p] .. + push_count[p]): what can be pushed after ready(p); the rest after the
     * whole backward pass. */
    int *push_first, *push_count, *pushable;
    int largest_sum; /* numbers that a layer adds up over the ranks at once (group_sum); 0: none */
} ps_plan;

/* The most numbers that a layer adds up over the ranks at once; 0: none. */
int ps_largest_sum(const nn_program *program);

status ps_plan_make(const nn_program *program, const param_set *set, int servers, int64_t partition_bytes,
                    ps_plan **out);
void ps_plan_free(ps_plan **plan);

static inline piece_list ps_key_pieces(const ps_plan *plan, int key)
{
    return (piece_list){plan->pieces + plan->keys[key].first_piece, plan->keys[key].piece_count};
}

/* The first parameter of a key, for messages: "layer1.0.conv1.weight". */
const char *ps_key_name(const ps_plan *plan, const nn_model *model, int key);

/* Bytes of the largest frame that such a plan sends: a key, all buffers, or a layer's sums. */
int64_t ps_plan_largest_frame(const ps_plan *plan, const param_set *params);

/* Keys that wait to be sent or summed, in order of priority: a binary heap of fixed capacity. */
typedef struct ps_key_queue {
    struct ps_queued {
        int64_t rank; /* smaller goes first */
        int key;
    } * heap;
    int count, capacity;
    ps_priority priority;
    int64_t posted; /* numbers of arrival, for first in, first out */
} ps_key_queue;

status ps_key_queue_init(ps_key_queue *q, int capacity, ps_priority priority);
void ps_key_queue_deinit(ps_key_queue *q);

/* The queue holds every key at most once, so it is never full. */
void ps_key_queue_put(ps_key_queue *q, int key);
/* The first; the queue must not be empty. */
int ps_key_queue_first(const ps_key_queue *q);
void ps_key_queue_drop(ps_key_queue *q);

#endif
