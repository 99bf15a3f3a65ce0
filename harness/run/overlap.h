/* What of a step's communication lay behind computation, from the lives of buckets that the engine records.
 */
#ifndef HARNESS_RUN_OVERLAP_H
#define HARNESS_RUN_OVERLAP_H

#include "harness/train/trainer.h"
#include "ring/ring.h"

#include <jansson.h>

typedef struct overlap {
    ring_bucket_record *records; /* [capacity] of one step */
    int capacity;
    int64_t seen;              /* id of the last record that was looked at */
    int64_t last_bucket_bytes; /* of the last step; 0: none yet */
} overlap;

status overlap_open(overlap *o, int params);
void overlap_close(overlap *o);

/* Behind every step: fills in result->times what the train loop does not know. An engine without buckets
 * hides what nobody waited for. */
void overlap_take(overlap *o, const sync_engine *engine, step_result *result);

/* "last_bucket_bytes" and "last_bucket_bound_s": how long it takes at least over an emulated link; both null
 * where there is no such thing. */
void overlap_to_json(const overlap *o, const sync_engine *engine, json_t *rank);

#endif
