/* How the state of training is cut among ranks (Rajbhandari et al., "ZeRO: Memory Optimizations Toward
 * Training Trillion Parameter Models", SC 2020).
 *
 * A unit is the parameters that share a prefix in the model's list of units; the rest, and parameters that
 * several layers share, form the last one, the root. In a sharded arena a unit's parameters lie side by side,
 * and padding makes its length a multiple of the ranks: rank r's shard is its r-th part. Arenas of shards
 * hold one rank's shards of all units, one after another.
 *
 *     arena             | unit 0: a   b   c . | unit 1: d    e . . | root: f  g .|      (. padding)
 *     rank 1 of 2                  |######|             |########|          |####|
 *     arena of shards   |######|########|####|
 *
 * Cut by rows, as PyTorch's fully_shard does, a unit is not one vector: each parameter is cut on its first
 * dimension, d0, in n chunks of ceil(d0 / n) rows, of which later ranks may have less or nothing. A shard is
 * this rank's chunks, each padded to the full size, and a unit is sent as the chunks of rank 0, those of rank
 * 1, and so on.
 *
 * Where gradients or parameters are cut, whole ones exist only for a while: a plan gives every unit a place
 * in a smaller arena from its first use in a pass, one unit ahead for parameters, to its last, one unit
 * longer for gradients. With mixed precision there is another arena with the same places, of the program's
 * type, which operations read and write: a unit is converted when a pass first uses it, a gradient when it is
 * ready. */
#ifndef COMMON_NN_SHARDS_H
#define COMMON_NN_SHARDS_H

#include "common/memory/piece.h"
#include "common/nn/program.h"

/* What each rank has only its shards of. The stages of ZeRO: each adds to the one before. */
typedef enum param_sharding {
    PARAM_SHARD_NONE,
    PARAM_SHARD_STATE,
    PARAM_SHARD_GRADIENTS,
    PARAM_SHARD_ALL
} param_sharding;

enum { PARAM_FORWARD, PARAM_BACKWARD, PARAM_PASSES };

typedef struct param_shards_config {
    param_sharding stage;
    int rank, ranks; /* of those among whom the state is cut */
    bool keeps;      /* gathered parameters stay from the forward pass to the backward pass */
    bool mixed; /* parameters and gradients are bfloat16, and each rank's shards have masters in the program's
                   type */
    bool accumulates; /* mixed: gradients of several micro-batches are added up in the program's type, whole
                       * ones or, where they are cut, shards */
    bool rows;        /* each parameter is cut on its first dimension, not the unit's vector; only with
                         PARAM_SHARD_ALL */
    bool real;        /* there is memory: `sent` is listed */
} param_shards_config;

/* Offsets and counts are elements. */
typedef struct param_unit {
    piece whole;           /* of the arena, padding included */
    int64_t shard;         /* of each rank's shard, padding included */
    int64_t reserved;      /* of it in arenas of shards */
    piece_list sent;       /* by rows: the whole as it is sent, from its beginning; else none */
    int64_t at;            /* of this rank's shard, in arenas of shards */
    int64_t elements, own; /* without padding: of the unit, of this rank's shard */
    int first, count;      /* of `own` and `pieces` below */
    int64_t gathered[PARAM_PASSES], gradients; /* where the whole unit is placed; -1: not used. By rows the
                                                * gradients' place ends with one for their reduced shard */
    int uses[PARAM_PASSES];                    /* how many of its parameters the pass uses */
    int position[PARAM_PASSES];                /* in `order` below */
} param_unit;

typedef struct param_shards {
    param_shards_config config;
    param_unit *units; /* the root is the last */
    int unit_count;
    int *unit_of;  /* [params] */
    piece *own;    /* this rank's parts of parameters, in the arena */
    piece *pieces; /* the same in an arena of shards */
    piece *sent;   /* by rows: of all units */
    int piece_count;
    int64_t elements, own_elements; /* of an arena of shards; of it without padding */
    int *order[PARAM_PASSES];       /* units in the order in which a pass first uses them */
    int order_count[PARAM_PASSES];
    piece *gathered[PARAM_PASSES], *gradients; /* [params] where the parameter, or its gradient, is placed */
    int64_t gathered_elements, gradient_elements; /* of the arenas of places */
} param_shards;

/* Places all parameters in an arena of *arena_elements (pieces[param]), each aligned to `line` elements, and
 * plans the rest from the passes of `program`. */
status param_shards_open(const nn_program *program, const param_shards_config *config, int line,
                         piece *pieces, int64_t *arena_elements, param_shards **out);
void param_shards_close(param_shards **shards);

/* Whether operations find parameters, and gradients, in places rather than in whole arenas. */
static inline bool param_shards_place_params(const param_shards_config *c)
{
    return c->stage == PARAM_SHARD_ALL || c->mixed;
}

static inline bool param_shards_place_gradients(const param_shards_config *c)
{
    return c->stage >= PARAM_SHARD_GRADIENTS || (c->mixed && !c->accumulates);
}

/* Elements of the place of a unit's whole gradients. */
int64_t param_gradients_place(const param_shards *s, int unit);

/* This rank's shard of a unit that is cut as one vector, in the arena. */
static inline piece param_shard_of(const param_shards *s, int unit)
{
    const param_unit *u = &s->units[unit];
    return (piece){u->whole.offset + s->config.rank * u->shard, u->shard};
}

#endif
