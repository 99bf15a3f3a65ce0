#include "common/base/clock.h"
#include "common/net/rendezvous.h"

#include <stdlib.h>

enum { PIECE_BYTES = 1 << 20 };

status rendezvous_gather(rendezvous *r, const char *tag, int rank, int world, const char *text, size_t length,
                         int64_t limit_ns, text_buffer *out)
{
    rendezvous_blob *got = calloc((size_t)world, sizeof *got);
    status rc = got ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for the texts of %d ranks", world);
    bool more = true;
    for (size_t at = 0; more && rc == STATUS_OK; at += PIECE_BYTES) {
        size_t left = at < length ? length - at : 0;
        rc = rendezvous_allgather(r, tag, text + length - left, left < PIECE_BYTES ? left : PIECE_BYTES,
                                  clock_now_ns() + limit_ns, got);
        more = false;
        for (int i = 0; i < world && rc == STATUS_OK; i++) {
            more = more || got[i].bytes == PIECE_BYTES;
            if (rank != 0) continue;
            text_append(&out[i], "%.*s", (int)got[i].bytes, (const char *)got[i].data);
            if (out[i].out_of_memory) rc = fail(STATUS_SYSTEM, "no memory for the %s of rank %d", tag, i);
        }
    }
    free(got);
    return rc;
}
