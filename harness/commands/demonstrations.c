/* The demonstrations of `harness collectives`. Each makes its calls, and describes in a line per rank the
 * values before and after them. */
#include "harness/commands/demonstrations.h"

#include "common/base/clock.h"
#include "harness/result/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_RANKS = COLLECTIVE_MOST_SHARED_RANKS, LINE = 1024 };

struct shown {
    char before[LINE / 2 - 16], after[LINE / 2 - 16];
};

static void show(char *text, size_t size, const double *values, int64_t count)
{
    size_t used = 0;
    text[0] = '\0';
    for (int64_t i = 0; i < count && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%g", i ? " " : "", values[i]);
}

static double value_of(passed_values values, int rank, int element)
{
    return values == ONE ? 1 : values == RANK_PLUS_ONE ? rank + 1 : 10 * rank + element;
}

/* Runs a call on float64 values, and shows the values that the rank passes and the values that it gets. */
static status run_call(const demonstration *of, const demonstrator *d, shown *s)
{
    double in[MOST_RANKS], out[MOST_RANKS];
    collective_call call = {.kind = of->kind,
                            .op = of->op,
                            .type = DTYPE_F64,
                            .count = of->count ? of->count : d->size,
                            .in.base = in,
                            .out.base = out};
    int64_t passed = collective_in_extent(&call, d->size, d->rank).count;
    for (int i = 0; i < passed; i++) in[i] = value_of(of->values, d->rank, i);
    TRY(collective_run(d->all, &call));
    show(s->before, sizeof s->before, in, passed);
    show(s->after, sizeof s->after, out, collective_out_extent(&call, d->size, d->rank).count);
    return STATUS_OK;
}

static status transfer(const demonstrator *d, collective_kind kind, int peer, double *values, int64_t count)
{
    collective_call call = {.kind = kind, .type = DTYPE_F64, .root = peer, .count = count};
    *(kind == COLLECTIVE_SEND ? &call.in : &call.out) = (collective_buffer){.base = values};
    return collective_run(d->all, &call);
}

/* Each even rank sends 999 to the next rank. */
static status run_send(const demonstration *of, const demonstrator *d, shown *s)
{
    (void)of;
    double value = d->rank % 2 == 0 ? 999 : 0;
    int peer = d->rank ^ 1;
    bool sends = d->rank % 2 == 0, paired = peer < d->size;
    show(s->before, sizeof s->before, &value, 1);
    if (paired) TRY(transfer(d, sends ? COLLECTIVE_SEND : COLLECTIVE_RECEIVE, peer, &value, 1));
    if (paired)
        snprintf(s->after, sizeof s->after, "%g, %s rank %d", value, sends ? "sent to" : "from", peer);
    else
        snprintf(s->after, sizeof s->after, "%g, sent to nobody", value);
    return STATUS_OK;
}

/* Rank 0 sends a matrix whose shape the others do not know. */
static status run_shape(const demonstration *of, const demonstrator *d, shown *s)
{
    (void)of;
    double shape[2] = {2, 3}, values[6] = {1, 2, 3, 4, 5, 6};
    snprintf(s->before, sizeof s->before, "%s", d->rank == 0 ? "a matrix of [2, 3]" : "nothing");
    for (int peer = 1; peer < d->size && d->rank == 0; peer++) {
        TRY(transfer(d, COLLECTIVE_SEND, peer, shape, 2));
        TRY(transfer(d, COLLECTIVE_SEND, peer, values, 6));
    }
    if (d->rank > 0) {
        memset(values, 0, sizeof values);
        TRY(transfer(d, COLLECTIVE_RECEIVE, 0, shape, 2));
        TRY(transfer(d, COLLECTIVE_RECEIVE, 0, values, (int64_t)(shape[0] * shape[1])));
    }
    size_t used = (size_t)snprintf(s->after, sizeof s->after, "[%g, %g]: ", shape[0], shape[1]);
    show(s->after + used, sizeof s->after - used, values, (int64_t)(shape[0] * shape[1]));
    return STATUS_OK;
}

/* The first rank of the group comes late to the barrier if `late` is true. All processes of a
 * host have the same clock. */
static status meet(collective_group *group, bool late, shown *s)
{
    double came_s;
    int64_t begin_ns = clock_now_ns();
    bool first = collective_group_rank(group) == 0;
    int of = collective_group_world_rank(group, 0);
    if (late && first) nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    came_s = 1e-9 * (double)clock_now_ns();
    if (first)
        snprintf(s->before, sizeof s->before, late ? "comes 0.2 s late" : "comes");
    else
        snprintf(s->before, sizeof s->before, "waits for rank %d", of);
    TRY(collective_run(group, &(collective_call){.kind = COLLECTIVE_BARRIER, .type = DTYPE_F64}));
    double left_s = 1e-9 * (double)clock_now_ns();
    collective_call call = {
        .kind = COLLECTIVE_BROADCAST, .type = DTYPE_F64, .count = 1, .in.base = &came_s, .out.base = &came_s};
    TRY(collective_run(group, &call));
    snprintf(s->after, sizeof s->after, "leaves %s rank %d has come, after %.1f s",
             left_s >= came_s ? "when" : "BEFORE", of, left_s - 1e-9 * (double)begin_ns);
    return STATUS_OK;
}

static status run_barrier(const demonstration *of, const demonstrator *d, shown *s)
{
    (void)of;
    return meet(d->all, true, s);
}

static status sum_in(collective_group *group, double *value)
{
    return collective_run(group, &(collective_call){.kind = COLLECTIVE_ALL_REDUCE,
                                                    .type = DTYPE_F64,
                                                    .count = 1,
                                                    .in.base = value,
                                                    .out.base = value});
}

/* Opens one of the two groups, the first or the second half of the ranks. */
static status open_half(const demonstrator *d, int half, collective_group **out)
{
    int ranks[MOST_RANKS], first = half == 0 ? 0 : d->size / 2, count = d->size / 2;
    char name[24];
    for (int i = 0; i < count; i++) ranks[i] = first + i;
    snprintf(name, sizeof name, "%s half", half == 0 ? "first" : "second");
    return collective_group_open(d->world, name, ranks, count, out);
}

/* The first and the second half of the ranks add their values, or have a barrier of their own. */
static status run_groups(const demonstration *of, const demonstrator *d, shown *s)
{
    double value = d->rank + 1;
    int half = d->rank / (d->size / 2);
    bool barrier = of->kind == COLLECTIVE_BARRIER;
    collective_group *group = NULL;
    status rc = STATUS_OK;
    if (half < 2) TRY(open_half(d, half, &group));
    show(s->before, sizeof s->before, &value, 1);
    if (half < 2) rc = barrier ? meet(group, half == 0, s) : sum_in(group, &value);
    collective_group_close(&group);
    if (!barrier || half > 1) show(s->after, sizeof s->after, &value, 1);
    return rc;
}

#define CALL(kind_) .run = run_call, .kind = COLLECTIVE_##kind_
const demonstration demonstrations[] = {
    {"ones", "all_reduce of ones", CALL(ALL_REDUCE), .count = 1, .values = ONE},
    {"all_reduce", "all_reduce (sum) of rank + 1", CALL(ALL_REDUCE), .count = 1, .values = RANK_PLUS_ONE},
    {"mean", "all_reduce (mean) of rank + 1", CALL(ALL_REDUCE), .op = REDUCE_MEAN, .count = 1,
     .values = RANK_PLUS_ONE},
    {"max", "all_reduce (max) of rank + 1", CALL(ALL_REDUCE), .op = REDUCE_MAX, .count = 1,
     .values = RANK_PLUS_ONE},
    {"reduce", "reduce (sum) to rank 0", CALL(REDUCE), .count = 1, .values = RANK_PLUS_ONE},
    {"broadcast", "broadcast from rank 0", CALL(BROADCAST), .count = 1, .values = RANK_PLUS_ONE},
    {"all_gather", "all_gather", CALL(ALL_GATHER), .values = RANK_PLUS_ONE},
    {"reduce_scatter", "reduce_scatter (sum)", CALL(REDUCE_SCATTER), .values = RANK_AND_ELEMENT},
    {"gather", "gather to rank 0", CALL(GATHER), .values = RANK_PLUS_ONE},
    {"scatter", "scatter from rank 0", CALL(SCATTER), .values = RANK_AND_ELEMENT},
    {"all_to_all", "all_to_all", CALL(ALL_TO_ALL), .values = RANK_AND_ELEMENT},
    {"send", "send and recv: 999 from each even rank to the next", .run = run_send},
    {"shape", "send to each other rank: first the shape, then the data", .run = run_shape},
    {"barrier", "barrier", .run = run_barrier},
    {"groups", "all_reduce (sum) of rank + 1 in each half of the ranks", .run = run_groups},
    {"group_barrier", "barrier in each half of the ranks, rank 0 late", .run = run_groups,
     .kind = COLLECTIVE_BARRIER},
};

/* Gathers the lines of all ranks, and prints them on rank 0. */
static status print_lines(const demonstration *of, const demonstrator *d, const shown *s)
{
    char own[LINE];
    text_buffer text = {0};
    char *lines = calloc((size_t)d->size, LINE);
    if (!lines) return fail(STATUS_SYSTEM, "no memory for the lines of ranks");
    memset(own, 0, sizeof own);
    snprintf(own, sizeof own, "  rank %d: %s -> %s", d->rank, s->before[0] ? s->before : "nothing",
             s->after[0] ? s->after : "nothing");
    collective_call call = {.kind = COLLECTIVE_GATHER,
                            .type = DTYPE_I32,
                            .count = (int64_t)d->size * LINE / 4,
                            .in.base = own,
                            .out.base = lines};
    status rc = collective_run(d->all, &call);
    if (rc == STATUS_OK && d->rank == 0) {
        text_append(&text, "%s\n", of->title);
        for (int r = 0; r < d->size; r++) text_append(&text, "%s\n", lines + (size_t)r * LINE);
        rc = output_text(&text);
    }
    free(lines);
    return rc;
}

status demonstrate(const demonstrator *d, const demonstration *of)
{
    shown s = {"", ""};
    TRY(of->run(of, d, &s));
    return print_lines(of, d, &s);
}

/* ---- mistakes ------------------------------------------------------------------------------------ */

const char *const group_mistakes[] = {"none", "outside", "order", "missing", NULL};
const char *const group_mistake_texts[] = {
    [MISTAKE_OUTSIDE] =
        "The last rank opens the group of the first half of the ranks, of which it is not a member.",
    [MISTAKE_ORDER] = "All ranks open the groups A and B. The last rank opens B first, the others A first.",
    [MISTAKE_MISSING] = "All ranks but the last open the groups A and B."};

status demonstrate_mistake(const demonstrator *d, group_mistake mistake)
{
    static const char *const names[] = {"A", "B"};
    collective_group *groups[2] = {NULL, NULL};
    bool wrong = d->rank == d->size - 1;
    status rc = STATUS_OK;
    if (mistake == MISTAKE_OUTSIDE) {
        rc = wrong ? open_half(d, 0, &groups[0]) : STATUS_OK;
    } else if (mistake == MISTAKE_ORDER || !wrong) {
        for (int i = 0; i < 2 && rc == STATUS_OK; i++) {
            int next = mistake == MISTAKE_ORDER && wrong ? 1 - i : i;
            rc = collective_group_open(d->world, names[next], NULL, d->size, &groups[next]);
        }
    }
    for (int i = 0; i < 2; i++) collective_group_close(&groups[i]);
    return rc;
}
