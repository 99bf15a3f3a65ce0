/* Fuzzes header frames. A frame of any bytes is refused, or unpacking and packing leave it unchanged. */
#include "common/net/message_wire.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    message_header first, second;
    uint8_t bytes[MESSAGE_HEADER_BYTES];
    error_clear();
    if (message_unpack(data, size, &first) != STATUS_OK) return 0;
    size_t used = message_pack(&first, bytes);
    if (used > sizeof bytes || message_unpack(bytes, used, &second) != STATUS_OK) abort();
    if (message_digest(&first, NULL, 0) != message_digest(&second, NULL, 0) ||
        first.checksum != second.checksum)
        abort();
    return 0;
}
