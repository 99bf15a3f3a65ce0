/* Converts message_header to its protobuf form and back, and computes the digest of a message.
 *
 * The functions allocate no memory. They pack a header into memory of the caller, and unpack a header through
 * an arena of fixed size, so a hostile header cannot make them use more memory. */
#ifndef COMMON_NET_MESSAGE_WIRE_H
#define COMMON_NET_MESSAGE_WIRE_H

#include "common/base/status.h"
#include "common/net/message.h"

#include <protobuf-c/protobuf-c.h>

enum {
    MESSAGE_HEADER_BYTES = 256,
    MESSAGE_HEADER_CAP = 64 * 1024, /* largest size of a header frame; a longer frame is an error */
};

/* Unpacks a message of `type` into block[size], which must be aligned to 16. Returns NULL if the bytes are
 * malformed or the message does not fit into the block. The unpacked message lies in the block and must not
 * be freed. */
void *wire_unpack(const ProtobufCMessageDescriptor *type, const void *bytes, size_t count, void *block,
                  size_t size);

/* Packs a header. Returns the number of bytes written to `out`. */
size_t message_pack(const message_header *header, uint8_t out[MESSAGE_HEADER_BYTES]);

/* Unpacks a header. Fails with STATUS_PROTOCOL if the bytes are not a header of this version. The error
 * message contains the reason. */
status message_unpack(const void *bytes, size_t count, message_header *out);

/* Returns XXH3 over the fields of the header, except `checksum`, and over the frames in order. The result is
 * never 0. */
uint64_t message_digest(const message_header *header, const message_frame *frames, int count);

#endif
