#include "harness/workload/torch/trace.h"

#include <stdlib.h>

static status add_slice(torch_step *s, torch_slice slice)
{
    if (slice.kernel_ns == 0 && slice.idle_ns == 0) return STATUS_OK;
    TRY(torch_reserve((void **)&s->slices, s->slice_count, &s->slice_capacity, sizeof *s->slices));
    s->slices[s->slice_count++] = slice;
    return STATUS_OK;
}

/* Returns the part of a time on the host. Ranges of parts overlap: the first part of this order counts. */
static workload_part part_of(const torch_step *s, int64_t ns)
{
    static const workload_part order[] = {WORKLOAD_COMMUNICATION, WORKLOAD_OPTIMIZER, WORKLOAD_BACKWARD,
                                          WORKLOAD_FORWARD, WORKLOAD_DATA};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        const torch_pairs *r = &s->parts[order[i]];
        int until = torch_count_until(r->list, r->count, sizeof *r->list, ns);
        if (until > 0 && ns < r->list[until - 1].value) return order[i];
    }
    return WORKLOAD_OTHER;
}

/* Lists all times at which a slice may begin or end. */
static status list_cuts(const torch_step *s, torch_pairs *cuts)
{
    TRY(torch_pairs_add(cuts, s->host_begin_ns, 0));
    TRY(torch_pairs_add(cuts, s->host_end_ns, 0));
    for (int part = 0; part < WORKLOAD_PARTS; part++)
        for (int i = 0; i < s->parts[part].count; i++) {
            TRY(torch_pairs_add(cuts, s->parts[part].list[i].key, 0));
            TRY(torch_pairs_add(cuts, s->parts[part].list[i].value, 0));
        }
    for (int i = 0; i < s->gradient_count; i++) {
        TRY(torch_pairs_add(cuts, s->gradients[i].event.end_ns, 0));
        TRY(torch_pairs_add(cuts, s->gradients[i].used_ns, 0));
    }
    torch_pairs_sort(cuts);
    return STATUS_OK;
}

/* Splits the time of the host at the cuts. */
static status split_host(const torch_trace *t, torch_step *s, torch_pairs *cuts)
{
    int64_t counted = s->host_begin_ns;
    int event = 0;
    TRY(list_cuts(s, cuts));
    for (int i = 0; i + 1 < cuts->count; i++) {
        int64_t begin = cuts->list[i].key, end = cuts->list[i + 1].key;
        if (begin < s->host_begin_ns || end > s->host_end_ns) continue;
        torch_slice slice = {.host_ns = begin, .kernel_ns = end - begin, .part = part_of(s, begin)};
        for (; event < t->count && t->events[event].begin_ns < end; event++) {
            const torch_event *e = &t->events[event];
            if (!e->matrix || e->kind > TORCH_MATRIX || e->begin_ns < begin || e->begin_ns < counted)
                continue;
            counted = e->end_ns;
            slice.matrix_ns += e->end_ns - e->begin_ns;
        }
        TRY(add_slice(s, slice));
    }
    return STATUS_OK;
}

int64_t torch_covered(const torch_pairs *r, int *at, int64_t begin, int64_t end)
{
    int64_t sum = 0;
    while (*at < r->count && r->list[*at].value <= begin) (*at)++;
    for (int i = *at; i < r->count && r->list[i].key < end; i++) {
        int64_t from = r->list[i].key > begin ? r->list[i].key : begin;
        int64_t to = r->list[i].value < end ? r->list[i].value : end;
        if (to > from) sum += to - from;
    }
    return sum;
}

/* Lists the ranges in which kernels of a kind run. */
static status list_kernels(const torch_trace *t, torch_kind kind, torch_pairs *out)
{
    int64_t last = INT64_MIN;
    for (int i = 0; i < t->count; i++) {
        const torch_event *e = &t->events[i];
        int64_t begin = e->begin_ns > last ? e->begin_ns : last;
        if (e->kind != kind || e->end_ns <= begin) continue;
        TRY(torch_pairs_add(out, begin, e->end_ns));
        last = e->end_ns;
    }
    return STATUS_OK;
}

/* Splits the time of the GPU between its kernels. `communication` is empty. */
static status split_device(const torch_trace *t, torch_step *s, torch_pairs *communication)
{
    int64_t now = s->begin_ns, first = INT64_MAX;
    int at = 0;
    TRY(list_kernels(t, TORCH_COMMUNICATION_KERNEL, communication));
    for (int i = 0; i < t->count; i++) {
        const torch_event *e = &t->events[i];
        if (e->kind != TORCH_KERNEL || e->host_ns < s->host_begin_ns || e->host_ns >= s->host_end_ns)
            continue;
        torch_slice slice = {.host_ns = e->host_ns, .part = part_of(s, e->host_ns)}, wait = slice;
        if (e->begin_ns > now) {
            int64_t launched = e->host_ns < now ? now : e->host_ns < e->begin_ns ? e->host_ns : e->begin_ns;
            int64_t hidden = torch_covered(communication, &at, now, launched);
            wait.kernel_ns = torch_covered(communication, &at, launched, e->begin_ns);
            wait.part = WORKLOAD_COMMUNICATION;
            slice.idle_ns = e->begin_ns - now - wait.kernel_ns;
            if (first < INT64_MAX) s->communication_only_ns += hidden + wait.kernel_ns;
            TRY(add_slice(s, wait));
            now = e->begin_ns;
        }
        if (e->begin_ns < first) first = e->begin_ns;
        if (e->end_ns > now) slice.kernel_ns = e->end_ns - now;
        now += slice.kernel_ns;
        s->busy_ns += slice.kernel_ns;
        slice.matrix_ns = e->matrix ? slice.kernel_ns : 0;
        TRY(add_slice(s, slice));
    }
    s->span_ns = s->end_ns - first;
    return STATUS_OK;
}

/* Sets the time of each collective in which the GPU, or without a GPU the host's thread, computes nothing. */
static status find_exposed(const torch_trace *t, torch_step *s)
{
    torch_pairs *busy = &s->computation;
    TRY(list_kernels(t, TORCH_KERNEL, busy));
    for (int i = 0; i < s->slice_count && !t->has_gpu; i++)
        if (s->slices[i].part != WORKLOAD_COMMUNICATION)
            TRY(torch_pairs_add(busy, s->slices[i].host_ns, s->slices[i].host_ns + s->slices[i].kernel_ns));
    for (int i = 0; i < s->collective_count; i++) {
        torch_collective *c = &s->collectives[i];
        int at = torch_count_until(busy->list, busy->count, sizeof(torch_pair), c->begin_ns);
        at -= at > 0;
        c->exposed_ns = c->end_ns - c->begin_ns - torch_covered(busy, &at, c->begin_ns, c->end_ns);
    }
    return STATUS_OK;
}

status torch_split_time(const torch_trace *t, torch_step *s)
{
    torch_pairs list = {0};
    status rc = t->has_gpu ? split_device(t, s, &list) : split_host(t, s, &list);
    if (rc == STATUS_OK) rc = find_exposed(t, s);
    free(list.list);
    return rc;
}
