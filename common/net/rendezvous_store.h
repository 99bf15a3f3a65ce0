/* The store behind a rendezvous: a thread of rank 0 that greets ranks and carries out their calls. */
#ifndef COMMON_NET_RENDEZVOUS_STORE_H
#define COMMON_NET_RENDEZVOUS_STORE_H

#include "common/net/rendezvous.h"
#include "common/net/rendezvous_place.h"
#include "common/net/zmq_socket.h"

typedef struct store store;

enum { STORE_TAG_BYTES = 64, STORE_CLIENT_FRAME_BYTES = RENDEZVOUS_BLOB_MAX };

/* Listens, then starts the thread. `context` outlives the store; `token` and `key` are the job's; no key: NULL. */
status store_start(const rendezvous_options *options, const rendezvous_place *place, uint64_t token,
                   const char *key, zsocket_context *context, store **out);
/* Says goodbye to the ranks, sends out what is left, ends the thread. */
void store_stop(store **s);

const char *store_address(const store *s); /* as bound */
const char *store_own_url(const store *s); /* for the client of rank 0 itself: inproc:// */

#endif
