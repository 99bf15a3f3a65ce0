/* The parameter set of one rank: arenas for parameters, gradients and buffers. Each arena is allocated once.
 * Tensors are aligned, have the layout that the device's kernels need, and are in the model's registration
 * order. Imports, exports and checkpoints convert between this layout and PyTorch's layout.
 *
 * In a sharded set (shards.h) the parameters of a unit are adjacent. The second stage of ZeRO replaces the
 * arena of all gradients by two arenas: the shards of all units, and whole gradients of only the units in
 * use. The third stage does the same with the parameters:
 *
 *     stage                   parameters                       gradients
 *     PARAM_SHARD_STATE       whole in `params`                whole in `grads`
 *     PARAM_SHARD_GRADIENTS   whole in `params`                shards in `grad_shards`, units in `grads`
 *     PARAM_SHARD_ALL         shards in `params`,              shards in `grad_shards`, units in `grads`
 *                             units in `gathered` */
#ifndef COMMON_NN_PARAMS_H
#define COMMON_NN_PARAMS_H

#include "common/device/device.h"
#include "common/memory/piece.h"
#include "common/nn/model.h"
#include "common/nn/program.h"
#include "common/nn/shards.h"

typedef struct param_set {
    const nn_model *model; /* borrowed */
    device *device;        /* borrowed */
    dtype type;            /* type that operations, updates and checkpoints use */
    /* Type of `params`, `gathered`, `grads` and `grad_shards`. It is bfloat16 with mixed precision, else
     * `type`. */
    dtype sent;
    /* [param_count] range of each parameter in an arena of all parameters; its gradient has the same range
     * in an arena of all gradients */
    piece *pieces;
    device_layout *layouts;
    int64_t arena_elements; /* number of elements of an arena of all parameters, including padding */
    device_memory params, grads;
    param_shards *shards; /* NULL if nothing is sharded */
    device_memory gathered, grad_shards;
    /* Master copy, in `type`, of this rank's shards of the parameters. Updates read and write the master
     * copy. `masters`, `f32_params`, `f32_grads` and `f32_shards` are used only with mixed precision. */
    device_memory masters;
    /* Parameters and gradients of the units in use, in `type`. Operations read `f32_params` and write
     * `f32_grads`. If whole gradients are added up over micro-batches, `f32_grads` is an arena of all
     * gradients. */
    device_memory f32_params, f32_grads;
    /* Gradient shards, summed over micro-batches, in `type`. */
    device_memory f32_shards;
    /* Arena of all parameters, which exists only between param_set_hold_whole() and
     * param_set_drop_whole(). */
    device_memory whole;
    /* [param_count] `placed[pass]` holds the range of each parameter in `params` or `gathered` during a pass.
     * `grads_placed` holds the range of each gradient in `grads`. */
    const piece *placed[PARAM_PASSES], *grads_placed;
    /* bfloat16 copy of `params`, with the same layout. Convolutions and linear layers read the copy if
     * activations are bfloat16. */
    device_memory bf16_copy;
    /* True if `bf16_copy` equals `params`, because the last update also wrote the copy. If false, every
     * forward pass writes the copy, layer by layer. */
    bool bf16_copy_current;
    bool bf16_copy_kept;  /* true if updates of this rank also write the copy */
    piece *buffer_pieces; /* [buffer_count] */
    int64_t buffer_elements;
    device_memory buffers;
    /* sizes of the parameters and of the buffers in bytes, without padding */
    int64_t logical_bytes, buffer_bytes;
} param_set;

typedef struct param_set_config {
    device_memory_kind param_kind, grad_kind, buffer_kind;
    bool gradients; /* false for a server that only keeps parameters */
    bool bf16_copy; /* true to allocate the bfloat16 copy, if the program reads it */
    param_shards_config shards;
} param_set_config;

/* Allocates the arenas, all zero, in layouts that suit the operations of `program`. The engine counts the
 * arenas in the ledger, because the lifetime of gradients depends on the engine. */
status param_set_open(device *d, const nn_model *model, const nn_program *program,
                      const param_set_config *config, param_set **out);
void param_set_close(param_set **set);

static inline param_sharding param_set_sharding(const param_set *set)
{
    return set->shards ? set->shards->config.stage : PARAM_SHARD_NONE;
}

/* Returns true if parameters are bfloat16 and updates use the master copy. */
static inline bool param_set_is_mixed(const param_set *set)
{
    return set->shards && set->shards->config.mixed;
}

/* Returns true if no arena holds all parameters in `type`, so that code must gather the parameters before
 * reading them. */
static inline bool param_set_gathers(const param_set *set)
{
    return param_set_sharding(set) == PARAM_SHARD_ALL || param_set_is_mixed(set);
}

/* Allocates `whole` if param_set_gathers() is true and `whole` is not yet allocated. The caller then fills
 * `whole`. Exports, hashes and evaluation programs read the parameters from `whole`. */
status param_set_hold_whole(param_set *set);
void param_set_drop_whole(param_set *set);

/* Returns the arena of all parameters, or NULL if the set gathers parameters and `whole` is not allocated. */
static inline void *param_set_values(const param_set *set)
{
    return param_set_gathers(set) ? set->whole.data : set->params.data;
}

/* Writes the bfloat16 copy of all parameters in stream order if the copy is outdated. Does nothing if updates
 * of this rank do not write the copy. */
status param_set_refresh_bf16_copy(param_set *set, device_stream *s);

/* Returns the address of a parameter's gradient in `grads`. Must not be called with mixed precision. */
static inline void *param_set_gradient(const param_set *set, int param)
{
    return (char *)set->grads.data + set->grads_placed[param].offset * dtype_size(set->type);
}

static inline piece_list param_set_pieces(const param_set *set, int first, int count)
{
    return (piece_list){set->pieces + first, count};
}

/* Marks the bfloat16 copy as outdated. Code that writes `params` but not the copy must call this function. */
static inline void param_set_forget_bf16_copy(param_set *set)
{
    set->bf16_copy_current = false;
}

/* Import or export one tensor. `arena` is params.data, grads.data or an arena with the same layout. `plain`
 * is host memory, in PyTorch's order. `host_type` is float32 or float64. An import also accepts float16 and
 * bfloat16. If the stream of an export is NULL, `arena` is in host memory. If the set is sharded, an import
 * into an arena of shards writes only this rank's shards, and an export of params.data reads `whole`. */
status param_set_import(param_set *set, device_stream *s, void *arena, int param, dtype host_type,
                        const void *plain);
status param_set_export(const param_set *set, device_stream *s, const void *arena, int param, dtype host_type,
                        void *plain);
status param_set_import_buffer(param_set *set, device_stream *s, int buffer, dtype host_type,
                               const void *plain);
status param_set_export_buffer(const param_set *set, device_stream *s, int buffer, dtype host_type,
                               void *plain);

/* Fills parameters and buffers with the model's initial values. */
status param_set_initialize(param_set *set, device_stream *s, uint64_t seed);

/* Computes XXH3 (64 bit) of the float32 values of all parameters in PyTorch's order. Equal parameters have
 * equal hashes on every device and engine. */
status param_set_hash(const param_set *set, device_stream *s, uint64_t *out);

#endif
