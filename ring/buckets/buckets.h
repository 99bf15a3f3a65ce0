/* Buckets of gradients: how they are assigned, launched and waited for (schedule.c), and the rules and orders
 * of the policies (buckets.c). Plain data: no device, no thread, no memory after open. */
#ifndef RING_BUCKETS_BUCKETS_H
#define RING_BUCKETS_BUCKETS_H

#include "common/base/status.h"
#include "common/ops/tensor.h"

#include <stdbool.h>
#include <stdint.h>

/* When a bucket is closed: name, name in reports. A bucket holds one element type. */
#define BUCKET_RULE_LIST(X)                                                                                  \
    X(REACH_BYTES, "reach_bytes")       /* its bytes reach the limit: it may overshoot */                    \
    X(REACH_ELEMENTS, "reach_elements") /* its elements reach the limit: it may overshoot */                 \
    X(WITHIN_BYTES, "within_bytes")     /* the next tensor would exceed the limit */                         \
    X(ONE, "one")                       /* never: one bucket per type */                                     \
    X(EACH, "each")                     /* after every tensor */                                             \
    X(UNITS, "units")                   /* after the last tensor of its unit */

#define BUCKET_RULE_ENUM(name, text) BUCKET_##name,
typedef enum bucket_rule { BUCKET_RULE_LIST(BUCKET_RULE_ENUM) BUCKET_RULE_COUNT } bucket_rule;
#undef BUCKET_RULE_ENUM

const char *bucket_rule_name(bucket_rule rule);

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
    int unit; /* of UNITS: tensors with the same number share a bucket */
} bucket_tensor;

/* Limits in bytes or elements, as the rule says. The first bucket of a type that closes has `first_limit`,
 * the others `limit`. */
typedef struct bucket_plan {
    bucket_rule rule;
    bucket_order order;
    int64_t first_limit, limit;
} bucket_plan;

typedef struct bucket {
    int first, count; /* of bucket_schedule.tensors */
    dtype type;
    int64_t elements, bytes;
    int pending; /* gradients that are not ready in this step */
} bucket;

enum { BUCKET_NONE = -1 };

/* The buckets of a model, and how far a step has come with them. */
typedef struct bucket_schedule {
    bucket *buckets; /* in the order in which they are launched */
    int count;
    int *tensors;   /* [capacity] indices of tensors, bucket by bucket */
    int *bucket_of; /* [capacity] by tensor */
    int capacity;
    int next_launch, next_wait;
} bucket_schedule;

status bucket_schedule_open(int capacity, bucket_schedule *out);
void bucket_schedule_close(bucket_schedule *s);

/* schedule.c */
/* Fills `out`, whose capacity is at least `count`; nothing is allocated. `ready` [count] is a permutation
 * of the tensors for BUCKET_ORDER_READY, else not read.
 *
 * Buckets stand in the order in which they close, after them those that never do in the order of their first
 * tensors; in the two registration orders all stand in the order of their first tensors (as in
 * compute_bucket_assignment_by_size() of PyTorch, torch/csrc/distributed/c10d/reducer.cpp). */
void bucket_assign(const bucket_plan *plan, const bucket_tensor *tensors, int count, const int *ready,
                   bucket_schedule *out);

/* A step begins: no gradient is ready. */
void bucket_begin_step(bucket_schedule *s);
/* Returns whether it was the last of its bucket. */
bool bucket_gradient_ready(bucket_schedule *s, int tensor);
/* The next bucket, if it is to be launched now; else BUCKET_NONE. */
int bucket_launch(bucket_schedule *s);
/* The next bucket to wait for, and: the wait has ended. BUCKET_NONE after the last. */
int bucket_to_wait_for(const bucket_schedule *s);
void bucket_arrived(bucket_schedule *s);

#endif
