/* Where a rendezvous takes place: what its URL means for rank 0 and for the others. */
#ifndef COMMON_NET_RENDEZVOUS_PLACE_H
#define COMMON_NET_RENDEZVOUS_PLACE_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { PLACE_TEXT = 256 };

typedef struct rendezvous_place {
    char listen[PLACE_TEXT];  /* for rank 0 */
    char connect[PLACE_TEXT]; /* for the others; "" for file://, whose rank 0 writes it down */
    char path[PLACE_TEXT];    /* of file://, else "" */
} rendezvous_place;

/* STATUS_USAGE where the url is malformed, STATUS_CONFIG where env:// lacks a variable. */
status rendezvous_place_of(const char *url, rendezvous_place *out);

bool rendezvous_place_is_inproc(const rendezvous_place *place);

/* The address under which the other ranks reach a store that listens at `bound`: for file:// a name or
 * number of this host in place of the wildcard. `host` NULL: the first interface that is not loopback. */
void rendezvous_place_reachable(const rendezvous_place *place, const char *bound, const char *host,
                                char out[PLACE_TEXT]);

/* Writes address, token and key to a file that only this user can read, whole or not at all.
 * STATUS_CANNOT_CREATE. */
status rendezvous_place_publish(const rendezvous_place *place, const char *address, uint64_t token, const char *key);
/* Removes the file if it is still the one that was written with this token. */
void rendezvous_place_withdraw(const rendezvous_place *place, uint64_t token);
/* Whether there is a file to read address[PLACE_TEXT], token and key[NET_KEY_TEXT] from. A torn or foreign file
 * counts as none, and one of another user. */
bool rendezvous_place_lookup(const rendezvous_place *place, char *address, uint64_t *token, char *key);

/* Why nothing can be reached at a tcp:// address: "the name 'x' is not known", or "". Returns `buffer`. */
char *rendezvous_place_diagnose(const char *address, char *buffer, size_t size);

#endif
