#include "harness/labs/ring_relay.h"

#include "labs/lab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum ring_state { RING_RUNS, RING_WAITS_TO_SEND, RING_WAITS_TO_RECEIVE, RING_RETURNED };

typedef struct ring_rank {
    enum ring_state state;
    int64_t wanted; /* Elements that the rank expects, if it is in RING_WAITS_TO_RECEIVE. */
    float *link,
        *next; /* message on the link to the right neighbor; message that waits until the link is empty */
    int64_t link_n, next_n; /* number of elements of link and next, or -1 if there is no message */
    int code;
    float *result; /* [count] */
    ring_traffic traffic;
} ring_rank;

typedef struct relay {
    int size;
    int64_t count;
    int returned;
    ring_rank rank[STUDENTS_MOST];
    char trouble[400]; /* describes the first deadlock or the first message of a wrong size */
} relay;

/* ---- values ---- */

/* Returns a rank's share of an element. Shares are integers, so sums are exact. Digit r of a sum in base 4 is
 * the number of times that the share of rank r was added. The share of rank 0 also contains, in higher
 * digits, a number that depends on the element's index. */
static float share(int rank, int64_t i)
{
    return (float)((1 << (2 * rank)) + (rank == 0 ? (int)(i * 7 % 61) << 16 : 0));
}

float ring_relay_sum(int size, int64_t i)
{
    float sum = 0;
    for (int r = 0; r < size; r++) sum += share(r, i);
    return sum;
}

static void explain_value(students *s, const relay *y, int rank, int64_t i)
{
    float got = y->rank[rank].result[i], want = ring_relay_sum(y->size, i);
    int shares = got >= 0 && got < 0x1p24f && got == (float)(int)got ? (int)got & 0xffff : -1,
        times[STUDENTS_MOST];
    char why[160] = "", *end = why;
    for (int r = 0; r < STUDENTS_MOST; r++) times[r] = shares < 0 ? 1 : shares >> (2 * r) & 3;
    for (int r = 0; r < y->size && !why[0]; r++)
        if (times[r] == 0)
            end += snprintf(end, sizeof why, " (rank %d's share is missing)", r);
        else if (times[r] > 1)
            end += snprintf(end, sizeof why, " (rank %d's share is counted %d times)", r, times[r]);
    if (shares < 0 && got == 0)
        snprintf(why, sizeof why, " (no rank's share)");
    else if (!why[0] && shares >= 0 && (int)got >> 16 != (int)want >> 16)
        snprintf(why, sizeof why, " (the value belongs to another element)");
    students_fail(s, "rank %d, element %lld: got %.9g, expected %.9g%s", rank, (long long)i, (double)got,
                  (double)want, why);
}

/* ---- the relay ---- */

static void reply(students *s, relay *y, int rank, int code)
{
    y->rank[rank].state = RING_RUNS;
    students_answer(s, rank, code, 0);
}

static float *copy_of(students *s, const char *data, int64_t bytes)
{
    float *copy = malloc((size_t)bytes + 1);
    s->out_of_memory = s->out_of_memory || !copy;
    return copy ? memcpy(copy, data, (size_t)bytes) : NULL;
}

/* Moves a message on the link from `rank` to its right neighbor, if the message can move. */
static void advance(students *s, relay *y, int rank)
{
    ring_rank *from = &y->rank[rank], *to = &y->rank[(rank + 1) % y->size];
    if (from->link_n >= 0 && to->state == RING_WAITS_TO_RECEIVE) {
        int receiver = (rank + 1) % y->size;
        to->state = RING_RUNS;
        if (to->wanted == from->link_n) {
            students_send(s, receiver,
                          (runner_message){0, LAB_OK, from->link_n, from->link_n * (int64_t)sizeof(float)},
                          from->link);
        } else {
            if (!y->trouble[0])
                snprintf(y->trouble, sizeof y->trouble, "rank %d expects %lld elements, rank %d sent %lld",
                         receiver, (long long)to->wanted, rank, (long long)from->link_n);
            students_answer(s, receiver, LAB_ESIZE, 0);
        }
        free(from->link);
        from->link = NULL;
        from->link_n = -1;
    }
    if (from->link_n < 0 && from->state == RING_WAITS_TO_SEND) {
        from->link = from->next;
        from->link_n = from->next_n;
        from->next = NULL;
        reply(s, y, rank, LAB_OK);
        advance(s, y, rank);
    }
}

/* If all ranks that have not returned are waiting, answers these ranks with LAB_EDEADLOCK. */
static void end_deadlock(students *s, relay *y)
{
    char *end = y->trouble, *limit = y->trouble + sizeof y->trouble;
    bool first = !y->trouble[0];
    for (int r = 0; r < y->size; r++)
        if (y->rank[r].state == RING_RUNS) return;
    if (first) end += snprintf(end, (size_t)(limit - end), "every rank waits:");
    for (int r = 0; r < y->size; r++) {
        if (first && end < limit)
            end += snprintf(end, (size_t)(limit - end), "%s rank %d %s", r ? "," : "", r,
                            y->rank[r].state == RING_RETURNED        ? "has returned"
                            : y->rank[r].state == RING_WAITS_TO_SEND ? "to send"
                                                                     : "to receive");
        if (y->rank[r].state != RING_RETURNED) reply(s, y, r, LAB_EDEADLOCK);
    }
}

