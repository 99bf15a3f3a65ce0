#include "common/net/message_wire.h"

#include "common/net/arena.h"
#include "common/net/checksum.h"
#include "common/net/message.pb-c.h"

#include <string.h>

const char *message_kind_name(message_kind kind)
{
#define KIND_NAME(name, text) [MESSAGE_##name] = text,
    static const char *const names[MESSAGE_KIND_COUNT] = {MESSAGE_KIND_LIST(KIND_NAME)};
#undef KIND_NAME
    return (unsigned)kind < MESSAGE_KIND_COUNT ? names[kind] : "unknown";
}

size_t message_pack(const message_header *h, uint8_t out[MESSAGE_HEADER_BYTES])
{
    Net__MessageHeader wire = NET__MESSAGE_HEADER__INIT;
    wire.kind = (uint32_t)h->kind;
    wire.sender = (uint32_t)h->sender;
    wire.sequence = h->sequence;
    wire.token = h->token;
    wire.frames = (uint32_t)h->frames;
#define OPTIONAL(field, value) wire.has_##field = (wire.field = (value)) != 0
    OPTIONAL(step, h->step);
    OPTIONAL(key, h->key);
    OPTIONAL(offset, h->offset);
    OPTIONAL(count, h->count);
    OPTIONAL(dtype, (uint32_t)h->dtype);
    OPTIONAL(flags, h->flags);
    OPTIONAL(int0, h->integers[0]);
    OPTIONAL(int1, h->integers[1]);
    OPTIONAL(int2, h->integers[2]);
    OPTIONAL(checksum, h->checksum);
#undef OPTIONAL
    wire.has_double0 = wire.has_double1 = 1; /* -0.0 equals 0.0: always sent */
    wire.double0 = h->doubles[0];
    wire.double1 = h->doubles[1];
    return net__message_header__pack(&wire, out);
}

enum { ARENA_BYTES = 8192 }; /* a header has 17 fields; what needs more is not one of ours */

status message_unpack(const void *bytes, size_t count, message_header *out)
{
    if (count > MESSAGE_HEADER_CAP)
        return fail(STATUS_PROTOCOL, "header frame: expected at most %d bytes, got %zu", MESSAGE_HEADER_CAP,
                    count);
    _Alignas(16) unsigned char block[ARENA_BYTES];
    arena space = {.bytes = block, .size = sizeof block};
    ProtobufCAllocator allocator = arena_allocator(&space);
    Net__MessageHeader *wire = net__message_header__unpack(&allocator, count, bytes);
    if (!wire) return fail(STATUS_PROTOCOL, "header frame of %zu bytes: not a message header", count);
    if (wire->base.n_unknown_fields)
        return fail(STATUS_PROTOCOL, "header frame: got %u unknown fields", wire->base.n_unknown_fields);
    if (wire->kind == MESSAGE_NONE || wire->kind >= MESSAGE_KIND_COUNT)
        return fail(STATUS_PROTOCOL, "header frame: expected a kind from 1 to %d, got %u",
                    MESSAGE_KIND_COUNT - 1, wire->kind);
    if (wire->sender > INT32_MAX || wire->dtype > INT32_MAX || wire->frames > MESSAGE_FRAMES_MAX)
        return fail(STATUS_PROTOCOL, "header frame: got sender %u, dtype %u, %u frames: out of range",
                    wire->sender, wire->dtype, wire->frames);
    *out = (message_header){
        .kind = (message_kind)wire->kind,
        .sender = (int)wire->sender,
        .sequence = wire->sequence,
        .token = wire->token,
        .frames = (int)wire->frames,
        .step = wire->step,
        .key = wire->key,
        .offset = wire->offset,
        .count = wire->count,
        .dtype = (int)wire->dtype,
        .flags = wire->flags,
        .integers = {wire->int0, wire->int1, wire->int2},
        .doubles = {wire->double0, wire->double1},
        .checksum = wire->checksum,
    };
    return STATUS_OK;
}

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

uint64_t message_digest(const message_header *h, const message_frame *frames, int count)
{
    uint64_t words[] = {
        (uint64_t)h->kind,
        (uint64_t)h->sender,
        h->sequence,
        h->token,
        (uint64_t)h->frames,
        (uint64_t)h->step,
        (uint64_t)h->key,
        (uint64_t)h->offset,
        (uint64_t)h->count,
        (uint64_t)h->dtype,
        h->flags,
        (uint64_t)h->integers[0],
        (uint64_t)h->integers[1],
        (uint64_t)h->integers[2],
        bits_of(h->doubles[0]),
        bits_of(h->doubles[1]),
    };
    uint64_t digest = checksum_xxh3(words, sizeof words, 0);
    for (int i = 0; i < count; i++) digest = checksum_xxh3(frames[i].data, frames[i].bytes, digest);
    return digest ? digest : 1;
}
