/* Lab 2: the student's server trains wine_mlp on Wine (ranks.h). The grader pushes the ranks' gradients in
 * a random order, and compares every reply bit for bit with the mean in rank order. */
#include "harness/labs/labs.h"
#include "harness/labs/ranks.h"
#include "harness/labs/students.h"

#include "common/base/random.h"
#include "labs/lab.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PARAMS = LAB_RANKS_ELEMENTS, RANKS = 5, STEPS = 50, BATCH = 6 };
static const int64_t uneven[] = {1, 3, 6, LAB_RANKS_BATCH};
static const float learning_rate = 0.1f;

/* Property in which the ranks of a part differ. */
typedef enum arrival { EQUAL, UNEVEN, ORDER, ABSENT } arrival;

typedef struct training {
    const grader *g;
    status rc; /* status of the ranks */
    arrival kind;
    uint64_t start;
    int64_t step;
    float param[PARAMS], next[PARAMS], grad[RANKS][PARAMS];
    int64_t samples[RANKS];
    int order[RANKS], pushed; /* order in which ranks push in this step; number of pushes so far */
    bool replied[RANKS];
    double loss;                        /* loss of the last step */
    int64_t received_bytes, sent_bytes; /* bytes at the server, without message headers */
    lab_test *t;
} training;

/* ---- the ranks ---- */

/* Computes the gradients of all ranks for the next step, and the expected parameters, from the sum in rank
 * order. */
static status compute_step(training *y)
{
    int64_t total = 0;
    y->loss = 0;
    for (int r = 0; r < RANKS; r++) {
        double loss = 0;
        y->samples[r] = BATCH;
        if (y->kind >= UNEVEN)
            y->samples[r] = uneven[random_below(y->start, (uint64_t)(y->step * RANKS + r), 4)];
        if (y->kind == ABSENT && (y->step + r) % 3 == 0) y->samples[r] = 0;
        if (y->samples[r] > 0)
            TRY(lab_ranks_compute(y->g, r, y->step, y->samples[r], y->param, y->grad[r], &loss));
        for (int i = 0; i < PARAMS && y->samples[r] == 0; i++) y->grad[r][i] = NAN;
        total += y->samples[r];
        y->loss += loss * (double)y->samples[r];
    }
    y->loss /= (double)total;
    for (int i = 0; i < PARAMS; i++) {
        float sum = 0;
        for (int r = 0; r < RANKS; r++)
            if (y->samples[r] > 0) sum += (float)y->samples[r] * y->grad[r][i];
        y->next[i] = y->param[i] - learning_rate * (sum / (float)total);
    }
    for (int r = 0; r < RANKS; r++) {
        y->order[r] = r;
        y->replied[r] = false;
    }
    if (y->kind >= ORDER) draw_order(y->start, 1000000 + (uint64_t)(y->step * RANKS), RANKS, y->order);
    y->pushed = 0;
    return STATUS_OK;
}

/* ---- what a wrong parameter looks like ---- */

static const char *explain(const training *y, int i, float got)
{
    double sum = 0, means = 0, samples = 0, lr = (double)learning_rate, old = (double)y->param[i];
    float arrived = 0;
    if (isnan(got)) return ": the gradients of a rank with samples 0 have been used";
    for (int k = 0; k < RANKS; k++) {
        int r = y->order[k];
        if (y->samples[r] == 0) continue;
        samples += (double)y->samples[r];
        sum += (double)y->samples[r] * (double)y->grad[r][i];
        means += (double)y->grad[r][i];
        arrived += (float)y->samples[r] * y->grad[r][i];
    }
    if (got == y->param[i] - learning_rate * (arrived / (float)samples))
        return ": the sum is in the order of arrival, not of ranks";
    if (is_near(got, old, 1e-5)) return ": the parameters have not been updated";
    if (is_near(got, old - lr * sum / samples, 1e-5))
        return ": near, but not bit-identical: add samples * grad in rank order, in float, and divide once";
    if (is_near(got, old - lr * sum, 1e-5)) return ": the sum is not divided by the samples";
    if (is_near(got, old - lr * sum / samples / RANKS, 1e-5))
        return ": the mean is divided twice, by the samples and by the ranks";
    if (is_near(got, old - lr * means / RANKS, 1e-5))
        return ": this is the mean of the means: ranks have different numbers of samples";
    if (is_near(got, old + lr * sum / samples, 1e-5)) return ": the step leads away from the minimum";
    return "";
}

/* ---- messages ---- */

static void on_receive(training *y, students *s)
{
    if (y->step == STEPS) {
        students_answer(s, 0, LAB_END, 0);
        return;
    }
    if (y->pushed == RANKS) { /* each rank has pushed, so each rank needs its reply */
        for (int r = 0; r < RANKS && !y->t->failed; r++)
            if (!y->replied[r])
                test_fail(y->t, "step %lld: the server waits for a push, but rank %d waits for its reply",
                          (long long)y->step, r);
        students_answer(s, 0, LAB_EDEADLOCK, 0);
        return;
    }
    int rank = y->order[y->pushed++];
    reducer_push head = {rank, y->step, y->samples[rank]};
    y->received_bytes += (int64_t)sizeof y->grad[rank];
    students_send_two(s, 0, (runner_message){.kind = REDUCER_PUSH}, &head, sizeof head, y->grad[rank],
                      sizeof y->grad[rank]);
}

