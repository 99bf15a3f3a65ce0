#include "harness/workload/torch/trace.h"

#include <stdlib.h>

/* Reads the trace of a rank, which must have the collectives of the first trace. */
static status read_rank(torch_job *j, const char *path, double scale)
{
    torch_recording *first = j->ranks, *r = &j->ranks[j->count++];
    TRY(torch_read(path, &r->trace));
    for (const torch_recording *other = first; other < r; other++)
        if (r->trace.world != other->trace.world || r->trace.rank == other->trace.rank)
            return fail(STATUS_DATA,
                        "%s: expected another rank of the job in %s, rank %d of %d, got rank %d of %d",
                        r->trace.name, other->trace.name, other->trace.rank, other->trace.world,
                        r->trace.rank, r->trace.world);
    status rc = torch_split_step(r, r > first ? &first->step->number : NULL, scale);
    bool same = rc != STATUS_OK || r->step->collective_count == first->step->collective_count;
    for (int i = 0; rc == STATUS_OK && same && i < r->step->collective_count; i++)
        same = r->step->collectives[i].call.collective == first->step->collectives[i].call.collective;
    if (!same)
        rc = fail(STATUS_DATA, "ProfilerStep#%lld: expected the collectives of %s",
                  (long long)first->step->number, first->trace.name);
    if (rc != STATUS_OK) error_context("%s", r->trace.name);
    return rc;
}

status torch_job_open(const char *const *paths, int count, double scale, torch_job *out)
{
    *out = (torch_job){.ranks = calloc((size_t)count, sizeof *out->ranks)};
    status rc = out->ranks ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for the traces");
    while (rc == STATUS_OK && out->count < count) rc = read_rank(out, paths[out->count], scale);
    return rc;
}

void torch_job_close(torch_job *j)
{
    for (int i = 0; i < j->count; i++) {
        torch_steps_free(&j->ranks[i].steps, j->ranks[i].step_count);
        torch_free(&j->ranks[i].trace);
    }
    free(j->ranks);
    *j = (torch_job){0};
}

int64_t torch_duration(const torch_job *j, int rank, int i)
{
    const torch_collective *c = &j->ranks[rank].step->collectives[i];
    return c->end_ns - c->begin_ns;
}

int64_t torch_transfer(const torch_job *j, int i)
{
    int64_t least = torch_duration(j, 0, i);
    for (int rank = 1; rank < j->count; rank++)
        if (torch_duration(j, rank, i) < least) least = torch_duration(j, rank, i);
    return least;
}

int64_t torch_waiting(const torch_job *j, int rank)
{
    const torch_step *s = j->ranks[rank].step;
    int64_t sum = 0, last = INT64_MIN;
    for (int i = 0; i < s->collective_count; i++) {
        int64_t begin = s->collectives[i].begin_ns, end = s->collectives[i].end_ns - torch_transfer(j, i);
        if (begin < last) begin = last;
        if (end <= begin) continue;
        int at = torch_count_until(s->computation.list, s->computation.count, sizeof(torch_pair), begin);
        at -= at > 0;
        sum += end - begin - torch_covered(&s->computation, &at, begin, end);
        last = end;
    }
    return sum;
}
