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

void list_cut_add(list_cut *c, int64_t size, bool *before, bool *after)
{
    *before = c->within && c->size > 0 && c->size + size > c->limit;
    c->size = (*before ? 0 : c->size) + size;
    *after = !c->within && c->size >= c->limit;
    if (*after) c->size = 0;
}