static void on_reply(training *y, students *s, runner_message m, const char *data)
{
    float param[PARAMS];
    bool known = m.n >= 0 && m.n < RANKS, all = true;
    y->sent_bytes += m.bytes;
    if (known && m.bytes != (int64_t)sizeof param) {
        students_answer(s, 0, LAB_ESIZE, 0);
        return;
    }
    if (known) memcpy(param, data, sizeof param);
    if (!known)
        test_fail(y->t, "step %lld: a reply to rank %lld, ranks are 0 to %d", (long long)y->step,
                  (long long)m.n, RANKS - 1);
    else if (y->replied[m.n])
        test_fail(y->t, "step %lld: rank %lld is replied to twice", (long long)y->step, (long long)m.n);
    for (int i = 0; i < PARAMS && !y->t->failed; i++)
        if (memcmp(&param[i], &y->next[i], sizeof param[i]) != 0 && y->pushed == RANKS)
            test_fail(y->t, "step %lld, reply to rank %lld, parameter %d: got %.9g, expected %.9g%s",
                      (long long)y->step, (long long)m.n, i, (double)param[i], (double)y->next[i],
                      explain(y, i, param[i]));
    if (known) y->replied[m.n] = true;
    if (y->t->failed && y->pushed == RANKS) {
        s->finished = true;
        return;
    }
    for (int r = 0; r < RANKS; r++) all = all && y->replied[r];
    if (all) {
        memcpy(y->param, y->next, sizeof y->param);
        if (++y->step < STEPS) y->rc = compute_step(y);
        s->finished = y->rc != STATUS_OK;
    }
    students_answer(s, 0, LAB_OK, 0);
}

static void on_message(void *context, students *s, int rank, runner_message m, const char *data)
{
    training *y = context;
    (void)rank;
    if (m.kind == REDUCER_RECEIVE) {
        on_receive(y, s);
    } else if (m.kind == REDUCER_REPLY) {
        on_reply(y, s, m, data);
    } else {
        s->finished = true;
        if (m.code == LAB_EMISSING)
            test_fail(y->t, "student_serve() has not been written yet: it returned LAB_EMISSING");
        else if (!y->t->failed && (m.code != LAB_OK || y->step < STEPS))
            test_fail(y->t, "student_serve() returned %d after %lld of %d steps", m.code, (long long)y->step,
                      STEPS);
    }
}

/* ---- parts ---- */

static status run_training(grader *g, lab_test *t)
{
    training y = {
        .g = g, .t = t, .kind = t->variant, .start = random_start(g->seed, random_fnv1a64("lab 2"))};
    students *s;
    reducer_case head = {RANKS, PARAMS, (double)learning_rate};
    TRY(lab_ranks_open(g, RANKS, y.param));
    TRY(compute_step(&y));
    TRY(students_start(g, t, 1, &s));
    students_send_two(s, 0, (runner_message){.kind = RUNNER_CASE}, &head, sizeof head, y.param,
                      sizeof y.param);
    TRY(students_serve(s, on_message, &y));
    TRY(y.rc);
    snprintf(t->cost, sizeof t->cost, "loss %.4f after %lld steps on Wine; %lld bytes received, %lld sent",
             y.loss, (long long)y.step, (long long)y.received_bytes, (long long)y.sent_bytes);
    return STATUS_OK;
}

/* ---- questions ---- */

typedef struct reducer_question {
    int samples[3];
    double grad[3];
} reducer_question;

static reducer_question draw(uint64_t seed)
{
    uint64_t start = random_start(seed, random_fnv1a64("lab 2 questions"));
    reducer_question q;
    for (int r = 0; r < 3; r++) {
        q.samples[r] = (r + 1) * (1 + (int)random_below(start, (uint64_t)r, 9));
        q.grad[r] = 1 + (double)random_below(start, 10 + (uint64_t)r, 40) / 4;
    }
    return q;
}

void reducer_ask(uint64_t seed, text_buffer *out)
{
    reducer_question q = draw(seed);
    text_append(out, "# Three ranks push the mean gradient of %d, %d and %d samples: %.2f, %.2f and %.2f.\n",
                q.samples[0], q.samples[1], q.samples[2], q.grad[0], q.grad[1], q.grad[2]);
    text_append(out, "# The mean over all samples (4 digits).\nmean =\n"
                     "# What variant A of the handout computes instead.\nvariant_a =\n"
                     "# What variant B computes instead.\nvariant_b =\n"
                     "# Which variant still trains as one process would, if only all ranks have equal "
                     "batches: a or b?\nright_for_equal_batches =\n");
}

static status run_why(grader *g, lab_test *t)
{
    reducer_question q = draw(g->seed);
    double sum = 0, samples = 0, means = 0, each = t->points / 4;
    for (int r = 0; r < 3; r++) {
        sum += q.samples[r] * q.grad[r];
        samples += q.samples[r];
        means += q.grad[r];
    }
    const lab_answer answers[] = {
        {"mean", sum / samples, 2e-3, "weight every rank by its samples"},
        {"variant_a", means / 3, 2e-3, "follow variant A with these numbers"},
        {"variant_b", sum / samples / 3, 2e-3, "follow variant B with these numbers"},
    };
    test_answers(g, t, each, answers, 3);
    t->score +=
        each * test_answer_text(g, t, "right_for_equal_batches", "a", "try both with three equal batches");
    return STATUS_OK;
}

const lab_part reducer_parts[] = {
    {"equal", "5 ranks with equal batches", 20, false, run_training, EQUAL},
    {"uneven", "unequal batches", 20, false, run_training, UNEVEN},
    {"order", "drawn orders of arrival", 20, false, run_training, ORDER},
    {"absent", "ranks without samples", 20, false, run_training, ABSENT},
    {"why", "questions: two variants that diverge", 15, true, run_why, 0},
    {0},
};
