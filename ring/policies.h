/* The policies, one row each: POLICY(name, source, summary, fields of ring_policy). A file that includes this
 * one defines POLICY first. Options override fields.
 *
 * Sources are PyTorch's torch/nn/parallel/distributed.py and, in versions that have it,
 * torch/csrc/distributed/c10d/reducer.cpp; NVIDIA's apex/parallel/distributed.py; and Rajbhandari et al.,
 * "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020. */

/* Values of ring_step_plan.buckets: the rule that closes a bucket, the order of tensors, and limits in MiB or
 * elements. */
#define BUCKETS_REACH(order, first, others)                                                                  \
    .buckets = {BUCKET_REACH_BYTES, BUCKET_ORDER_##order, (first) << 20, (others) << 20}
#define BUCKETS_ELEMENTS(order, count) .buckets = {BUCKET_REACH_ELEMENTS, BUCKET_ORDER_##order, count, count}
#define BUCKETS_WITHIN(order, limit)                                                                         \
    .buckets = {BUCKET_WITHIN_BYTES, BUCKET_ORDER_##order, (limit) << 20, (limit) << 20}
#define BUCKETS_ONE(order) .buckets = {BUCKET_ONE, BUCKET_ORDER_##order, 0, 0}
#define BUCKETS_EACH(order) .buckets = {BUCKET_EACH, BUCKET_ORDER_##order, 0, 0}
#define BUCKETS_UNITS .buckets = {BUCKET_UNITS, BUCKET_ORDER_READY, 0, 0}

POLICY("ddp", "torch.nn.parallel.DistributedDataParallel since 2022 (pull requests 35137, 72843)",
       "25 MiB buckets in the order in which gradients became ready, overlapped from the second step on",
       .first = {BUCKETS_ONE(REVERSE), RING_WHEN_READY},
       .later = {BUCKETS_REACH(READY, 1, 25), RING_WHEN_READY}, .rebuilds = true,
       .unused = {BUCKETS_REACH(LAST_FIRST, 1, 25), RING_WHEN_READY}, .divide_before = true,
       .broadcast_buffers = true)
POLICY("ddp-2019", "DistributedDataParallel of torch 1.1 to 1.5 (C++ reducer before pull request 35137)",
       "1 and 25 MiB buckets put together in registration order, launched last to first",
       .first = {BUCKETS_REACH(LAST_FIRST, 1, 25), RING_WHEN_READY}, .divide_before = true,
       .broadcast_buffers = true)
POLICY("ddp-1.0", "DistributedDataParallel of torch 1.0 (dist._dist_bucket_tensors)",
       "25 MiB buckets put together in registration order, launched last to first",
       .first = {BUCKETS_REACH(LAST_FIRST, 25, 25), RING_WHEN_READY}, .divide_before = true,
       .broadcast_buffers = true)
POLICY("apex", "apex.parallel.DistributedDataParallel after 28 September 2018",
       "messages of 10,000,000 elements in ready order, overlapped from the second step on",
       .first = {BUCKETS_ONE(REGISTRATION), RING_AFTER_BACKWARD},
       .later = {BUCKETS_ELEMENTS(READY, 10000000), RING_WHEN_READY}, .rebuilds = true,
       .lifetime = RING_BUCKETS_PASS)
POLICY("torch-0.4.1", "torch.nn.parallel.DistributedDataParallel of torch 0.4.1, NCCL backend",
       "after the backward pass, chunks of up to 256 MiB one after another",
       .first = {BUCKETS_WITHIN(REGISTRATION, 256), RING_AFTER_BACKWARD}, .broadcast_buffers = true,
       .serial = true, .lifetime = RING_BUCKETS_PASS)
POLICY("torch-0.4.1-gloo", "torch.nn.parallel.DistributedDataParallel of torch 0.4.1, Gloo backend",
       "buckets of up to 1 MiB in registration order, each when its gradients are ready",
       .first = {BUCKETS_WITHIN(LAST_FIRST, 1), RING_WHEN_READY}, .divide_before = true,
       .broadcast_buffers = true, .lifetime = RING_BUCKETS_PASS)
POLICY("horovod", "Sergeev and Del Balso, arXiv:1802.05799; HOROVOD_FUSION_THRESHOLD of Horovod 0.19",
       "buckets of up to 64 MiB in reverse order of registration, each when its gradients are ready",
       .first = {BUCKETS_WITHIN(REVERSE, 64), RING_WHEN_READY})
POLICY("horovod-xla", "Horovod under TensorFlow's XLA (horovod issue 1283, DeepLearningExamples issue 156)",
       "like horovod, but after the backward pass, because a compiled step returns all gradients at once",
       .first = {BUCKETS_WITHIN(REVERSE, 64), RING_AFTER_BACKWARD})
POLICY("flat", "the textbook's: gradients as one vector", "one bucket, after the backward pass",
       .first = {BUCKETS_ONE(REGISTRATION), RING_AFTER_BACKWARD})
POLICY("naive", "the textbook's first attempt: one collective per parameter",
       "one all-reduce per gradient, as soon as the gradient is ready",
       .first = {BUCKETS_EACH(REVERSE), RING_WHEN_READY})
POLICY("zero1", "ZeRO stage 1, optimizer state (Rajbhandari et al., SC 2020)",
       "a unit's gradients reduce-scattered when ready, each rank updates its shard, parameters all-gathered",
       .first = {BUCKETS_UNITS, RING_WHEN_READY}, .divide_before = true, .broadcast_buffers = true,
       .sharding = PARAM_SHARD_STATE)
POLICY("zero2", "ZeRO stage 2, and gradients (Rajbhandari et al., SC 2020)",
       "like zero1, but each rank keeps only a shard of the gradients, summed over micro-batches",
       .first = {BUCKETS_UNITS, RING_WHEN_READY}, .divide_before = true, .broadcast_buffers = true,
       .sharding = PARAM_SHARD_GRADIENTS)
POLICY("zero3", "ZeRO stage 3, and parameters (Rajbhandari et al., SC 2020)",
       "like zero2, but a unit's parameters are all-gathered before each pass and freed after it",
       .first = {BUCKETS_UNITS, RING_WHEN_READY}, .divide_before = true, .broadcast_buffers = true,
       .sharding = PARAM_SHARD_ALL)
POLICY(
    "fsdp", "torch.distributed.fsdp.fully_shard (torch 2.6 and later, FSDP2)",
    "like zero3, but each parameter is cut along its first dimension, in chunks that are padded to one size",
    .first = {BUCKETS_UNITS, RING_WHEN_READY}, .divide_before = true, .broadcast_buffers = true,
    .sharding = PARAM_SHARD_ALL, .rows = true)
