/* Calls of NCCL and MPI, which do not report when other ranks began their part: after the run the ranks'
 * begins are merged, and each rank's steps are swept again (common/sync/anatomy.h). */
#include "harness/run/rank_impl.h"

#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_CALLS = RENDEZVOUS_BLOB_MAX / sizeof(int64_t) };

/* The last rank to begin call `i`, by rank 0's clock. Nobody: a rank has not taken part. */
static anatomy_sent last_begin(const rendezvous_blob *begins, int world, int64_t i)
{
    anatomy_sent last = {.ns = INT64_MIN, .rank = ANATOMY_NOBODY};
    for (int r = 0; r < world; r++) {
        int64_t ns;
        memcpy(&ns, (const char *)begins[r].data + (size_t)i * sizeof ns, sizeof ns);
        if (ns == 0) return (anatomy_sent){.rank = ANATOMY_NOBODY};
        if (ns > last.ns) last = (anatomy_sent){.ns = ns, .rank = r};
    }
    return last;
}

/* *out [returned] on this rank's clock; NULL: no memory. What not all ranks know is left out. */
static int64_t merge(const rank_state *s, const rendezvous_blob *begins, anatomy_sent **out)
{
    size_t bytes = begins[0].bytes;
    for (int r = 1; r < s->place->world; r++)
        if (begins[r].bytes < bytes) bytes = begins[r].bytes;
    int64_t count = (int64_t)(bytes / sizeof(int64_t));
    *out = calloc((size_t)count + 1, sizeof **out);
    for (int64_t i = 0; *out && i < count; i++) {
        anatomy_sent last = last_begin(begins, s->place->world, i);
        if (last.rank == s->place->rank) last = (anatomy_sent){.rank = ANATOMY_NOBODY};
        if (last.rank != ANATOMY_NOBODY) last.ns = clock_from_rank_0(&s->clock, last.ns);
        (*out)[i] = last;
    }
    return count;
}

static void take_step(void *context, int64_t step, const anatomy_figures *figures, const int64_t *waited_ns)
{
    rank_state *s = context;
    record_correct_step(&s->record, s->steps.first + step, figures, waited_ns);
}

static status exchange_begins(rank_state *s, int64_t *begins, int64_t count)
{
    anatomy *a = trainer_engine(s->trainer)->context.anatomy;
    anatomy_sent *last = NULL;
    rendezvous_blob *got = calloc((size_t)s->place->world, sizeof *got);
    if (!got) return fail(STATUS_SYSTEM, "no memory for the calls of %d ranks", s->place->world);
    if (count > (int64_t)MOST_CALLS) count = MOST_CALLS;
    for (int64_t i = 0; i < count; i++)
        if (begins[i] != 0) begins[i] = clock_on_rank_0(&s->clock, begins[i]);
    status rc = rendezvous_allgather(s->rendezvous, "begins", begins, (size_t)count * sizeof *begins,
                                     rank_deadline(s), got);
    if (rc == STATUS_OK) s->record.merged_calls = merge(s, got, &last);
    if (rc == STATUS_OK && !last)
        rc = fail(STATUS_SYSTEM, "no memory for the calls of %d ranks", s->place->world);
    if (rc == STATUS_OK) {
        record_forget_waits(&s->record);
        anatomy_sweep_again(a, last, s->record.merged_calls, take_step, s);
        if (record_end_correction(&s->record) > 0 && s->place->rank == 0)
            log_warn("the parts of the first %lld measured steps are known: there is no room to merge the "
                     "calls of more",
                     (long long)s->record.corrected);
    }
    free(last);
    free(got);
    return rc;
}

/* With ps, messages are on rank 0's clock by the difference at the begin. */
static int64_t error_of_messages(const rank_state *s)
{
    int64_t drift = s->clock.end_offset_ns - s->clock.begin_offset_ns;
    return s->clock.error_ns + (drift < 0 ? -drift : drift);
}

status rank_merge_calls(rank_state *s)
{
    anatomy *a = trainer_engine(s->trainer)->context.anatomy;
    int64_t *begins = NULL, count = 0;
    if (!anatomy_keeps_steps(a)) {
        if (s->clock.aligned && s->place->engine == ENGINE_PS)
            s->record.waiting_error_ns = error_of_messages(s);
        return STATUS_OK;
    }
    status rc = anatomy_begins(a, &begins, &count);
    if (rc == STATUS_OK) rc = exchange_begins(s, begins, count);
    s->record.waiting_error_ns =
        s->clock.error_ns + device_get_info(trainer_device(s->trainer))->mark_error_ns;
    free(begins);
    return rc;
}
