/* Fuzzes rendezvous packets. A packet of any bytes is refused, or unpacking and packing leave it unchanged.
 */
#include "common/net/rendezvous_impl.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static _Alignas(16) unsigned char arenas[2][RENDEZVOUS_ARENA_BYTES];
static uint8_t bytes[2 * RENDEZVOUS_PACKET_CAP];

static void compare(const rendezvous_packet *a, const rendezvous_packet *b)
{
    if (a->kind != b->kind || a->protocol != b->protocol || a->token != b->token || a->rank != b->rank)
        abort();
    if (a->sequence != b->sequence || a->timeout_ms != b->timeout_ms || a->blobs != b->blobs) abort();
    if (strcmp(a->program, b->program) || strcmp(a->config_text, b->config_text) || strcmp(a->host, b->host))
        abort();
    if (strcmp(a->call, b->call) || strcmp(a->text, b->text)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rendezvous_packet first, second;
    error_clear();
    if (rendezvous_unpack(data, size, arenas[0], &first) != STATUS_OK) return 0;
    size_t used = rendezvous_pack(&first, bytes, sizeof bytes);
    if (used == 0) abort();
    if (used > RENDEZVOUS_PACKET_CAP) return 0;
    if (rendezvous_unpack(bytes, used, arenas[1], &second) != STATUS_OK) abort();
    compare(&first, &second);
    return 0;
}
