#include "harness/labs/buckets_step.h"

#include "labs/lab.h"

#include <math.h>
#include <string.h>

enum { NOT_WAITING = -1 };

typedef struct progress {
    double now, waited_s, launch_s[STEP_MOST];
    int given, launched, waits_for;
    bool ready[STEP_MOST], waited[STEP_MOST], ended;
} progress;

typedef struct running {
    buckets_step *step;
    lab_test *t;
    progress rank[STEP_RANKS], reference[STEP_RANKS];
} running;

bucket_plan buckets_ddp(int64_t first_limit, int64_t limit)
{
    return (bucket_plan){BUCKET_REACH_BYTES, BUCKET_ORDER_REGISTRATION, first_limit, limit};
}

void buckets_assign(bucket_plan plan, const int64_t *bytes, int count, lab_buckets *out)
{
    bucket_tensor tensors[STEP_MOST];
    for (int i = 0; i < count; i++) tensors[i] = (bucket_tensor){bytes[i] / 4, DTYPE_F32, 0};
    out->schedule = (bucket_schedule){
        .buckets = out->buckets, .tensors = out->tensors, .bucket_of = out->bucket_of, .capacity = STEP_MOST};
    bucket_assign(&plan, tensors, count, NULL, &out->schedule);
}

/* ---- virtual time ---- */

static double compute_next(running *y, int rank, int *gradient)
{
    progress *p = &y->rank[rank];
    *gradient = y->step->order[rank][p->given++];
    p->ready[*gradient] = true;
    return p->now += y->step->compute_s[*gradient];
}

/* Returns the time at which bucket `last` is reduced. All ranks must have launched bucket `last` and all
 * buckets before it. */
static double end_of(const running *y, const progress ranks[], int last)
{
    double end = 0;
    for (int b = 0; b <= last; b++) {
        for (int r = 0; r < STEP_RANKS; r++)
            if (ranks[r].launch_s[b] > end) end = ranks[r].launch_s[b];
        end +=
            y->step->latency_s + (double)y->step->assigned.schedule.buckets[b].bytes / y->step->bytes_per_s;
    }
    return end;
}

/* Runs a rank of the reference. The rank does not wait for a bucket before its backward pass has ended. */
static void run_reference(running *y, int rank)
{
    bucket_schedule *s = &y->step->assigned.schedule;
    progress *p = &y->rank[rank];
    bucket_begin_step(s);
    while (p->given < y->step->count) {
        int gradient, bucket;
        compute_next(y, rank, &gradient);
        bucket_gradient_ready(s, gradient);
        while ((bucket = bucket_take_complete(s)) != BUCKET_NONE) p->launch_s[p->launched++] = p->now;
    }
}

/* ---- rules ---- */

static void check_launch(running *y, int rank, int bucket)
{
    progress *p = &y->rank[rank];
    const bucket_schedule *s = &y->step->assigned.schedule;
    if (bucket < 0 || bucket >= s->count)
        test_fail(y->t, "rank %d launches bucket %d: buckets are 0 to %d", rank, bucket, s->count - 1);
    else if (bucket < p->launched)
        test_fail(y->t, "rank %d launches bucket %d twice", rank, bucket);
    for (int i = 0; i < y->step->count && !y->t->failed; i++)
        if (s->bucket_of[i] == bucket && !p->ready[i])
            test_fail(y->t, "rank %d launches bucket %d, but gradient %d, which is in it, is not ready", rank,
                      bucket, i);
    if (bucket > p->launched && !y->t->failed)
        test_fail(y->t,
                  "rank %d launches bucket %d before bucket %d: call %d of another rank is bucket %d, and "
                  "NCCL would add one to the other",
                  rank, bucket, p->launched, p->launched, p->launched);
    if (y->t->failed) return;
    if (p->now > y->reference[rank].launch_s[bucket] && y->step->late == BUCKET_NONE) y->step->late = bucket;
    p->launch_s[p->launched++] = p->now;
}

static void check_wait(running *y, int rank, int bucket)
{
    progress *p = &y->rank[rank];
    if (bucket < 0 || bucket >= p->launched)
        test_fail(y->t, "rank %d waits for bucket %d, which it has not launched: it would wait forever", rank,
                  bucket);
    else
        p->waits_for = bucket;
    if (p->given < y->step->count && y->step->waits_early == BUCKET_NONE) y->step->waits_early = bucket;
}

