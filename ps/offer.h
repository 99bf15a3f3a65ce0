/* What ranks and servers tell each other before the first step: lines of text. The first ones are the
 * sender's own; the others must be the same everywhere, so that a difference can be named. */
#ifndef PS_OFFER_H
#define PS_OFFER_H

#include "common/sync/engine.h"
#include "ps/policy.h"

enum { PS_OFFER_SHARES = 5 };
typedef struct ps_offer_own {
    uint64_t host;   /* shm_host_id() */
    bool shared;     /* its arenas can be mapped */
    const char *url; /* of its server; "" where it has none */
    int share_count; /* p2p: memory of its GPU that the others open */
    device_share shares[PS_OFFER_SHARES];
} ps_offer_own;

/* The caller frees out->data. */
status ps_offer_make(const ps_offer_own *own, int world, const char *policy_name, const ps_policy *policy,
                     const ps_options *options, const param_set *params, const optimizer *optimizer, sync_blob *out);

/* Reads the sender's own lines; `url` points into the blob's copy url[size]. STATUS_PROTOCOL where it is no
 * offer of this version. `who` is for messages: "rank 3". */
status ps_offer_read(const sync_blob *offer, const char *who, ps_offer_own *own, char *url, size_t size);

/* STATUS_PROTOCOL names the first line in which the two differ. */
status ps_offer_compare(const sync_blob *mine, const char *me, const sync_blob *other, const char *who);

#endif
