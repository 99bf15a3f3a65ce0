#include "common/net/rendezvous_impl.h"

#include "common/net/message_wire.h"
#include "common/net/rendezvous.pb-c.h"

/* Casts away const for the generated structs of protobuf-c. They contain char *, but protobuf-c does not
 * write to the strings. */
static char *string(const char *s)
{
    return (char *)(s ? s : "");
}

/* The two lists name the fields that have the same name in rendezvous_packet and in the generated struct.
 * Numbers are sent only if they are not zero. */
#define NUMBER_LIST(X)                                                                                       \
    X(protocol)                                                                                              \
    X(token)                                                                                                 \
    X(config_hash)                                                                                           \
    X(rank)                                                                                                  \
    X(world)                                                                                                 \
    X(pid) X(sequence) X(root) X(timeout_ms) X(code) X(blobs) X(progress) X(step) X(signal)
#define TEXT_LIST(X) X(program) X(config_text) X(host) X(call) X(text)

size_t rendezvous_pack(const rendezvous_packet *p, uint8_t *out, size_t size)
{
    Net__RendezvousPacket wire = NET__RENDEZVOUS_PACKET__INIT;
    wire.kind = (uint32_t)p->kind;
#define PACK_NUMBER(field) wire.has_##field = (wire.field = p->field) != 0;
#define PACK_TEXT(field) wire.field = string(p->field);
    NUMBER_LIST(PACK_NUMBER)
    TEXT_LIST(PACK_TEXT)
    if (net__rendezvous_packet__get_packed_size(&wire) > size) return 0;
    return net__rendezvous_packet__pack(&wire, out);
}

status rendezvous_unpack(const void *bytes, size_t count, void *block, rendezvous_packet *out)
{
    if (count > RENDEZVOUS_PACKET_CAP)
        return fail(STATUS_PROTOCOL, "rendezvous packet: expected at most %d bytes, got %zu",
                    RENDEZVOUS_PACKET_CAP, count);
    const Net__RendezvousPacket *wire =
        wire_unpack(&net__rendezvous_packet__descriptor, bytes, count, block, RENDEZVOUS_ARENA_BYTES);
    if (!wire) return fail(STATUS_PROTOCOL, "%zu bytes are not a rendezvous packet", count);
    if (wire->kind == RENDEZVOUS_NONE || wire->kind >= RENDEZVOUS_KIND_COUNT)
        return fail(STATUS_PROTOCOL, "rendezvous packet: expected a kind from 1 to %d, got %u",
                    RENDEZVOUS_KIND_COUNT - 1, wire->kind);
    if (wire->code >= STATUS_COUNT || wire->blobs > INT32_MAX)
        return fail(STATUS_PROTOCOL, "rendezvous packet: got code %u, %u blobs: out of range", wire->code,
                    wire->blobs);
    out->kind = (rendezvous_kind)wire->kind;
#define UNPACK_NUMBER(field) out->field = wire->field;
#define UNPACK_TEXT(field) out->field = string(wire->field);
    NUMBER_LIST(UNPACK_NUMBER)
    TEXT_LIST(UNPACK_TEXT)
    return STATUS_OK;
}
