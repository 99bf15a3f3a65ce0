#include "harness/labs/shard_step.h"

#include "labs/lab.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* eps is large, so that the grader notices a gradient sum that the student did not divide by the number of
 * ranks. If eps were small, the step of Adam would hardly depend on the scale of the gradient. */
static const float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-2f;
static const double learning_rate = 0.01;

static float rate_of(int64_t step)
{
    double t = (double)step + 1;
    return (float)(learning_rate * sqrt(1 - pow((double)beta2, t)) / (1 - pow((double)beta1, t)));
}

static int owner_of(const shard_run *y, int64_t i)
{
    return (int)(i / ((y->n + y->ranks - 1) / y->ranks));
}

static float sum_of(const shard_run *y, int64_t i)
{
    float sum = 0;
    for (int r = 0; r < y->ranks; r++) sum += y->grad[r][i];
    return sum;
}

static float update_of(const shard_run *y, int64_t i, float g, float *m, float *v)
{
    *m = beta1 * y->m[i] + (1 - beta1) * g;
    *v = beta2 * y->v[i] + (1 - beta2) * g * g;
    return y->param[i] - rate_of(y->step) * (*m / (sqrtf(*v) + eps));
}

/* ---- explanations of a wrong parameter ---- */

static bool is_near_step(float got, float want, float before)
{
    return fabs((double)got - (double)want) <= 1e-3 * (fabs((double)want - (double)before) + 1e-9);
}

static void explain(const shard_run *y, int rank, int64_t i, float got, char *out, size_t size)
{
    enum { WRONG = 4 };
    int owner = owner_of(y, i);
    float m, v, before = y->param[i], sum = sum_of(y, i), n = (float)y->ranks;
    const float wrong[WRONG] = {y->grad[owner][i], sum, sum / n / n, -sum / n};
    const char *const texts[WRONG] = {
        ": this is the update with the rank's own gradient, not with the mean over the ranks",
        ": the sum of the gradients is not divided by the ranks", ": the mean is divided twice",
        ": the step leads away from the minimum"};
    out[0] = 0;
    if (got == before && owner != rank)
        snprintf(out, size, ": it is in the shard of rank %d, whose new values have not arrived here", owner);
    else if (got == before)
        snprintf(out, size, ": it is in the shard of this rank, which has not been updated");
    for (size_t w = 0; w < WRONG && !out[0]; w++)
        if (got == update_of(y, i, wrong[w], &m, &v)) snprintf(out, size, "%s", texts[w]);
    if (!out[0] && is_near_step(got, y->next[i], before))
        snprintf(out, size, ": near, but not bit-identical: compute in float, as lab.h says");
    for (size_t w = 0; w < WRONG && !out[0]; w++)
        if (is_near_step(got, update_of(y, i, wrong[w], &m, &v), before)) snprintf(out, size, "%s", texts[w]);
    if (!out[0] && y->step > 0)
        snprintf(out, size, ": it is in the shard of rank %d; is m or v another element's?", owner);
}

static void check_param(shard_run *y, int rank)
{
    char why[160];
    for (int64_t i = 0; i < y->n && !y->t->failed; i++) {
        float got = y->given[rank][i];
        if (memcmp(&got, &y->next[i], sizeof got) == 0) continue;
        explain(y, rank, i, got, why, sizeof why);
        test_fail(y->t,
                  "%d ranks, %lld elements, step %lld, rank %d, element %lld: got %.9g, expected %.9g%s",
                  y->ranks, (long long)y->n, (long long)y->step, rank, (long long)i, (double)got,
                  (double)y->next[i], why);
    }
}

/* ---- messages ---- */

static const char *name_of(int kind)
{
    return kind == MEMORY_REDUCE_SCATTER ? "lab_reduce_scatter()" : "lab_all_gather()";
}

/* Finishes a collective once all ranks have called it. */
static void finish_collective(shard_run *y, students *s, int kind)
{
    float all[SHARD_MOST];
    for (int64_t i = 0; i < y->n; i++) {
        int owner = owner_of(y, i);
        float sum = 0;
        for (int r = 0; r < y->ranks; r++) sum += y->given[r][i];
        all[i] = kind == MEMORY_REDUCE_SCATTER
                     ? sum
                     : y->given[owner][i - memory_shard_begin(y->n, y->ranks, owner)];
    }
    for (int r = 0; r < y->ranks; r++) {
        int64_t begin = 0, end = y->n;
        if (kind == MEMORY_REDUCE_SCATTER) {
            begin = memory_shard_begin(y->n, y->ranks, r);
            end = memory_shard_begin(y->n, y->ranks, r + 1);
        }
        y->waits[r] = 0;
        students_send(s, r, (runner_message){0, LAB_OK, 0, (end - begin) * (int64_t)sizeof all[0]},
                      all + begin);
    }
}

