/* The parameter set of one rank: arenas for parameters, gradients and buffers, allocated once, each
 * tensor aligned, in the layout that the device's kernels want. The order is the model's registration
 * order, except that of a sharded set units lie one after another. Only imports, exports and checkpoints use
 * PyTorch's layout.
 *
 * A sharded set (shards.h) has whole arenas only of what is not cut: parameters up to the second stage,
 * gradients in the first. Where parameters are cut, `params` is an arena of shards, and `gathered` has the
 * places of whole units; where gradients are, `grads` has the places of whole units' gradients, and
 * `grad_shards` is an arena of shards. */
#ifndef COMMON_NN_PARAMS_H
#define COMMON_NN_PARAMS_H

#include "common/device/device.h"
#include "common/memory/ledger.h"
#include "common/memory/piece.h"
#include "common/nn/model.h"
#include "common/nn/program.h"
#include "common/nn/shards.h"

typedef struct param_set {
    const nn_model *model; /* borrowed */
    device *device;        /* borrowed */
    dtype type;            /* of operations, updates and checkpoints */
    dtype sent; /* of params, gathered, grads and grad_shards: bfloat16 with mixed precision, else `type` */
    piece *pieces; /* [param_count] where each parameter (and its gradient) lies */
    device_layout *layouts;
    int64_t arena_elements; /* of one arena, padding included */
    device_memory params, grads;
    param_shards *shards; /* NULL: nothing is cut */
    device_memory gathered, grad_shards;
    device_memory
        masters; /* with mixed precision: this rank's shards of the parameters as they are updated */
    device_memory wide,
        wide_grads; /* with mixed precision: places of whole units, as operations read and write them; where
                     * whole gradients are added up, wide_grads is an arena of all */
    device_memory wide_shards; /* where shards of gradients are added up with mixed precision: their sums */
    device_memory whole;       /* all parameters, between param_set_hold_whole() and param_set_drop_whole() */
    const piece *placed[PARAM_PASSES],
        *grads_placed;       /* [param_count] where programs find a parameter in each pass, in
                              * `params` or `gathered`, and its gradient in `grads` */
    device_memory bf16_copy; /* bfloat16, laid out like params; read by convolutions and linear layers if
                              * activations are bfloat16 */
    bool bf16_copy_current; /* equals the parameters: the last update wrote both. Otherwise every forward pass
                             * writes the copy, layer by layer */
    bool bf16_copy_kept;    /* updates of this rank write the copy too */
    piece *buffer_pieces;   /* [buffer_count] */
    int64_t buffer_elements;
    device_memory buffers;
    int64_t logical_bytes, buffer_bytes; /* without padding */
} param_set;

typedef struct param_set_config {
    device_memory_kind param_kind, grad_kind, buffer_kind;
    bool gradients; /* false: none are allocated (a server that only keeps parameters) */
    bool bf16_copy; /* with the bfloat16 copy, if the program reads it */
    param_shards_config shards;
} param_set_config;

/* Layouts are chosen with the operations of `program`. Everything starts zero; nothing is in the ledger
 * yet: the lifetime of gradients depends on the engine. */
status param_set_open(device *d, const nn_model *model, const nn_program *program,
                      const param_set_config *config, param_set **out);
void param_set_close(param_set **set);

/* What of the set is cut among ranks. */
static inline param_sharding param_set_sharding(const param_set *set)
{
    return set->shards ? set->shards->config.stage : PARAM_SHARD_NONE;
}

/* Parameters are bfloat16, and masters are updated. */
static inline bool param_set_is_mixed(const param_set *set)
{
    return set->shards && set->shards->config.mixed;
}

/* Nobody has all parameters as they are updated. */
static inline bool param_set_gathers(const param_set *set)
{
    return param_set_sharding(set) == PARAM_SHARD_ALL || param_set_is_mixed(set);
}

/* Where parameters are cut, or masters are: memory for all of them, which the owner fills; exports, hashes
 * and evaluation programs read it. Elsewhere, and if it is there already, nothing. */
status param_set_hold_whole(param_set *set);
void param_set_drop_whole(param_set *set);

/* The arena of all parameters; NULL where they are cut and nobody holds them. */
static inline void *param_set_values(const param_set *set)
{
    return param_set_gathers(set) ? set->whole.data : set->params.data;
}

/* Bytes of the bfloat16 copies, with and without padding. */
static inline size_t param_set_bf16_copy_reserved(const param_set *set)
{
    return (size_t)(set->arena_elements * dtype_size(DTYPE_BF16));
}

static inline int64_t param_set_bf16_copy_bytes(const param_set *set)
{
    return set->model->parameter_elements * dtype_size(DTYPE_BF16);
}

static inline bool param_set_has_bf16_copy(const param_set *set)
{
    return set->bf16_copy.bytes > 0;
}

/* Makes them all at once, in stream order, where updates keep them and they are not current. */
status param_set_refresh_bf16_copy(param_set *set, device_stream *s);

/* Pieces of parameters [first, first + count), merged where they touch. */
static inline piece_list param_set_pieces(const param_set *set, int first, int count)
{
    return (piece_list){set->pieces + first, count};
}

/* Whoever writes params without its copies says so. Imports do. */
static inline void param_set_forget_bf16_copy(param_set *set)
{
    set->bf16_copy_current = false;
}

/* One parameter, or its gradient, from or to PyTorch's order; `arena` is the one it lies in (params.data,
 * grads.data, or any laid out like them) and `plain` host memory of `host_type`: float32 or float64, and for
 * an import also float16 or bfloat16. An export without a stream takes an arena that is a copy in host
 * memory. Of a sharded set an import writes this rank's part to an arena of shards; an export of
 * `params.data` reads `whole`. */
status param_set_import(param_set *set, device_stream *s, void *arena, int param, dtype host_type,
                        const void *plain);
status param_set_export(const param_set *set, device_stream *s, const void *arena, int param, dtype host_type,
                        void *plain);
status param_set_import_buffer(param_set *set, device_stream *s, int buffer, dtype host_type,
                               const void *plain);
status param_set_export_buffer(const param_set *set, device_stream *s, int buffer, dtype host_type,
                               void *plain);

/* Fills parameters and buffers as the layers' `nn_init` says. */
status param_set_initialize(param_set *set, device_stream *s, uint64_t seed);

/* XXH3 (64 bit) over the float32 values of all parameters in PyTorch's order: equal on every device and
 * engine if and only if the parameters are (up to collisions). */
status param_set_hash(const param_set *set, device_stream *s, uint64_t *out);

#endif
