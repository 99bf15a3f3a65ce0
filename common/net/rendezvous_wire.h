/* Between rendezvous_packet and its protobuf form. */
#ifndef COMMON_NET_RENDEZVOUS_WIRE_H
#define COMMON_NET_RENDEZVOUS_WIRE_H

#include "common/base/status.h"

#include <stdint.h>

typedef enum rendezvous_kind {
    RENDEZVOUS_NONE,
    RENDEZVOUS_HELLO,   /* rank to store */
    RENDEZVOUS_WELCOME, /* the answer, or: */
    RENDEZVOUS_REFUSED, /* code, text */
    RENDEZVOUS_CALL,    /* rank to store, one blob behind it */
    RENDEZVOUS_RESULT,  /* the answer with its blobs, or: */
    RENDEZVOUS_FAILED,  /* code, text; to every rank */
    RENDEZVOUS_BYE,     /* either way: orderly end */
    RENDEZVOUS_KIND_COUNT
} rendezvous_kind;

/* name, name in messages */
#define RENDEZVOUS_OPERATION_LIST(X)                                                                         \
    X(ALLGATHER, "allgather")                                                                                \
    X(BROADCAST, "broadcast")                                                                                \
    X(BARRIER, "barrier")                                                                                    \
    X(SUM, "sum")

#define RENDEZVOUS_OPERATION_ENUM(name, text) RENDEZVOUS_##name,
typedef enum rendezvous_operation {
    RENDEZVOUS_OPERATION_LIST(RENDEZVOUS_OPERATION_ENUM) RENDEZVOUS_OPERATION_COUNT
} rendezvous_operation;
#undef RENDEZVOUS_OPERATION_ENUM

const char *rendezvous_operation_name(rendezvous_operation operation);

/* Strings are never NULL when unpacked; when packed, NULL counts as "". */
typedef struct rendezvous_packet {
    rendezvous_kind kind;
    uint32_t protocol;
    const char *program;
    uint64_t token, config_hash;
    const char *config_text;
    int rank, world;
    const char *host;
    uint32_t pid;
    uint64_t sequence;
    rendezvous_operation operation;
    const char *tag;
    int root;
    int64_t timeout_ms;
    status code;
    const char *text;
    int blobs;
} rendezvous_packet;

enum {
    RENDEZVOUS_PACKET_CAP = 64 * 1024,
    RENDEZVOUS_ARENA_BYTES = 4 * RENDEZVOUS_PACKET_CAP, /* what a packet may grow to */
};

/* Returns the bytes written, 0 where `size` is too small. */
size_t rendezvous_pack(const rendezvous_packet *packet, uint8_t *out, size_t size);

/* Strings of `out` lie in arena[RENDEZVOUS_ARENA_BYTES], aligned to 16. STATUS_PROTOCOL with the reason
 * where the bytes are no packet. Fields that a newer version added are skipped, so that a hello of any
 * version can be answered. */
status rendezvous_unpack(const void *bytes, size_t count, void *arena, rendezvous_packet *out);

#endif
