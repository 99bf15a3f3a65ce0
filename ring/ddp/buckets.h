/* Buckets of gradients. schedule.c assigns gradients to buckets, and determines when a bucket is launched and
 * waited for. buckets.c contains the names of rules and orders. Buckets are plain data. The functions in this
 * header use no device and no thread. Only bucket_schedule_open() allocates memory. */
#ifndef RING_DDP_BUCKETS_H
#define RING_DDP_BUCKETS_H

#include "common/base/status.h"
#include "common/ops/tensor.h"

#include <stdbool.h>
#include <stdint.h>

/* Rules that say when a bucket is closed. A row holds the name of a rule in code and its name in reports. All
 * gradients of a bucket have the same element type. */
#define BUCKET_RULE_LIST(X)                                                                                  \
    X(REACH_BYTES, "reach_bytes")       /* when the limit in bytes is reached */                             \
    X(REACH_ELEMENTS, "reach_elements") /* when the limit in elements is reached */                          \
    X(WITHIN_BYTES, "within_bytes")     /* before a tensor that would exceed the limit */                    \
    X(ONE, "one")                       /* never, so each element type has one bucket */                     \
    X(EACH, "each")                     /* after every tensor */                                             \
    X(UNITS, "units")                   /* after the last tensor of a unit */

#define BUCKET_RULE_ENUM(name, text) BUCKET_##name,
typedef enum bucket_rule { BUCKET_RULE_LIST(BUCKET_RULE_ENUM) BUCKET_RULE_COUNT } bucket_rule;
#undef BUCKET_RULE_ENUM

extern const char *const bucket_rule_names[BUCKET_RULE_COUNT];

/* The order in which tensors are put into buckets, and in which buckets are launched. */
#define BUCKET_ORDER_LIST(X)                                                                                 \
    X(REGISTRATION, "registration") /* order of registration in the model */                                 \
    X(REVERSE, "reverse")           /* reverse order of registration */                                      \
    X(READY, "ready")               /* order of readiness on rank 0 in the first step */                     \
    X(LAST_FIRST, "last_first")     /* filled in order of registration, launched last to first */

#define BUCKET_ORDER_ENUM(name, text) BUCKET_ORDER_##name,
typedef enum bucket_order { BUCKET_ORDER_LIST(BUCKET_ORDER_ENUM) BUCKET_ORDER_COUNT } bucket_order;
#undef BUCKET_ORDER_ENUM

extern const char *const bucket_order_names[BUCKET_ORDER_COUNT];

typedef struct bucket_tensor {
    int64_t elements;
    dtype type;
    int unit; /* Tensors with the same number share a bucket (BUCKET_UNITS). */
} bucket_tensor;

/* How gradients are assigned to buckets. The rule determines whether limits are in bytes or elements.
 * `first_limit` is the limit of the first bucket of each element type, and `limit` is the limit of all other
 * buckets. */
typedef struct bucket_plan {
    bucket_rule rule;
    bucket_order order;
    int64_t first_limit, limit;
} bucket_plan;

typedef struct bucket {
    int first, count; /* Tensors of the bucket, as a range of bucket_schedule.tensors. */
    int64_t elements, bytes;
    int pending; /* Number of gradients that are not ready in this step. */
} bucket;

enum { BUCKET_NONE = -1 };

/* The buckets of a model, and the progress of the current step. */
typedef struct bucket_schedule {
    bucket *buckets; /* In launch order. */
    int count;
    int *tensors;   /* [capacity] Indices of tensors, bucket by bucket. */
    int *bucket_of; /* [capacity] Bucket of each tensor. */
    int capacity;
    int next_launch, next_wait; /* Buckets are launched and waited for in order. */
} bucket_schedule;

status bucket_schedule_open(int capacity, bucket_schedule *out);
void bucket_schedule_close(bucket_schedule *s);

/* schedule.c */
/* Fills `out`, whose capacity is at least `count`, without allocating. `ready` [count] is a permutation of
 * the tensors, and is read only if the order is BUCKET_ORDER_READY.
 *
 * Buckets are sorted by the order in which they close. Buckets that never close follow in the order of their
 * first tensors. BUCKET_ORDER_REGISTRATION and BUCKET_ORDER_LAST_FIRST instead sort all buckets by their
 * first tensors, as compute_bucket_assignment_by_size() of PyTorch does
 * (torch/csrc/distributed/c10d/reducer.cpp), and BUCKET_ORDER_LAST_FIRST then reverses the buckets. */
void bucket_assign(const bucket_plan *plan, const bucket_tensor *tensors, int count, const int *ready,
                   bucket_schedule *out);

/* Begins a step, in which no gradient is ready yet. */
void bucket_begin_step(bucket_schedule *s);
/* Counts a gradient as ready. Returns true if the gradient was the last of its bucket. */
bool bucket_gradient_ready(bucket_schedule *s, int tensor);
/* Returns the next bucket if it can be launched now, else BUCKET_NONE. */
int bucket_take_complete(bucket_schedule *s);
#endif
