#include "common/net/rendezvous_wire.h"

#include "common/net/arena.h"
#include "common/net/rendezvous.pb-c.h"

const char *rendezvous_operation_name(rendezvous_operation operation)
{
#define OPERATION_NAME(name, text) [RENDEZVOUS_##name] = text,
    static const char *const names[RENDEZVOUS_OPERATION_COUNT] = {RENDEZVOUS_OPERATION_LIST(OPERATION_NAME)};
#undef OPERATION_NAME
    return (unsigned)operation < RENDEZVOUS_OPERATION_COUNT ? names[operation] : "unknown";
}

/* protobuf-c's generated structs hold char *, and do not write through it. */
static char *string(const char *s)
{
    return (char *)(s ? s : "");
}

size_t rendezvous_pack(const rendezvous_packet *p, uint8_t *out, size_t size)
{
    Net__RendezvousPacket wire = NET__RENDEZVOUS_PACKET__INIT;
    wire.kind = (uint32_t)p->kind;
#define OPTIONAL(field, value) wire.has_##field = (wire.field = (value)) != 0
    OPTIONAL(protocol, p->protocol);
    OPTIONAL(token, p->token);
    OPTIONAL(config_hash, p->config_hash);
    OPTIONAL(rank, p->rank);
    OPTIONAL(world, p->world);
    OPTIONAL(pid, p->pid);
    OPTIONAL(sequence, p->sequence);
    OPTIONAL(operation, (uint32_t)p->operation);
    OPTIONAL(root, p->root);
    OPTIONAL(timeout_ms, p->timeout_ms);
    OPTIONAL(code, (uint32_t)p->code);
    OPTIONAL(blobs, (uint32_t)p->blobs);
#undef OPTIONAL
    wire.program = string(p->program);
    wire.config_text = string(p->config_text);
    wire.host = string(p->host);
    wire.tag = string(p->tag);
    wire.text = string(p->text);
    if (net__rendezvous_packet__get_packed_size(&wire) > size) return 0;
    return net__rendezvous_packet__pack(&wire, out);
}

status rendezvous_unpack(const void *bytes, size_t count, void *block, rendezvous_packet *out)
{
    if (count > RENDEZVOUS_PACKET_CAP)
        return fail(STATUS_PROTOCOL, "rendezvous packet: expected at most %d bytes, got %zu",
                    RENDEZVOUS_PACKET_CAP, count);
    arena space = {.bytes = block, .size = RENDEZVOUS_ARENA_BYTES};
    ProtobufCAllocator allocator = arena_allocator(&space);
    Net__RendezvousPacket *wire = net__rendezvous_packet__unpack(&allocator, count, bytes);
    if (!wire) return fail(STATUS_PROTOCOL, "rendezvous packet of %zu bytes: not one", count);
    if (wire->kind == RENDEZVOUS_NONE || wire->kind >= RENDEZVOUS_KIND_COUNT)
        return fail(STATUS_PROTOCOL, "rendezvous packet: expected a kind from 1 to %d, got %u",
                    RENDEZVOUS_KIND_COUNT - 1, wire->kind);
    if (wire->operation >= RENDEZVOUS_OPERATION_COUNT || wire->code >= STATUS_COUNT ||
        wire->blobs > INT32_MAX)
        return fail(STATUS_PROTOCOL, "rendezvous packet: got operation %u, code %u, %u blobs: out of range",
                    wire->operation, wire->code, wire->blobs);
    *out = (rendezvous_packet){
        .kind = (rendezvous_kind)wire->kind,
        .protocol = wire->protocol,
        .program = string(wire->program),
        .token = wire->token,
        .config_hash = wire->config_hash,
        .config_text = string(wire->config_text),
        .rank = wire->rank,
        .world = wire->world,
        .host = string(wire->host),
        .pid = wire->pid,
        .sequence = wire->sequence,
        .operation = (rendezvous_operation)wire->operation,
        .tag = string(wire->tag),
        .root = wire->root,
        .timeout_ms = wire->timeout_ms,
        .code = (status)wire->code,
        .text = string(wire->text),
        .blobs = (int)wire->blobs,
    };
    return STATUS_OK;
}
