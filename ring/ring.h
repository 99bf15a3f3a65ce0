/* The ring engine. Gradients are put into buckets, which are all-reduced during the backward pass. A row of
 * the policy table describes the buckets and the all-reduces, and says whether a rank holds the whole model
 * or a shard. The files, in the order in which gradients pass through them:
 *
 *   policies.h, policy.h, options.c  the policies, and the options that change a row
 *   engine.c, handshake.c            open, connect, close
 *   ddp/reducer.c                    copies ready gradients into buckets; reduce() waits
 *   ddp/buckets.h, schedule.c        which gradients share a bucket, when the bucket is launched
 *   ddp/compress.c, hooks/           compression: fp16, bf16, PowerSGD
 *   ddp/calls.c                      posts calls to the process group, records the times of calls
 *   ddp/memory.c                     memory that calls read and write
 *   all_reduce/                      collectives in shared memory; ring.c is the ring
 *   zero/                            the policies zero1, zero2, zero3 and fsdp
 *   bench/                           harness bench */
#ifndef RING_RING_H
#define RING_RING_H

#include "common/sync/engine.h"
#include "ring/policy.h"

extern const sync_engine_type sync_ring;

/* The times of one bucket in one step, in ns on the device's clock. The engine writes records into a ring of
 * fixed size. The compute thread may read the records after reduce(). */
typedef struct ring_bucket_record {
    int64_t id; /* Number of the record, from 1. */
    int64_t step;
    int bucket;
    int64_t bytes;       /* Number of bytes that are sent. */
    int64_t ready_ns;    /* Time at which the last gradient was ready. */
    int64_t launched_ns; /* Time at which the bucket was handed to the collectives. */
    int64_t started_ns;  /* Time at which all ranks had arrived and data began to move. */
    int64_t finished_ns;
    /* Begin and end of the time for which the compute stream waited for the bucket. Both are equal if it did
     * not wait. */
    int64_t wait_begin_ns, wait_end_ns;
    /* Algorithm of the all-reduce, or LIBRARY if the library does not report it. */
    collective_algorithm algorithm;
} ring_bucket_record;

/* Copies up to `capacity` records with ids above `after`, oldest first, and returns the number of copied
 * records. Skips records that have been overwritten. */
int ring_bucket_records(const sync_engine *e, int64_t after, ring_bucket_record *out, int capacity);

/* Fails with STATUS_CONFIG if collectives in shared memory cannot serve `world` ranks. */
status ring_check_ranks(const void *options, const char *policy, int world);

/* Returns a lower bound for the time of an all-reduce of `bytes` over the emulated link, or 0 if no link is
 * emulated. */
int64_t ring_link_bound_ns(const sync_engine *e, int64_t bytes);

/* Returns the engine's settings, borrowed. The fields `collective` and `algorithm` are the library and the
 * algorithm that buckets use. */
const ring_settings *ring_get_settings(const sync_engine *e);

#endif
