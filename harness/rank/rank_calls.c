/* Merges the calls of NCCL and MPI, which do not report when other ranks began their part. After the run the
 * ranks exchange the times at which their calls began, and each rank computes the parts of its steps again
 * (common/sync/anatomy.h). */
#include "harness/rank/state.h"

#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>

/* Keeps the calls that rank `r` also recorded. Sets the begin of each call to the later of the two begins, on
 * rank 0's clock. Returns the number of remaining calls, or -1 if out of memory. */
static int64_t merge(anatomy_call *calls, int64_t count, const rendezvous_blob *blob, int r)
{
    size_t known = blob->bytes / sizeof *calls;
    int64_t left = 0;
    anatomy_call *theirs = malloc(blob->bytes + 1); /* the message is not aligned */
    if (!theirs) return -1;
    memcpy(theirs, blob->data, known * sizeof *theirs);
    for (int64_t i = 0; i < count; i++) {
        const anatomy_call *same = bsearch(&calls[i], theirs, known, sizeof *theirs, anatomy_by_number);
        if (!same) continue;
        calls[left] = calls[i];
        if (same->begin.ns > calls[left].begin.ns)
            calls[left].begin = (anatomy_sent){.ns = same->begin.ns, .rank = r};
        left++;
    }
    free(theirs);
    return left;
}

static void take_step(void *context, int64_t step, const anatomy_figures *figures, const int64_t *waited_ns)
{
    rank_state *s = context;
    record_correct_step(&s->devices[0].record, s->steps.first + step, figures, waited_ns);
}

static status exchange_calls(rank_state *s, anatomy_call *calls, int64_t count)
{
    anatomy *a = trainer_engine(s->devices[0].trainer)->context.anatomy;
    rendezvous_blob *got = calloc((size_t)s->place->world, sizeof *got);
    if (!got) return fail(STATUS_SYSTEM, "no memory for the calls of %d ranks", s->place->world);
    for (int64_t i = 0; i < count; i++) calls[i].begin.ns = clock_on_rank_0(&s->clock, calls[i].begin.ns);
    status rc = rendezvous_allgather(s->rendezvous, "calls", calls, (size_t)count * sizeof *calls,
                                     rank_deadline(s), got);
    for (int64_t i = 0; i < count; i++) calls[i].begin.ns = INT64_MIN;
    for (int r = 0; r < s->place->world && rc == STATUS_OK; r++)
        if ((count = merge(calls, count, &got[r], r)) < 0)
            rc = fail(STATUS_SYSTEM, "no memory for the calls of rank %d", r);
    for (int64_t i = 0; i < count; i++) {
        calls[i].begin.ns = clock_from_rank_0(&s->clock, calls[i].begin.ns);
        if (calls[i].begin.rank == s->place->rank) calls[i].begin.rank = ANATOMY_NOBODY;
    }
    if (rc == STATUS_OK) {
        record *own = &s->devices[0].record;
        own->merged_calls = count;
        anatomy_sweep_again(a, calls, count, take_step, s);
        if (own->corrected < own->kept && s->place->rank == 0)
            log_warn("the parts of the first %lld kept steps are known: there is no room to merge the "
                     "calls of more",
                     (long long)own->corrected);
    }
    free(got);
    return rc;
}

status rank_merge_calls(rank_state *s)
{
    anatomy *a = trainer_engine(s->devices[0].trainer)->context.anatomy;
    anatomy_call *calls = NULL;
    int64_t count = 0;
    if (!anatomy_keeps_steps(a)) {
        /* Messages of ps are converted with the clock's offset at the start of the steps, so the drift since
         * then adds to the error. */
        int64_t drift = s->clock.end_offset_ns - s->clock.begin_offset_ns;
        if (s->clock.aligned && s->place->engine == ENGINE_PS)
            s->devices[0].record.waiting_error_ns = s->clock.error_ns + (drift < 0 ? -drift : drift);
        return STATUS_OK;
    }
    status rc = anatomy_calls(a, &calls, &count);
    if (rc == STATUS_OK) rc = exchange_calls(s, calls, count);
    s->devices[0].record.waiting_error_ns =
        s->clock.error_ns + device_get_info(trainer_device(s->devices[0].trainer))->mark_error_ns;
    free(calls);
    return rc;
}
