#include "common/net/message_wire.h"

#include "common/net/message.pb-c.h"

#include <string.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h> /* selects the instruction set at run time */
#else
#include <xxhash.h>
#define XXH3_64bits_withSeed_dispatch XXH3_64bits_withSeed
#endif

const char *message_kind_name(message_kind kind)
{
#define KIND_NAME(name, text) [MESSAGE_##name] = text,
    static const char *const names[MESSAGE_KIND_COUNT] = {MESSAGE_KIND_LIST(KIND_NAME)};
#undef KIND_NAME
    return (unsigned)kind < MESSAGE_KIND_COUNT ? names[kind] : "unknown";
}

status message_failure(const message_header *h, message_frame text)
{
    error_record record = {.code = (status)h->flags};
    size_t length = text.bytes < sizeof record.message ? text.bytes : sizeof record.message - 1;
    if (length > 0) memcpy(record.message, text.data, length);
    if (record.code <= STATUS_AGAIN || record.code >= STATUS_COUNT) record.code = STATUS_PEER;
    return error_adopt(&record);
}

typedef struct arena {
    unsigned char *bytes;
    size_t size, used;
} arena;

static void *arena_allocate(void *context, size_t bytes)
{
    arena *a = context;
    size_t rounded = (bytes + 15) / 16 * 16;
    if (rounded < bytes || rounded > a->size - a->used) return NULL;
    void *out = a->bytes + a->used;
    a->used += rounded;
    return out;
}

static void arena_free(void *context, void *pointer)
{
    (void)context;
    (void)pointer;
}

void *wire_unpack(const ProtobufCMessageDescriptor *type, const void *bytes, size_t count, void *block,
                  size_t size)
{
    arena space = {.bytes = block, .size = size};
    ProtobufCAllocator allocator = {.alloc = arena_allocate, .free = arena_free, .allocator_data = &space};
    return protobuf_c_message_unpack(type, &allocator, count, bytes);
}

/* Numbers that are sent only if they are not zero. The columns are the name in message.proto, and the field
 * of message_header. */
/* clang-format off */
#define OPTIONAL_LIST(X) \
    X(step, step) X(key, key) X(offset, offset) X(count, count) X(dtype, dtype) X(flags, flags) \
    X(int0, integers[0]) X(int1, integers[1]) X(int2, integers[2]) X(sent_ns, sent_ns) \
    X(arrived_ns, arrived_ns) X(last_ns, last_ns) X(last_rank, last_rank) X(pushed_ns, pushed_ns) \
    X(ready_ns, ready_ns)
/* clang-format on */

size_t message_pack(const message_header *h, uint8_t out[MESSAGE_HEADER_BYTES])
{
    Net__MessageHeader wire = NET__MESSAGE_HEADER__INIT;
    wire.kind = (uint32_t)h->kind;
    wire.sender = (uint32_t)h->sender;
    wire.sequence = h->sequence;
    wire.token = h->token;
    wire.frames = (uint32_t)h->frames;
#define PACK(name, field) wire.has_##name = (wire.name = h->field) != 0;
    OPTIONAL_LIST(PACK)
    PACK(checksum, checksum)
#undef PACK
    /* Both are always sent. A test for zero would also skip -0.0, and the receiver would then get 0.0. */
    wire.has_double0 = wire.has_double1 = 1;
    wire.double0 = h->doubles[0];
    wire.double1 = h->doubles[1];
    return net__message_header__pack(&wire, out);
}

enum { ARENA_BYTES = 8192 }; /* enough for the 23 fields of a header */

status message_unpack(const void *bytes, size_t count, message_header *out)
{
    if (count > MESSAGE_HEADER_CAP)
        return fail(STATUS_PROTOCOL, "header frame: expected at most %d bytes, got %zu", MESSAGE_HEADER_CAP,
                    count);
    _Alignas(16) unsigned char block[ARENA_BYTES];
    const Net__MessageHeader *wire =
        wire_unpack(&net__message_header__descriptor, bytes, count, block, sizeof block);
    if (!wire) return fail(STATUS_PROTOCOL, "header frame of %zu bytes: not a message header", count);
    if (wire->base.n_unknown_fields)
        return fail(STATUS_PROTOCOL, "header frame: got %u unknown fields", wire->base.n_unknown_fields);
    if (wire->kind == MESSAGE_NONE || wire->kind >= MESSAGE_KIND_COUNT)
        return fail(STATUS_PROTOCOL, "header frame: expected a kind from 1 to %d, got %u",
                    MESSAGE_KIND_COUNT - 1, wire->kind);
    if (wire->sender > INT32_MAX || wire->dtype > INT32_MAX || wire->frames > MESSAGE_FRAMES_MAX)
        return fail(STATUS_PROTOCOL, "header frame: got sender %u, dtype %u, %u frames: out of range",
                    wire->sender, wire->dtype, wire->frames);
#define UNPACK(name, field) .field = wire->name,
    *out = (message_header){.kind = (message_kind)wire->kind,
                            .sender = (int)wire->sender,
                            .sequence = wire->sequence,
                            .token = wire->token,
                            .frames = (int)wire->frames,
                            .doubles = {wire->double0, wire->double1},
                            .checksum = wire->checksum,
                            OPTIONAL_LIST(UNPACK)};
#undef UNPACK
    return STATUS_OK;
}

uint64_t message_digest(const message_header *h, const message_frame *frames, int count)
{
    uint64_t doubles[2];
    memcpy(doubles, h->doubles, sizeof doubles);
#define WORD(name, field) (uint64_t) h->field,
    uint64_t words[] = {(uint64_t)h->kind,   (uint64_t)h->sender, h->sequence, h->token,
                        (uint64_t)h->frames, doubles[0],          doubles[1],  OPTIONAL_LIST(WORD)};
#undef WORD
    uint64_t digest = XXH3_64bits_withSeed_dispatch(words, sizeof words, 0);
    for (int i = 0; i < count; i++)
        digest = XXH3_64bits_withSeed_dispatch(frames[i].data, frames[i].bytes, digest);
    return digest ? digest : 1;
}
