/* Gradients are summed in the order of the ranks: by as many threads as were given, or by the GPU. */
#include "ps/dp/star_impl.h"

#include "common/reduce/reduce.h"
#include "ps/compute.h"

#include <stdlib.h>

status star_sum_open(dp_star *s)
{
    size_t threads = (size_t)s->c.threads, world = (size_t)s->c.context->world;
    s->arrived = calloc((size_t)s->c.keys + 1, sizeof *s->arrived);
    s->sources = calloc(threads * world, sizeof *s->sources);
    if (!s->arrived || !s->sources)
        return fail(STATUS_SYSTEM, "no memory for the sums of gradients");
    if (star_has_gpu(s)) TRY(device_stream_open(s->c.context->device, DEVICE_STREAM_COMMUNICATION, &s->stream));
    return ps_thread_pool_open(s->c.threads, &s->pool);
}

void star_sum_close(dp_star *s)
{
    ps_thread_pool_close(&s->pool);
    device_stream_close(&s->stream);
    free(s->arrived);
    free(s->sources);
}

typedef struct sum_job {
    dp_star *s;
    dp_item *items; /* of the key, present - 1 */
} sum_job;

/* Element `at` of piece `index` of what an item has brought. */
static const char *brought(const dp_item *item, int index, int64_t at)
{
    const dp_region *r = &item->region;
    if (!item->shared) return (const char *)ps_message_frame(&item->message, index).data + at * r->element;
    return item->remote + (r->pieces[index].offset + at) * r->element;
}

static status sum_range(void *context, int thread, int index, int64_t at, int64_t count)
{
    const sum_job *j = context;
    dp_star *s = j->s;
    const dp_sum *sum = &s->sum;
    const dp_region *r = &j->items[0].region;
    int64_t offset = (r->pieces[index].offset + at) * r->element;
    const void **sources = s->sources + (int64_t)thread * s->c.context->world;
    void *out = sum->out + offset;
    sources[0] = sum->own + offset;
    for (int i = 1; i < sum->present; i++) sources[i] = brought(&j->items[i - 1], index, at);
    if (sum->divides) reduce_average(sum->type, out, sources, sum->present, count, sum->divide_before);
    else reduce_many(sum->type, REDUCE_SUM, &out, 1, sources, sum->present, count);
    return STATUS_OK;
}

/* ---- on a GPU --------------------------------------------------------------------------------- */

/* What an item has brought for piece `index`, as it is to be added. */
static status land(dp_star *s, const dp_item *item, int index)
{
    const dp_sum *sum = &s->sum;
    int64_t count = item->region.pieces[index].count;
    const char *from = brought(item, index, 0);
    if (item->shared && s->c.peers)
        TRY(device_convert(s->stream, s->c.landing, sum->type, from, sum->type, count, 1));
    else
        TRY(device_upload(s->stream, s->c.landing, from, sum->type, sum->type, count));
    if (!sum->divides || !sum->divide_before) return STATUS_OK;
    return device_convert(s->stream, s->c.landing, sum->type, s->c.landing, sum->type, count, sum->present);
}

static status add_piece(const sum_job *j, int index)
{
    dp_star *s = j->s;
    const dp_sum *sum = &s->sum;
    const dp_region *r = &j->items[0].region;
    int64_t count = r->pieces[index].count, offset = r->pieces[index].offset * r->element;
    void *out = sum->out + offset;
    const void *first = sum->own + offset;
    if (sum->divides && sum->divide_before) {
        TRY(device_convert(s->stream, out, sum->type, first, sum->type, count, sum->present));
        first = out;
    }
    for (int i = 1; i < sum->present; i++) {
        TRY(land(s, &j->items[i - 1], index));
        TRY(device_add(s->stream, out, i == 1 ? first : out, s->c.landing, sum->type, count));
    }
    if (!sum->divides || sum->divide_before) return STATUS_OK;
    return device_convert(s->stream, out, sum->type, out, sum->type, count, sum->present);
}

static status add_pieces(const sum_job *j)
{
    for (int i = 0; i < j->items[0].region.count; i++) TRY(add_piece(j, i));
    return device_stream_synchronize(j->s->stream);
}

status star_sum(dp_star *s, int key)
{
    sum_job j = {s, &s->items[s->sum.first_item + key * (s->sum.present - 1)]};
    device *d = s->c.context->device;
    if (s->stream)
        TRY(add_pieces(&j));
    else if (ps_has_bytes(d))
        TRY(ps_thread_pool_run(s->pool, (piece_list){j.items[0].region.pieces, j.items[0].region.count}, sum_range, &j));
    else
        ps_charge_pass(d, (double)(dp_region_bytes(&j.items[0].region) * (s->sum.present + 1)), 0);
    for (int i = 0; i < s->sum.present - 1; i++) ps_port_release(&s->port, &j.items[i].message);
    return STATUS_OK;
}
