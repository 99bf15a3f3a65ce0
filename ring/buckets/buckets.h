/* How gradients are put together into buckets: a pure function of sizes, types, order and limits. */
#ifndef RING_BUCKETS_BUCKETS_H
#define RING_BUCKETS_BUCKETS_H

#include "common/base/status.h"
#include "common/ops/tensor.h"

#include <stdbool.h>
#include <stdint.h>

/* name, name in reports, what closes a bucket. A bucket holds one element type. */
#define BUCKET_RULE_LIST(X)                                                                                  \
    X(REACH_BYTES, "reach_bytes", "its bytes reach the limit: it may overshoot")                             \
    X(REACH_ELEMENTS, "reach_elements", "its elements reach the limit: it may overshoot")                    \
    X(WITHIN_BYTES, "within_bytes", "the next tensor would take it beyond the limit")                        \
    X(ONE, "one", "nothing: one bucket a type")                                                              \
    X(EACH, "each", "every tensor: one bucket a tensor")

#define BUCKET_RULE_ENUM(name, text, meaning) BUCKET_##name,
typedef enum bucket_rule { BUCKET_RULE_LIST(BUCKET_RULE_ENUM) BUCKET_RULE_COUNT } bucket_rule;
#undef BUCKET_RULE_ENUM

const char *bucket_rule_name(bucket_rule rule);
const char *bucket_rule_meaning(bucket_rule rule);

/* The order in which tensors are put into buckets, and in which these are launched. */
#define BUCKET_ORDER_LIST(X)                                                                                 \
    X(REGISTRATION, "registration") /* as the model registered them */                                       \
    X(REVERSE, "reverse")           /* the other way round */                                                \
    X(READY, "ready")               /* as gradients became ready on rank 0 in the first step */              \
    X(LAST_FIRST, "last_first")     /* put together in registration order, launched last to first */

#define BUCKET_ORDER_ENUM(name, text) BUCKET_ORDER_##name,
typedef enum bucket_order { BUCKET_ORDER_LIST(BUCKET_ORDER_ENUM) BUCKET_ORDER_COUNT } bucket_order;
#undef BUCKET_ORDER_ENUM

const char *bucket_order_name(bucket_order order);

typedef struct bucket_tensor {
    int64_t elements;
    dtype type;
} bucket_tensor;

/* Limits in bytes or elements, as the rule says. The first bucket of a type that closes has `first_limit`,
 * the others `limit`. */
typedef struct bucket_plan {
    bucket_rule rule;
    bucket_order order;
    int64_t first_limit, limit;
} bucket_plan;

typedef struct bucket {
    int first, count; /* of bucket_list.tensors */
    dtype type;
    int64_t elements, bytes;
} bucket;

/* Room for any assignment of `capacity` tensors. */
typedef struct bucket_list {
    bucket *buckets; /* in the order in which they are launched */
    int count;
    int *tensors; /* indices of tensors, bucket by bucket */
    int capacity;
    int *scratch; /* [capacity] the bucket of each tensor */
} bucket_list;

status bucket_list_open(int capacity, bucket_list *out);
void bucket_list_close(bucket_list *list);

/* Fills `out`, whose capacity is at least `count`; nothing is allocated. `ready` [count] is a permutation
 * of the tensors for BUCKET_ORDER_READY, else not read.
 *
 * Buckets stand in the order in which they close, those that never do behind them in the order of their
 * first tensors; in the two registration orders all stand in the order of their first tensors (so does
 * compute_bucket_assignment_by_size() of PyTorch, torch/csrc/distributed/c10d/reducer.cpp). */
void bucket_assign(const bucket_plan *plan, const bucket_tensor *tensors, int count, const int *ready,
                   bucket_list *out);

#endif
