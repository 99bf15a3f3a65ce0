/* The policies. Their sources: PyTorch's torch/nn/parallel/distributed.py and, since there is one, its
 * torch/csrc/distributed/c10d/reducer.cpp, in the versions named; NVIDIA's apex/parallel/distributed.py. */
#include "common/base/text.h"
#include "ring/policies/policy.h"

#include <string.h>

#define MIB INT64_C(1048576)

#define REACH(order, first, others)                                                                  \
    {BUCKET_REACH_BYTES, BUCKET_ORDER_##order, (first)*MIB, (others)*MIB}
#define ELEMENTS(order, count) {BUCKET_REACH_ELEMENTS, BUCKET_ORDER_##order, count, count}
#define WITHIN(order, limit) {BUCKET_WITHIN_BYTES, BUCKET_ORDER_##order, (limit)*MIB, (limit)*MIB}
#define ONE(order) {BUCKET_ONE, BUCKET_ORDER_##order, 0, 0}
#define EACH(order) {BUCKET_EACH, BUCKET_ORDER_##order, 0, 0}

/* X(name, source, summary, fields): one row per policy. */
#define POLICY_LIST(X)                                                                               \
    X("ddp", "torch.nn.parallel.DistributedDataParallel since 2022 (pull requests 35137, 72843)",    \
      "25 MiB buckets in the order in which gradients became ready, overlapped from the second step on", \
      .first = {ONE(REVERSE), RING_WHEN_READY}, .later = {REACH(READY, 1, 25), RING_WHEN_READY},     \
      .rebuilds = true, .unused = {REACH(LAST_FIRST, 1, 25), RING_WHEN_READY},                       \
      .divide_before = true, .broadcast_buffers = true)                                              \
    X("ddp-2019", "DistributedDataParallel of torch 1.1 to 1.5 (C++ reducer before pull request 35137)", \
      "1 and 25 MiB buckets put together in registration order, launched last to first",             \
      .first = {REACH(LAST_FIRST, 1, 25), RING_WHEN_READY}, .divide_before = true,                   \
      .broadcast_buffers = true)                                                                     \
    X("ddp-1.0", "DistributedDataParallel of torch 1.0 (dist._dist_bucket_tensors)",                 \
      "25 MiB buckets put together in registration order, launched last to first",                   \
      .first = {REACH(LAST_FIRST, 25, 25), RING_WHEN_READY}, .divide_before = true,                  \
      .broadcast_buffers = true)                                                                     \
    X("apex", "apex.parallel.DistributedDataParallel after 28 September 2018",                       \
      "messages of 10,000,000 elements in ready order, overlapped from the second step on",          \
      .first = {ONE(REGISTRATION), RING_AFTER_BACKWARD},                                             \
      .later = {ELEMENTS(READY, 10000000), RING_WHEN_READY}, .rebuilds = true,                       \
      .lifetime = RING_BUCKETS_PASS)                                                                     \
    X("torch-0.4.1", "torch.nn.parallel.DistributedDataParallel of torch 0.4.1, NCCL backend",       \
      "after the backward pass, chunks of up to 256 MiB one after another",                         \
      .first = {WITHIN(REGISTRATION, 256), RING_AFTER_BACKWARD}, .broadcast_buffers = true,          \
      .serial = true, .lifetime = RING_BUCKETS_PASS)                                                     \
    X("torch-0.4.1-gloo", "torch.nn.parallel.DistributedDataParallel of torch 0.4.1, Gloo backend",  \
      "buckets of up to 1 MiB in registration order, each when its gradients are ready",             \
      .first = {{BUCKET_WITHIN_BYTES, BUCKET_ORDER_LAST_FIRST, MIB, MIB}, RING_WHEN_READY},          \
      .divide_before = true, .broadcast_buffers = true, .lifetime = RING_BUCKETS_PASS)                   \
    X("flat", "the textbook's: gradients as one vector",                                             \
      "one bucket, after the backward pass", .first = {ONE(REGISTRATION), RING_AFTER_BACKWARD})     \
    X("naive", "the textbook's first attempt: one collective per parameter",                             \
      "every gradient by itself, as soon as it is ready", .first = {EACH(REVERSE), RING_WHEN_READY})

#define POLICY_ROW(name_, source, summary, ...) {.name = name_, __VA_ARGS__},
#define POLICY_INFO(name_, source, summary, ...) {name_, source, summary},

const ring_policy ring_policies[] = {POLICY_LIST(POLICY_ROW)};
const sync_policy_info ring_policy_infos[] = {POLICY_LIST(POLICY_INFO)};
_Static_assert(sizeof ring_policies / sizeof ring_policies[0] == RING_POLICIES, "the number in policy.h");

status ring_policy_find(const char *name, const ring_policy **out)
{
    int index;
    TRY(text_parse_choice("ring policy", name, &ring_policies[0].name, sizeof *ring_policies, RING_POLICIES, &index));
    *out = &ring_policies[index];
    return STATUS_OK;
}