static void on_message(void *context, students *s, int rank, runner_message m, const char *data)
{
    relay *y = context;
    ring_rank *me = &y->rank[rank];
    bool well_formed = me->state == RING_RUNS && m.n >= 0;
    if (well_formed && m.kind == RING_SEND && m.bytes == m.n * (int64_t)sizeof(float)) {
        free(me->next);
        me->next = copy_of(s, data, m.bytes);
        me->next_n = m.n;
        me->state = RING_WAITS_TO_SEND;
        me->traffic.messages++;
        me->traffic.sent_bytes += m.bytes;
        advance(s, y, rank);
    } else if (well_formed && m.kind == RING_RECEIVE) {
        me->wanted = m.n;
        me->state = RING_WAITS_TO_RECEIVE;
        advance(s, y, (rank + y->size - 1) % y->size);
    } else if (well_formed && m.kind == RUNNER_RESULT && m.bytes == y->count * (int64_t)sizeof(float)) {
        me->state = RING_RETURNED;
        me->code = m.code;
        me->traffic.memory_bytes = m.n;
        me->result = copy_of(s, data, m.bytes);
        y->returned++;
    } else {
        students_fail(s, "rank %d: a message that no function of lab.h sends", rank);
        return;
    }
    s->finished = y->returned == y->size;
    if (!s->finished) end_deadlock(s, y);
}

static const char *code_name(int code)
{
    static const char *const names[] = {
        [-LAB_EMISSING] = "LAB_EMISSING: the function has not been written yet",
        [-LAB_ESIZE] = "LAB_ESIZE",
        [-LAB_EDEADLOCK] = "LAB_EDEADLOCK",
        [-LAB_EMEMORY] = "LAB_EMEMORY",
    };
    return code < 0 && code >= LAB_EMEMORY ? names[-code] : "not LAB_OK";
}

static void check_results(students *s, const relay *y)
{
    if (y->trouble[0]) {
        students_fail(s, "%s", y->trouble);
        return;
    }
    for (int r = 0; r < y->size && !s->t->failed; r++)
        if (y->rank[r].code != LAB_OK)
            students_fail(s, "rank %d: student_all_reduce() returned %d (%s)", r, y->rank[r].code,
                          code_name(y->rank[r].code));
    for (int r = 0; r < y->size; r++)
        for (int64_t i = 0; i < y->count && !s->t->failed; i++)
            if (y->rank[r].result[i] != ring_relay_sum(y->size, i)) explain_value(s, y, r, i);
}

status ring_relay_send_input(students *s, int64_t count)
{
    size_t bytes = (size_t)count * sizeof(float);
    float *x = malloc(bytes + 1);
    if (!x) return fail(STATUS_SYSTEM, "lab: no memory for %lld elements", (long long)count);
    for (int r = 0; r < s->count; r++) {
        for (int64_t i = 0; i < count; i++) x[i] = share(r, i);
        students_send(s, r, (runner_message){RUNNER_CASE, 0, count, (int64_t)bytes}, x);
    }
    free(x);
    return STATUS_OK;
}

/* Runs one all-reduce of `count` elements among the processes through the relay. */
static status run_case(students *s, int64_t count, ring_traffic *most)
{
    relay y = {.size = s->count, .count = count};
    for (int r = 0; r < y.size; r++) y.rank[r].link_n = -1;
    snprintf(s->where, sizeof s->where, "%d ranks, %lld elements: ", y.size, (long long)count);
    TRY(ring_relay_send_input(s, count));
    status rc = students_serve(s, on_message, &y);
    if (rc == STATUS_OK && !s->t->failed) check_results(s, &y);
    *most = (ring_traffic){0};
    for (int r = 0; r < y.size; r++) {
        const ring_traffic *of = &y.rank[r].traffic;
        if (of->sent_bytes > most->sent_bytes) most->sent_bytes = of->sent_bytes;
        if (of->messages > most->messages) most->messages = of->messages;
        if (of->memory_bytes > most->memory_bytes) most->memory_bytes = of->memory_bytes;
        free(y.rank[r].link);
        free(y.rank[r].next);
        free(y.rank[r].result);
    }
    return rc;
}

status ring_relay_run(grader *g, lab_test *t, int size, const int64_t *counts, int n, ring_traffic *most)
{
    students *s;
    ring_traffic unused;
    TRY(students_start(g, t, size, &s));
    for (int i = 0; i < n && !t->failed; i++) TRY(run_case(s, counts[i], most ? most : &unused));
    return STATUS_OK;
}
