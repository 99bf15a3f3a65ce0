#include "common/memory/piece.h"

void list_cut_add(list_cut *c, int64_t size, bool *before, bool *after)
{
    *before = c->within && c->size > 0 && c->size + size > c->limit;
    c->size = (*before ? 0 : c->size) + size;
    *after = !c->within && c->size >= c->limit;
    if (*after) c->size = 0;
}
