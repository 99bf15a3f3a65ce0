/* The key of a job: 32 random bytes, written as 64 hexadecimal digits. A process needs the key to join the
 * job. A launcher draws the key and passes it to its ranks in the environment, which only the same user can
 * read. The key never appears on a command line, in a log or in the name of a socket. docs/transport.md says
 * which socket checks the key. */
#ifndef COMMON_NET_KEY_H
#define COMMON_NET_KEY_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { NET_KEY_TEXT = 65, NET_KEY_BYTES = 32, NET_CURVE_TEXT = 41 };

/* Draws a random key. Fails with STATUS_SYSTEM if the system returns no random bytes. */
status net_key_draw(char out[NET_KEY_TEXT]);
bool net_key_is_valid(const char *text);

/* Derives the pair of CurveZMQ keys, in Z85, from a valid key. */
void net_key_pair(const char *text, char secret[NET_CURVE_TEXT], char public[NET_CURVE_TEXT]);

/* Derives a public number from a secret and a text. The number is a part of an X25519 public key, so the
 * secret cannot be computed from the number (RFC 7748). The same secret and text always give the same
 * number. */
uint64_t net_public_number(uint64_t secret, const char *text);
/* Derives a public number from the job's key, so all ranks compute the same number without communication. */
uint64_t net_key_number(const char *key, const char *text);

/* Returns the key that an address of a transport contains ("tcp://HOST:PORT/KEY"), or NULL if the address
 * contains no key. */
const char *net_address_key(const char *url);
/* Returns a copy of the address without the key, for use in messages. Returns NULL if memory has run out. The
 * caller frees the copy. */
char *net_address_without_key(const char *url);

#endif
