/* A plan describes how parameters are split into keys, which server has each key, and when each key may be
 * pushed. The keys of one server form a shard. A plan depends only on the program and the policy, so all
 * ranks have the same plan. A plan never changes. The worker and the server of a rank share one plan.
 *
 * A key is the unit that is pushed, summed, updated and pulled. It consists of adjacent parameters that can
 * be pushed at the same point of the backward pass. A key also ends at a shard boundary, and when it has
 * `partition_bytes` bytes. Keys are numbered in the order of the arena, which is the order of registration.
 *
 * A parameter is pushed when its gradient is complete and the backward pass has read the parameter for the
 * last time. Therefore the parameters of a key may be overwritten when all ranks have pushed the key. */
#ifndef PS_KEYS_H
#define PS_KEYS_H

#include "common/memory/piece.h"
#include "common/nn/params.h"
#include "ps/memory.h"
#include "ps/policy.h"

/* Largest number of keys in a plan, and largest number of pieces of a key. In a message, each piece of a key
 * is one frame. */
enum { PS_MOST_KEYS = 1 << 20, PS_KEY_PIECES = 16 };

typedef struct ps_key {
    int server;
    int first_piece, piece_count; /* Pieces of the key, as a range of ps_plan.pieces. */
    int first_param, param_count; /* Range of the parameters that have elements in the key. */
    int64_t elements;
} ps_key;

typedef struct ps_shard {
    int first_key, key_count;
    piece_list pieces; /* Pieces of all keys of the shard, in order. */
    int64_t elements;
    int64_t begin, end; /* Range of the shard in the arena, in elements, including padding. */
} ps_shard;

typedef struct ps_plan {
    ps_memory memory;
    int param_count, server_count, key_count;
    ps_key *keys;
    piece *pieces;
    ps_shard *shards; /* [server_count] */
    int *first_key; /* [param_count] First key of each parameter. The keys of a parameter are consecutive. */
    int *keys_of;   /* [param_count] Number of keys of a parameter. */
    /* pushable[push_first[p] .. + push_count[p]) are the parameters that can be pushed after ready(p). All
     * other parameters can be pushed after the whole backward pass. */
    int *push_first, *push_count, *pushable;
    int largest_sum; /* Result of nn_program_largest_sum(). */
} ps_plan;

status ps_plan_make(const nn_program *program, const param_set *set, int servers, int64_t partition_bytes,
                    ps_plan **out);
void ps_plan_free(ps_plan **plan);

static inline piece_list ps_key_pieces(const ps_plan *plan, int key)
{
    return (piece_list){plan->pieces + plan->keys[key].first_piece, plan->keys[key].piece_count};
}

/* Returns the name of a key's first parameter for error messages, for example "layer1.0.conv1.weight". */
const char *ps_key_name(const ps_plan *plan, const nn_model *model, int key);

/* Returns a size in bytes that no frame exceeds. The result is the maximum of three sizes: the size of the
 * largest key, the size of all buffers together, and the size of the largest sum of a layer. */
int64_t ps_plan_largest_frame(const ps_plan *plan, const param_set *params);

/* Queue of the keys that wait to be sent or summed, in order of priority. It is a binary heap of fixed
 * capacity. */
typedef struct ps_key_queue {
    struct ps_queued {
        /* Position of the key in the order of priority. The key with the smallest rank is first. */
        int64_t rank;
        int key;
    } * heap;
    int count, capacity;
    ps_priority priority;
    int64_t posted; /* Number that the next added key gets as its rank under PS_PRIORITY_FIFO. */
} ps_key_queue;

/* Initializes a queue, and allocates its entries from `memory`. The caller calls ps_memory_check(). */
void ps_key_queue_init(ps_key_queue *q, int capacity, ps_priority priority, ps_memory *memory);

/* Adds a key. The queue holds every key at most once, so it is never full. */
void ps_key_queue_put(ps_key_queue *q, int key);
/* Returns the first key. The queue must not be empty. */
int ps_key_queue_first(const ps_key_queue *q);
void ps_key_queue_drop(ps_key_queue *q);

#endif
