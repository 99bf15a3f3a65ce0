#include "common/memory/piece.h"

#include <assert.h>

int piece_list_slice(piece_list list, int64_t begin, int64_t count, piece *out, int capacity)
{
    int used = 0;
    for (int i = 0; i < list.count && count > 0; i++) {
        piece p = list.pieces[i];
        if (begin >= p.count) {
            begin -= p.count;
            continue;
        }
        int64_t take = p.count - begin < count ? p.count - begin : count;
        assert(used < capacity);
        out[used++] = (piece){p.offset + begin, take};
        count -= take;
        begin = 0;
    }
    (void)capacity;
    return used;
}