static void join(shard_run *y, students *s, int rank, runner_message m, const char *data)
{
    if (m.n != y->n) {
        students_answer(s, rank, LAB_ESIZE, 0);
        return;
    }
    if (m.bytes > y->n * (int64_t)sizeof(float)) {
        test_fail(y->t, "rank %d: a message that no function of lab.h sends", rank);
        return;
    }
    y->waits[rank] = m.kind;
    if (m.bytes > 0) memcpy(y->given[rank], data, (size_t)m.bytes);
    int waiting = 0;
    for (int r = 0; r < y->ranks; r++) {
        waiting += y->waits[r] == m.kind;
        if (y->waits[r] && y->waits[r] != m.kind)
            test_fail(
                y->t,
                "rank %d is in %s while rank %d is in %s: all ranks must call the same, in the same order",
                rank, name_of(m.kind), r, name_of(y->waits[r]));
        else if (y->ended[r])
            test_fail(y->t, "rank %d is in %s, but rank %d has returned without it", rank, name_of(m.kind),
                      r);
    }
    if (waiting == y->ranks && !y->t->failed) finish_collective(y, s, m.kind);
}

static void end(shard_run *y, int rank, runner_message m, const char *data)
{
    y->ended[rank] = true;
    if (m.n > y->most_bytes) y->most_bytes = m.n;
    if (m.code == LAB_EMISSING)
        test_fail(y->t, "student_sharded_step() has not been written yet: it returned LAB_EMISSING");
    else if (m.code != LAB_OK || m.bytes != y->n * (int64_t)sizeof(float))
        test_fail(y->t, "rank %d: student_sharded_step() returned %d%s", rank, m.code,
                  m.code == LAB_ESIZE ? ": a collective was called with another n" : "");
    for (int r = 0; r < y->ranks && !y->t->failed; r++)
        if (y->waits[r])
            test_fail(y->t, "rank %d is in %s, but rank %d has returned without it", r, name_of(y->waits[r]),
                      rank);
    if (!y->t->failed) memcpy(y->given[rank], data, (size_t)m.bytes);
}

static void on_message(void *context, students *s, int rank, runner_message m, const char *data)
{
    shard_run *y = context;
    bool all = true;
    if (m.kind == MEMORY_REDUCE_SCATTER || m.kind == MEMORY_ALL_GATHER)
        join(y, s, rank, m, data);
    else
        end(y, rank, m, data);
    for (int r = 0; r < y->ranks; r++) all = all && y->ended[r];
    for (int r = 0; r < y->ranks && all && !y->t->failed; r++) check_param(y, r);
    s->finished = all || y->t->failed;
}

status shard_step(students *s, shard_run *y)
{
    struct {
        memory_step_case head;
        float values[2 * SHARD_MOST];
    } in = {
        .head = {y->n, y->step == 0, (double)rate_of(y->step), (double)beta1, (double)beta2, (double)eps}};
    size_t bytes = (size_t)y->n * sizeof(float);
    float m[SHARD_MOST], v[SHARD_MOST];
    for (int64_t i = 0; i < y->n; i++)
        y->next[i] = update_of(y, i, sum_of(y, i) / (float)y->ranks, &m[i], &v[i]);
    for (int r = 0; r < y->ranks; r++) {
        y->ended[r] = false;
        y->waits[r] = 0;
        memcpy(in.values, y->param, bytes);
        memcpy(in.values + y->n, y->grad[r], bytes);
        students_send(
            s, r, (runner_message){RUNNER_CASE, MEMORY_STEP, 0, (int64_t)(sizeof in.head + 2 * bytes)}, &in);
    }
    status rc = students_serve(s, on_message, y);
    memcpy(y->param, y->next, bytes);
    memcpy(y->m, m, bytes);
    memcpy(y->v, v, bytes);
    y->step++;
    return rc;
}
