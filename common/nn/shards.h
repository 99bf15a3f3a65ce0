/* Shards the training state among ranks (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
 * Trillion Parameter Models", SC 2020).
 *
 * A unit consists of the parameters whose names begin with the prefix of the unit (nn_model.units). The
 * remaining parameters, and parameters that several layers share, form the last unit, the root. In the arena
 * of all parameters a unit's parameters are adjacent, and padding makes the length of the unit a multiple of
 * the number of ranks n. The unit is divided into n equal parts, and part r is the shard of rank r. An arena
 * of shards holds the shards of all units that one rank has, one after another.
 *
 *     arena             | unit 0: a   b   c . | unit 1: d    e . . | root: f  g .|      (. padding)
 *     rank 1 of 2                  |######|             |########|          |####|
 *     arena of shards   |######|########|####|
 *
 * If units are sharded by rows, as in PyTorch's fully_shard, each parameter is split on its first dimension,
 * d0, into n chunks of ceil(d0 / n) rows. The chunks of the last ranks may have fewer rows or none. A shard
 * consists of the chunks of one rank, and each chunk is padded to the full size. A unit is sent as the chunks
 * of rank 0, then the chunks of rank 1, and so on.
 *
 * If gradients or parameters are sharded, whole units exist only while a pass needs them. A plan gives every
 * unit a range in a smaller arena, from the first use of the unit in a pass to the last use. The parameters
 * of a unit occupy their range already while the previous unit runs, so that they can be gathered in time.
 * The gradients of a unit keep their range while the next unit runs, so that they can be reduced in this
 * time. If precision is mixed, operations use a second arena with the same ranges. The elements of the second
 * arena have the type in which the program computes. The parameters of a unit are converted at their first
 * use in a pass, and a gradient is converted when it is ready. */
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
    /* index of this rank in the group over which the state is sharded, and size of this group */
    int rank, ranks;
    /* true if gathered parameters stay in memory from the forward pass to the backward pass */
    bool keeps;
    /* True if parameters and gradients are bfloat16, and each rank has a master copy of its shards in the
     * program's type. */
    bool mixed;
    /* True if the gradients of several micro-batches are added up in the program's type. Used only with mixed
     * precision. */
    bool accumulates;
    /* True to shard by rows. Allowed only with PARAM_SHARD_ALL. */
    bool rows;
    bool real; /* true if the device has real memory, so that `sent` is needed */
} param_shards_config;

/* Offsets and counts are in elements. */
typedef struct param_unit {
    piece whole;      /* range of the unit in the arena of all parameters, including padding */
    int64_t shard;    /* size of each rank's shard, including padding */
    int64_t reserved; /* size of the shard in arenas of shards */
    /* If units are sharded by rows, the pieces of `whole` in the order in which they are sent. Offsets count
     * from the beginning of `whole`. Empty if units are not sharded by rows. */
    piece_list sent;
    int64_t at;            /* offset of this rank's shard in arenas of shards */
    int64_t elements, own; /* size of the unit, and size of this rank's shard, both without padding */
    int first, count;      /* range of param_shards.own and param_shards.pieces */
    /* Offsets of the unit in the smaller arenas, or -1 if a pass does not use the unit. `gathered` is the
     * offset of the unit's parameters in each pass, and `gradients` the offset of the unit's gradients. If
     * units are sharded by rows, the range of the gradients has room for the reduced shard at its end. */
    int64_t gathered[PARAM_PASSES], gradients;
    int uses[PARAM_PASSES];     /* number of the unit's parameters that each pass uses */
    int position[PARAM_PASSES]; /* index of the unit in param_shards.order of each pass */
} param_unit;

typedef struct param_shards {
    param_shards_config config;
    param_unit *units; /* the root is the last */
    int unit_count;
    int *unit_of; /* [params] */
    /* parts of the parameters that this rank keeps, as ranges of the arena of all parameters */
    piece *own;
    piece *pieces; /* the same parts as ranges of an arena of shards */
    piece *sent;   /* memory for the lists param_unit.sent, used only if units are sharded by rows */
    int piece_count;
    /* size of an arena of shards; `elements` includes padding, and `own_elements` does not */
    int64_t elements, own_elements;
    int *order[PARAM_PASSES]; /* units in the order in which a pass first uses them */
    int order_count[PARAM_PASSES];
    /* [params] ranges of parameters and gradients in the smaller arenas */
    piece *gathered[PARAM_PASSES], *gradients;
    int64_t gathered_elements, gradient_elements; /* sizes of the smaller arenas */
} param_shards;

/* Places all parameters in an arena of *arena_elements elements. Parameter i is at pieces[i] and is aligned
 * to `line` elements. Plans the ranges of units in the smaller arenas from the passes of `program`. */
status param_shards_open(const nn_program *program, const param_shards_config *config, int line,
                         piece *pieces, int64_t *arena_elements, param_shards **out);
void param_shards_close(param_shards **shards);

/* Returns true if operations read parameters from the smaller arena of gathered units. If false, they read
 * parameters from the arena of all parameters. */
static inline bool param_shards_place_params(const param_shards_config *c)
{
    return c->stage == PARAM_SHARD_ALL || c->mixed;
}

/* Returns true if operations write gradients to the smaller arena of whole units. If false, they write
 * gradients to an arena of all gradients. */
static inline bool param_shards_place_gradients(const param_shards_config *c)
{
    return c->stage >= PARAM_SHARD_GRADIENTS || (c->mixed && !c->accumulates);
}

/* Returns the size of the range of a unit's gradients in the smaller arena. */
int64_t param_gradients_place(const param_shards *s, int unit);

/* Returns the range of this rank's shard of the unit, in the arena of all parameters. Valid only if units are
 * not sharded by rows. */
static inline piece param_shard_of(const param_shards *s, int unit)
{
    const param_unit *u = &s->units[unit];
    return (piece){u->whole.offset + s->config.rank * u->shard, u->shard};
}

#endif
