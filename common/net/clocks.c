#include "common/net/clocks.h"

#include "common/base/least.h"

#include <stdlib.h>
#include <string.h>

enum { EXCHANGES = 4 };

typedef struct exchange {
    /* `sent_ns` is the time at which the rank called this exchange. `ended_ns` is the time at which the
     * previous exchange ended, or 0 for the first exchange. */
    int64_t sent_ns, ended_ns;
} exchange;

static status run_exchanges(rendezvous *r, int64_t deadline_ns, rendezvous_blob *got, clock_bounds *out)
{
    exchange mine = {0}, last, first;
    for (int i = 0; i <= EXCHANGES; i++) {
        last = mine;
        mine = (exchange){.sent_ns = clock_now_ns(), .ended_ns = last.ended_ns};
        TRY(rendezvous_allgather(r, "clock", &mine, sizeof mine, deadline_ns, got));
        mine.ended_ns = clock_now_ns();
        if (got[0].bytes != sizeof first)
            return fail(STATUS_PROTOCOL, "rank 0 sent a time of %zu bytes", got[0].bytes);
        memcpy(&first, got[0].data, sizeof first);
        out->high_ns = least(out->high_ns, mine.ended_ns - first.sent_ns);
        if (i > 0) out->low_ns = greatest(out->low_ns, last.sent_ns - first.ended_ns);
    }
    out->at_ns = mine.ended_ns;
    return STATUS_OK;
}

status clock_bounds_measure(rendezvous *r, int rank, int world, int64_t deadline_ns, clock_bounds *out)
{
    *out = (clock_bounds){.low_ns = INT64_MIN, .high_ns = INT64_MAX};
    rendezvous_blob *got = calloc((size_t)world, sizeof *got);
    status rc = got ? run_exchanges(r, deadline_ns, got, out)
                    : fail(STATUS_SYSTEM, "no memory for the clocks of %d ranks", world);
    free(got);
    if (rank == 0) out->low_ns = out->high_ns = 0;
    return rc;
}

static bool has_zero(const clock_bounds *b)
{
    return b->low_ns <= 0 && b->high_ns >= 0;
}

clock_alignment clock_align(const rendezvous *r, int rank, const clock_bounds *begin, const clock_bounds *end)
{
    const rendezvous_member *m = rendezvous_members(r);
    if (m[rank].host_id == m[0].host_id && has_zero(begin) && has_zero(end))
        return (clock_alignment){.aligned = false};
    return (clock_alignment){.aligned = true,
                             .error_ns =
                                 greatest(begin->high_ns - begin->low_ns, end->high_ns - end->low_ns) / 2,
                             .begin_ns = begin->at_ns,
                             .end_ns = end->at_ns,
                             .begin_offset_ns = begin->low_ns / 2 + begin->high_ns / 2,
                             .end_offset_ns = end->low_ns / 2 + end->high_ns / 2};
}

static int64_t offset_at(const clock_alignment *a, int64_t local_ns)
{
    double part =
        a->end_ns > a->begin_ns ? (double)(local_ns - a->begin_ns) / (double)(a->end_ns - a->begin_ns) : 0;
    return a->begin_offset_ns + (int64_t)(part * (double)(a->end_offset_ns - a->begin_offset_ns));
}

int64_t clock_on_rank_0(const clock_alignment *a, int64_t local_ns)
{
    return a->aligned ? local_ns - offset_at(a, local_ns) : local_ns;
}

/* Inverts clock_on_rank_0() by fixed-point iteration. Clocks drift by less than a thousandth, so each
 * iteration divides the error by at least a thousand. */
int64_t clock_from_rank_0(const clock_alignment *a, int64_t ns)
{
    enum { ROUNDS = 4 };
    int64_t local_ns = ns + a->begin_offset_ns;
    if (!a->aligned) return ns;
    for (int i = 0; i < ROUNDS; i++) local_ns = ns + offset_at(a, local_ns);
    return local_ns;
}
