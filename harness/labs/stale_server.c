#include "harness/labs/stale_server.h"

#include "common/base/random.h"
#include "labs/lab.h"

#include <stdio.h>
#include <string.h>

bool stale_may_begin(const int64_t *clock, int ranks, int rank, int64_t staleness)
{
    int64_t slowest = clock[0];
    for (int r = 1; r < ranks; r++)
        if (clock[r] < slowest) slowest = clock[r];
    return clock[rank] - slowest <= staleness;
}

void stale_describe(const int64_t *clock, int ranks, int64_t staleness, char out[160])
{
    int at = snprintf(out, 160, "clocks");
    for (int r = 0; r < ranks; r++) at += snprintf(out + at, 160 - (size_t)at, " %lld", (long long)clock[r]);
    if (staleness > 1000000)
        snprintf(out + at, 160 - (size_t)at, ", staleness without limit");
    else
        snprintf(out + at, 160 - (size_t)at, ", staleness %lld", (long long)staleness);
}

/* ---- ranks ---- */

static void begin_step(stale_run *y, int rank)
{
    uint64_t draw = (uint64_t)(y->now.clock[rank] * STALE_MOST_RANKS + rank);
    double factor = rank == y->slow_rank ? y->slow : 1;
    y->waits[rank] = false;
    y->ends_s[rank] = y->now_s + factor * (0.5 + random_uniform(y->start, draw));
    if (y->wine)
        y->rc = lab_ranks_compute(y->g, rank, y->now.clock[rank], LAB_RANKS_BATCH, y->now.param,
                                  y->grad[rank], &y->losses[rank]);
    for (int64_t i = 0; i < y->n && !y->wine; i++)
        y->grad[rank][i] = (float)random_signed(y->start, 1000000 + draw * STALE_MOST + (uint64_t)i);
}

static void apply(stale_state *state, const float *grad, int64_t n, float lr, float momentum)
{
    for (int64_t i = 0; i < n; i++) {
        state->velocity[i] = momentum * state->velocity[i] + grad[i];
        state->param[i] -= lr * state->velocity[i];
    }
}

/* Sends the push that arrives next, and applies it to the reference. */
static void push_next(stale_run *y, students *s)
{
    int rank = -1;
    for (int r = 0; r < y->ranks; r++)
        if (!y->waits[r] && (rank < 0 || y->ends_s[r] < y->ends_s[rank])) rank = r;
    size_t bytes = (size_t)y->n * sizeof(float);
    y->now_s = y->ends_s[rank];
    reducer_push head = {rank, y->now.clock[rank], 1};
    memcpy(y->before, y->now.param, bytes);
    apply(&y->now, y->grad[rank], y->n, y->lr, y->momentum);
    apply(&y->wrong, y->grad[rank], y->n, y->lr, y->resumed ? y->momentum : 0);
    y->now.clock[rank]++;
    y->pushes++;
    y->applied++;
    y->waits[rank] = true;
    y->loss = 0;
    for (int r = 0; r < y->ranks; r++) y->loss += y->losses[r] / y->ranks;
    if (y->reached_s == 0 && y->pushes > y->ranks && y->loss < y->loss_limit) y->reached_s = y->now_s;
    students_send_two(s, 0, (runner_message){.kind = REDUCER_PUSH}, &head, sizeof head, y->grad[rank], bytes);
}

/* ---- rules ---- */

static const char *explain(const stale_run *y, int64_t i, float got)
{
    double want = (double)y->now.param[i], lr = (double)y->lr, before = (double)y->before[i];
    double step = lr * (double)y->now.velocity[i];
    if (y->applied == 0 && y->resumed && got == 0)
        return ": the checkpoint's parameters have not been restored";
    if (is_near(got, want, 1e-4) && y->resumed)
        return ": near, but not bit-identical: does the checkpoint hold every bit of a float?";
    if (is_near(got, want, 1e-4)) return ": near, but not bit-identical: compute in float, as lab.h says";
    if (y->applied == 0) return "";
    if (got == y->before[i]) return ": the last push has not been applied";
    if (is_near(got, (double)y->wrong.param[i], 1e-4))
        return y->resumed ? ": the velocity has not been restored" : ": without the momentum's velocity";
    if (is_near(got, before + step, 1e-4)) return ": the step leads away from the minimum";
    return y->resumed ? ": the state at the checkpoint was another" : "";
}

/* Checks a reply, which must go to a waiting rank. */
static void check_reply(stale_run *y, int rank, const float *param)
{
    char where[160];
    stale_describe(y->now.clock, y->ranks, y->staleness, where);
    if (!y->waits[rank]) {
        test_fail(y->t, "%s: a reply to rank %d, which does not wait: it computes step %lld", where, rank,
                  (long long)y->now.clock[rank]);
        return;
    }
    if (!stale_may_begin(y->now.clock, y->ranks, rank, y->staleness)) {
        test_fail(y->t, "%s: rank %d begins step %lld too early: it is too far ahead of the slowest%s", where,
                  rank, (long long)y->now.clock[rank], y->resumed ? "; were the clocks restored?" : "");
        return;
    }
    for (int64_t i = 0; i < y->n && !y->t->failed; i++)
        if (memcmp(&param[i], &y->now.param[i], sizeof param[i]) != 0)
            test_fail(y->t, "%s: reply to rank %d, parameter %lld: got %.9g, expected %.9g%s", where, rank,
                      (long long)i, (double)param[i], (double)y->now.param[i], explain(y, i, param[i]));
    begin_step(y, rank);
}

