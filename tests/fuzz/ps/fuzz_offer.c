/* Fuzzes handshakes ("offers") of another rank. An offer of any bytes is refused, or is read within its
 * bounds. An offer is compatible with itself. */
#include "ps/handshake.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char other[] = "psring parameter server 4\nhost 12\nshared 1\nurl ipc://@there\n"
                                "nccl \nranks 2\npolicy sync\n";
    sync_blob mine = {(void *)(uintptr_t)data, size}, theirs = {(void *)(uintptr_t)other, sizeof other - 1};
    ps_handshake_own own = {0};
    error_clear();
    if (ps_handshake_read(&mine, "rank 1", &own) == STATUS_OK && strlen(own.url) >= sizeof own.url) abort();
    error_clear();
    if (ps_handshake_compare(&mine, "rank 0", &mine, "rank 1") != STATUS_OK) abort();
    ps_handshake_compare(&theirs, "rank 0", &mine, "rank 1");
    ps_handshake_compare(&mine, "rank 1", &theirs, "rank 0");
    error_clear();
    return 0;
}
