/* Layers that need other ranks: what they add up goes to rank 0 and comes back. */
#include "ps/dp/dp_impl.h"

#include "ps/compute.h"

static void add_sum(dp_engine *e, dp_direction direction, int peer, int64_t number, double *values, int count,
                    int64_t step)
{
    dp_item *item = dp_star_add(e->star, direction, peer, MESSAGE_SUM, step, number);
    item->region = dp_plain_region(e, peer, DP_PIECE_SUMS, values, 0, count * (int64_t)sizeof *values);
}

/* `values` is where a round finds them. */
static status sum_over_ranks(dp_engine *e, double *values, int count)
{
    int64_t number = e->sums++, step = e->step;
    dp_star_begin(e->star);
    if (!dp_is_root(e)) {
        add_sum(e, DP_SEND, 0, number, values, count, step);
        TRY(dp_star_run(e->star, NULL));
        dp_star_begin(e->star);
        add_sum(e, DP_RECEIVE, 0, number, values, count, step);
        return dp_star_run(e->star, NULL);
    }
    for (int r = 1; r < e->present; r++)
        add_sum(e, DP_RECEIVE, r, number, e->shares + (int64_t)r * e->largest_sum, count, step);
    TRY(dp_star_run(e->star, NULL));
    bool exist = ps_has_bytes(e->base.context.device);
    for (int r = 1; exist && r < e->present; r++)
        for (int i = 0; i < count; i++) values[i] += e->shares[(int64_t)r * e->largest_sum + i];
    dp_star_begin(e->star);
    for (int r = 1; r < e->present; r++) add_sum(e, DP_SEND, r, number, values, count, step);
    return dp_star_run(e->star, NULL);
}

status dp_group_sum(sync_engine *base, double *values, int count)
{
    dp_engine *e = dp_engine_of(base);
    int64_t bytes = count * (int64_t)sizeof *values;
    if (e->present < 2) {
        e->sums++;
        return STATUS_OK;
    }
    TRY(dp_fetch(&e->places, DP_AT_SUMS, values, 0, bytes));
    TRY(sum_over_ranks(e, (double *)(void *)dp_place_of(&e->places, DP_AT_SUMS, values), count));
    return dp_store(&e->places, DP_AT_SUMS, values, 0, bytes);
}
