/* The ring engine: every rank keeps the whole model, gradients are put into buckets and all-reduced while
 * the backward pass goes on. What exactly happens is a row of the policy table (ring/policies). */
#ifndef RING_RING_H
#define RING_RING_H

#include "common/sync/engine.h"
#include "ring/policies/policy.h"

extern const sync_engine_type sync_ring;

/* The times of one bucket in one step, in ns on the device's clock. Written by the engine into a fixed ring
 * of records; to be read by the thread that calls the stages, after finish(). */
typedef struct ring_bucket_record {
    int64_t id; /* counts records, from 1 */
    int64_t step;
    int bucket, tensors;
    int64_t bytes;       /* as they are sent */
    int64_t ready_ns;    /* its last gradient was ready */
    int64_t launched_ns; /* handed to the collectives */
    int64_t started_ns;  /* all ranks had arrived: data began to move */
    int64_t finished_ns;
    int64_t wait_begin_ns, wait_end_ns; /* the compute stream waited for it; equal: it did not wait */
    collective_algorithm algorithm;     /* that reduced it; LIBRARY: the library does not say */
} ring_bucket_record;

/* Copies up to `capacity` records with ids above `after`, oldest first; returns how many. Records that have
 * been overwritten are left out. */
int ring_bucket_records(const sync_engine *e, int64_t after, ring_bucket_record *out, int capacity);

/* STATUS_CONFIG unless collectives in host memory, on one host, can serve `world` ranks. */
status ring_check_ranks(const void *options, const char *policy, int world);

/* How long an all-reduce of `bytes` takes over the emulated link at least; 0: none is emulated. */
int64_t ring_link_bound_ns(const sync_engine *e, int64_t bytes);

/* What the engine runs: `collective` and `algorithm` are those that carry and reduce the buckets. Borrowed.
 */
const ring_settings *ring_get_settings(const sync_engine *e);

/* The buckets in use: of the first step until the second begins, then of the later ones. Borrowed. */
const bucket_schedule *ring_buckets(const sync_engine *e);

#endif
