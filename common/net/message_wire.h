/* Between message_header and its protobuf form, and the digest over a message.
 *
 * Nothing is allocated: a header is packed into the caller's bytes and unpacked through a fixed arena,
 * so what a hostile header makes of memory is bounded by that arena. */
#ifndef COMMON_NET_MESSAGE_WIRE_H
#define COMMON_NET_MESSAGE_WIRE_H

#include "common/base/status.h"
#include "common/net/message.h"

#include <protobuf-c/protobuf-c.h>

enum {
    MESSAGE_HEADER_BYTES = 256,     /* a packed header of ours is never longer */
    MESSAGE_HEADER_CAP = 64 * 1024, /* a longer header frame is not looked into */
};

/* Unpacks a message of `type` into block[size], aligned to 16, so what a hostile packet makes of memory is
 * bounded by it. NULL where the bytes are none. The block is forgotten as a whole. */
void *wire_unpack(const ProtobufCMessageDescriptor *type, const void *bytes, size_t count, void *block,
                  size_t size);

/* Returns the number of bytes written to `out`, at most MESSAGE_HEADER_BYTES. */
size_t message_pack(const message_header *header, uint8_t out[MESSAGE_HEADER_BYTES]);

/* STATUS_PROTOCOL with the reason where the bytes are no header of this version. */
status message_unpack(const void *bytes, size_t count, message_header *out);

/* XXH3 over the fields of the header other than `checksum`, then over each frame in order. Never 0. */
uint64_t message_digest(const message_header *header, const message_frame *frames, int count);

#endif