static void check_end(running *y, int rank, int code)
{
    progress *p = &y->rank[rank];
    int buckets = y->step->assigned.schedule.count;
    p->ended = true;
    if (code == LAB_EMISSING)
        test_fail(y->t, "student_backward() has not been written yet: it returned LAB_EMISSING");
    else if (code != LAB_OK)
        test_fail(y->t, "rank %d: student_backward() returned %d", rank, code);
    else if (p->given < y->step->count)
        test_fail(y->t, "rank %d returned after %d of %d gradients", rank, p->given, y->step->count);
    else if (p->launched < buckets)
        test_fail(y->t, "rank %d returned, but never launched bucket %d", rank, p->launched);
    for (int b = 0; b < buckets && !y->t->failed; b++)
        if (!p->waited[b])
            test_fail(y->t,
                      "rank %d returned without waiting for bucket %d: the optimizer would read sums that "
                      "are not there yet",
                      rank, b);
}

/* ---- messages ---- */

/* Answers each rank that waits for a bucket if all ranks have launched this bucket. */
static void release(running *y, students *s)
{
    for (int r = 0; r < STEP_STUDENTS; r++) {
        progress *p = &y->rank[r];
        int bucket = p->waits_for, ready = 0;
        if (bucket == NOT_WAITING) continue;
        for (int other = 0; other < STEP_RANKS; other++) ready += y->rank[other].launched > bucket;
        if (ready < STEP_RANKS) continue;
        double end = end_of(y, y->rank, bucket);
        if (end > p->now) {
            p->waited_s += end - p->now;
            p->now = end;
        }
        p->waited[bucket] = true;
        p->waits_for = NOT_WAITING;
        students_answer(s, r, LAB_OK, 0);
    }
}

static void on_message(void *context, students *s, int rank, runner_message m, const char *data)
{
    running *y = context;
    progress *p = &y->rank[rank];
    double code = 0;
    if (m.kind == BUCKETS_NEXT) {
        int gradient = 0;
        bool ended = p->given == y->step->count;
        if (!ended) compute_next(y, rank, &gradient);
        students_answer(s, rank, ended ? LAB_END : LAB_OK, gradient);
    } else if (m.kind == BUCKETS_LAUNCH) {
        check_launch(y, rank, (int)m.n);
        students_answer(s, rank, LAB_OK, 0);
    } else if (m.kind == BUCKETS_WAIT) {
        check_wait(y, rank, (int)m.n);
    } else {
        if (m.bytes == (int64_t)sizeof code) memcpy(&code, data, sizeof code);
        check_end(y, rank, (int)code);
    }
    if (!y->t->failed) release(y, s);
    bool all = true;
    for (int r = 0; r < STEP_STUDENTS; r++) all = all && y->rank[r].ended;
    s->finished = all || y->t->failed;
}

status buckets_step_run(students *s, buckets_step *step)
{
    const bucket_schedule *schedule = &step->assigned.schedule;
    double in[2 + STEP_MOST] = {step->count, schedule->count};
    running y = {.step = step, .t = s->t};
    for (int r = 0; r < STEP_RANKS; r++) run_reference(&y, r);
    double end = end_of(&y, y.rank, schedule->count - 1) - y.rank[0].now;
    step->reference_s = end > 0 ? end : 0;
    memcpy(y.reference, y.rank, sizeof y.reference);
    step->late = step->waits_early = BUCKET_NONE;
    memset(y.rank, 0, STEP_STUDENTS * sizeof y.rank[0]);
    for (int r = 0; r < STEP_STUDENTS; r++) y.rank[r].waits_for = NOT_WAITING;
    for (int i = 0; i < step->count; i++) in[2 + i] = schedule->bucket_of[i];
    for (int r = 0; r < STEP_STUDENTS; r++)
        students_send(s, r,
                      (runner_message){RUNNER_CASE, BUCKETS_BACKWARD, 2 + step->count,
                                       (2 + step->count) * (int64_t)sizeof in[0]},
                      in);
    status rc = students_serve(s, on_message, &y);
    step->exposed_s = 0;
    for (int r = 0; r < STEP_STUDENTS; r++) step->exposed_s = fmax(step->exposed_s, y.rank[r].waited_s);
    return rc;
}
