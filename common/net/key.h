/* The secret that admits a process to a job: 32 random bytes, written as 64 hexadecimal digits. A launcher
 * draws it and passes it to its ranks in the environment, which only the same user can read; it never goes to
 * a command line, a log or the name of a socket. docs/transport.md says which socket checks it. */
#ifndef COMMON_NET_KEY_H
#define COMMON_NET_KEY_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { NET_KEY_TEXT = 65, NET_KEY_BYTES = 32, NET_CURVE_TEXT = 41 };

/* STATUS_SYSTEM where the system gives no random bytes. */
status net_key_draw(char out[NET_KEY_TEXT]);
bool net_key_is_valid(const char *text);

/* The pair of CurveZMQ keys of this secret, in Z85; `text` is valid. */
void net_key_pair(const char *text, char secret[NET_CURVE_TEXT], char public[NET_CURVE_TEXT]);

/* A number that may be public although it is made of a secret: it is part of an X25519 public key, from which
 * nobody computes the secret (RFC 7748). The same for the same text. */
uint64_t net_public_number(uint64_t secret, const char *text);
/* Likewise from a key: what all ranks agree on without having talked to each other. */
uint64_t net_key_number(const char *key, const char *text);

/* Addresses that a transport listens at: "tcp://HOST:PORT/KEY", or without a key. Returns the key or NULL. */
const char *net_address_key(const char *url);
/* The part that messages may show: without the key. The caller frees it; NULL: no memory. */
char *net_address_without_key(const char *url);

#endif
