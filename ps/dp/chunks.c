#include "ps/dp/chunks.h"

#include <stdlib.h>

static void close_chunk(dp_chunks *c, int next)
{
    dp_chunk *last = &c->list[c->count];
    if (last->count == 0) return;
    if (last->count > c->most_pieces) c->most_pieces = last->count;
    if (last->bytes > c->largest_bytes) c->largest_bytes = last->bytes;
    c->list[++c->count] = (dp_chunk){.first = next};
}

status dp_chunks_make(const param_set *set, dp_chunk_rule rule, int64_t limit, dp_chunks *out)
{
    int params = set->model->param_count;
    *out = (dp_chunks){.list = calloc((size_t)params + 1, sizeof *out->list)};
    if (!out->list) return fail(STATUS_SYSTEM, "no memory for the chunks of %d parameters", params);
    for (int i = 0; i < params; i++) {
        int64_t bytes = set->pieces[i].count * dtype_size(set->type);
        if (rule == DP_CHUNK_WITHIN && out->list[out->count].bytes + bytes > limit) close_chunk(out, i);
        out->list[out->count].count++;
        out->list[out->count].bytes += bytes;
        if (rule == DP_CHUNK_REACHES && out->list[out->count].bytes >= limit) close_chunk(out, i + 1);
    }
    close_chunk(out, params);
    return STATUS_OK;
}

void dp_chunks_free(dp_chunks *chunks)
{
    free(chunks->list);
    *chunks = (dp_chunks){0};
}
