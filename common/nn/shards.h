/* How the training state is cut among ranks (Rajbhandari et al., "ZeRO: Memory Optimizations Toward
 * Training Trillion Parameter Models", SC 2020).
 *
 * A unit is the parameters that share a prefix in the model's list of units. The remaining parameters, and
 * parameters that several layers share, form the last unit, the root. In the arena of all parameters a
 * unit's parameters are adjacent, and padding makes the unit's length a multiple of the ranks. Rank r's
 * shard is the r-th part. An arena of shards holds one rank's shards of all units, one after another.
 *
 *     arena             | unit 0: a   b   c . | unit 1: d    e . . | root: f  g .|      (. padding)
 *     rank 1 of 2                  |######|             |########|          |####|
 *     arena of shards   |######|########|####|
 *
 * If units are cut by rows, as in PyTorch's fully_shard, each parameter is cut on its first dimension, d0,
 * into n chunks of ceil(d0 / n) rows. The last ranks may get fewer rows or none. A shard is one rank's
 * chunks, each padded to the full size. A unit is sent as the chunks of rank 0, then the chunks of rank 1,
 * and so on.
 *
 * If gradients or parameters are cut, whole units exist only while a pass needs them. A plan gives every unit
 * a place in a smaller arena, from its first use in a pass to its last. Parameters take their place one unit
 * early, so that they can be gathered in time. Gradients keep their place one unit longer, so that they can
 * be reduced during this time. Under mixed precision a second arena has the same places. Its elements have
 * the type in which the program computes, and operations read and write this arena. A unit's parameters are
 * converted at the first use in a pass, and a gradient is converted when it is ready. */
#ifndef COMMON_NN_SHARDS_H
#define COMMON_NN_SHARDS_H

#include "common/memory/piece.h"
#include "common/nn/program.h"

/* The stages of ZeRO. Each stage shards one more part of the state. */
typedef enum param_sharding {
    PARAM_SHARD_NONE,
    PARAM_SHARD_STATE,
    PARAM_SHARD_GRADIENTS,
    PARAM_SHARD_ALL
} param_sharding;

enum { PARAM_FORWARD, PARAM_BACKWARD, PARAM_PASSES };

typedef struct param_shards_config {
    param_sharding stage;
    int rank, ranks; /* index of this rank in the group that shares the state, and the group's size */
    bool keeps;      /* gathered parameters stay in memory from the forward pass to the backward pass */
    /* True if parameters and gradients are bfloat16, and each rank has masters of its shards in the
     * program's type. */
    bool mixed;
    /* True if, with mixed precision, the gradients of several micro-batches are added up in the program's
     * type. */
    bool accumulates;
    /* True to cut by rows, only with PARAM_SHARD_ALL. */
    bool rows;
    bool real; /* true if the device has real memory, so that `sent` is needed */
} param_shards_config;

/* Offsets and counts are in elements. */
typedef struct param_unit {
    piece whole;      /* range of the arena, padding included */
    int64_t shard;    /* size of each rank's shard, padding included */
    int64_t reserved; /* size of the shard in arenas of shards */
    /* If cut by rows, the pieces of `whole` in the order in which they are sent, relative to its
     * beginning. Else empty. */
    piece_list sent;
    int64_t at;            /* offset of this rank's shard in arenas of shards */
    int64_t elements, own; /* sizes of the unit and of this rank's shard, without padding */
    int first, count;      /* range of param_shards.own and param_shards.pieces */
    /* Offsets of the unit's whole parameters, by pass, and of its whole gradients, or -1 if a pass does not
     * use the unit. If cut by rows, the place of the gradients includes room for the reduced shard at the
     * end. */
    int64_t gathered[PARAM_PASSES], gradients;
    int uses[PARAM_PASSES];     /* number of the unit's parameters that the pass uses */
    int position[PARAM_PASSES]; /* index into param_shards.order */
} param_unit;

typedef struct param_shards {
    param_shards_config config;
    param_unit *units; /* the root is the last */
    int unit_count;
    int *unit_of;  /* [params] */
    piece *own;    /* parts of the parameters that this rank keeps, in the arena */
    piece *pieces; /* the same parts in an arena of shards */
    piece *sent;   /* if cut by rows, the lists of all units */
    int piece_count;
    int64_t elements, own_elements; /* size of an arena of shards, with and without padding */
    int *order[PARAM_PASSES];       /* units in the order in which a pass first uses them */
    int order_count[PARAM_PASSES];
    piece *gathered[PARAM_PASSES], *gradients;    /* [params] places of parameters and gradients */
    int64_t gathered_elements, gradient_elements; /* sizes of the arenas of unit places */
} param_shards;

/* Places all parameters in an arena of *arena_elements, parameter i at pieces[i] and aligned to `line`
 * elements. Plans the places of units from the passes of `program`. */
status param_shards_open(const nn_program *program, const param_shards_config *config, int line,
                         piece *pieces, int64_t *arena_elements, param_shards **out);
void param_shards_close(param_shards **shards);

/* Returns true if operations read parameters from the smaller arena of unit places, not from the arena of all
 * parameters. */
static inline bool param_shards_place_params(const param_shards_config *c)
{
    return c->stage == PARAM_SHARD_ALL || c->mixed;
}

/* Returns true if operations write gradients to the smaller arena of unit places, not to an arena of all
 * gradients. */
static inline bool param_shards_place_gradients(const param_shards_config *c)
{
    return c->stage >= PARAM_SHARD_GRADIENTS || (c->mixed && !c->accumulates);
}

/* Returns the size of the place of a unit's whole gradients. */
int64_t param_gradients_place(const param_shards *s, int unit);

/* Returns the range of this rank's shard of the unit, in the arena of all parameters. Valid only if the unit
 * is not cut by rows. */
static inline piece param_shard_of(const param_shards *s, int unit)
{
    const param_unit *u = &s->units[unit];
    return (piece){u->whole.offset + s->config.rank * u->shard, u->shard};
}

#endif
