/* torch's coalescing: parameters in the order of registration, in chunks of a size
 * (torch/csrc/cuda/comm.cpp and torch/csrc/utils/tensor_flatten.h). */
#ifndef PS_DP_CHUNKS_H
#define PS_DP_CHUNKS_H

#include "common/nn/params.h"

typedef enum dp_chunk_rule {
    DP_CHUNK_REACHES, /* a chunk closes when it has `limit` bytes or more: broadcast_coalesced */
    DP_CHUNK_WITHIN   /* a chunk closes before it would have more: reduce_add_coalesced */
} dp_chunk_rule;

/* Parameters first .. first + count - 1. */
typedef struct dp_chunk {
    int first, count;
    int64_t bytes; /* without padding */
} dp_chunk;

typedef struct dp_chunks {
    dp_chunk *list;
    int count;
    int most_pieces;       /* of a chunk */
    int64_t largest_bytes; /* of a chunk */
} dp_chunks;

status dp_chunks_make(const param_set *set, dp_chunk_rule rule, int64_t limit, dp_chunks *out);
void dp_chunks_free(dp_chunks *chunks);

#endif