/* Checks before a push that the server has replied to all ranks that may begin. */
static void check_waiting(stale_run *y)
{
    char where[160];
    stale_describe(y->now.clock, y->ranks, y->staleness, where);
    for (int r = 0; r < y->ranks && !y->t->failed; r++)
        if (y->waits[r] && stale_may_begin(y->now.clock, y->ranks, r, y->staleness))
            test_fail(
                y->t,
                "%s: rank %d may begin step %lld, but the server waits for a push and does not reply to it",
                where, r, (long long)y->now.clock[r]);
}

/* ---- messages ---- */

static void on_receive(stale_run *y, students *s)
{
    check_waiting(y);
    if (y->t->failed) return;
    if (y->pushes == y->kill_at && y->saved && !y->resumed) {
        y->killed = true;
    } else if (y->pushes == y->save_at && !y->saved) {
        y->checkpoint = y->now;
        students_send(s, 0, (runner_message){REDUCER_SAVE, LAB_OK, 0, 0}, NULL);
    } else if (y->pushes == y->most) {
        students_answer(s, 0, LAB_END, 0);
    } else {
        push_next(y, s);
    }
}

static void on_reply(stale_run *y, students *s, runner_message m, const char *data)
{
    float param[STALE_MOST];
    size_t bytes = (size_t)y->n * sizeof(float);
    if (m.n < 0 || m.n >= y->ranks) {
        test_fail(y->t, "a reply to rank %lld, ranks are 0 to %d", (long long)m.n, y->ranks - 1);
        return;
    }
    if (m.bytes != (int64_t)bytes) {
        students_answer(s, 0, LAB_ESIZE, 0);
        return;
    }
    memcpy(param, data, bytes);
    check_reply(y, (int)m.n, param);
    if (!y->t->failed) students_answer(s, 0, LAB_OK, 0);
}

static void on_saved(stale_run *y, runner_message m, const char *data)
{
    y->saved = true;
    if (m.n <= 0 || m.bytes != m.n || m.n > STALE_MOST_BYTES) {
        test_fail(y->t, m.n == 0 ? "student_save() has not been written yet: it returned 0"
                                 : "student_save() returned more than the capacity");
        return;
    }
    memcpy(y->bytes, data, (size_t)m.bytes);
    y->byte_count = m.bytes;
}

static void on_message(void *context, students *s, int rank, runner_message m, const char *data)
{
    stale_run *y = context;
    (void)rank;
    if (m.kind == REDUCER_RECEIVE) {
        on_receive(y, s);
    } else if (m.kind == REDUCER_REPLY) {
        on_reply(y, s, m, data);
    } else if (m.kind == REDUCER_SAVED) {
        on_saved(y, m, data);
    } else {
        s->finished = true;
        if (m.code == LAB_EMISSING)
            test_fail(y->t, "%s has not been written yet: it returned LAB_EMISSING",
                      y->resumed ? "student_load() or student_serve_stale()" : "student_serve_stale()");
        else if (m.code != LAB_OK || y->pushes < y->most)
            test_fail(y->t, "student_serve_stale()%s returned %d after %lld of %lld pushes",
                      y->resumed ? " or student_load()" : "", m.code, (long long)y->pushes,
                      (long long)y->most);
    }
    if (y->t->failed || y->killed || y->rc != STATUS_OK) s->finished = true;
}

/* Runs the student's server until training ends or the server is killed. The grader plays the workers. `data`
 * [bytes] is the checkpoint if y->resumed, else the initial parameters. */
static status serve(students *s, stale_run *y, const void *data, int64_t bytes)
{
    stragglers_case head = {.ranks = y->ranks,
                            .staleness = y->staleness,
                            .n = y->n,
                            .saved = y->resumed ? bytes : 0,
                            .lr = (double)y->lr,
                            .momentum = (double)y->momentum};
    students_send_two(s, 0, (runner_message){RUNNER_CASE, STRAGGLERS_SERVE, 0, 0}, &head, sizeof head, data,
                      (size_t)bytes);
    y->rc = STATUS_OK;
    y->applied = 0;
    y->wrong = y->now;
    memset(y->wrong.velocity, 0, sizeof y->wrong.velocity);
    y->killed = false;
    for (int r = 0; r < y->ranks; r++) y->waits[r] = true;
    TRY(students_serve(s, on_message, y));
    return y->rc;
}

status stale_serve(students *s, stale_run *y)
{
    return serve(s, y, y->now.param, y->n * (int64_t)sizeof(float));
}

status stale_resume(students *s, stale_run *y)
{
    y->resumed = true;
    y->now = y->checkpoint;
    y->pushes = 0;
    for (int r = 0; r < y->ranks; r++) y->pushes += y->now.clock[r];
    return serve(s, y, y->bytes, y->byte_count);
}
