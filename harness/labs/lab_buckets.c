/* Lab 5: gradient buckets. The reference is the assignment of the ring engine, which a test of this project
 * compares with PyTorch's assignment. */
#include "harness/labs/buckets_step.h"
#include "harness/labs/labs.h"
#include "harness/labs/ranks.h"

#include "common/base/random.h"
#include "harness/report/report.h"
#include "models/models.h"

#include <stdio.h>

enum { MIB = 1 << 20, SMALL_CASES = 40, STEPS = 30 };
static const double learning_rate = 0.1;

/* ---- assignment ---- */

/* Lists the sizes of a model's gradients in the reverse order of registration. */
static status sizes_of(const char *model, int64_t bytes[STEP_MOST], int *count)
{
    nn_model *m = NULL;
    TRY(model_build(&(model_options){.name = model}, &m));
    *count = m->param_count;
    for (int i = 0; i < *count && *count <= STEP_MOST; i++) bytes[i] = 4 * m->params[*count - 1 - i].elements;
    nn_model_free(&m);
    return *count <= STEP_MOST ? STATUS_OK : fail(STATUS_INTERNAL, "lab: %s has %d gradients", model, *count);
}

/* Explains a wrong assignment that follows from another rule. */
static const char *explain(const students *s, const int64_t *bytes, int count, int64_t first, int64_t limit)
{
    const struct {
        bucket_plan plan;
        const char *text;
    } wrong[] = {
        {{BUCKET_REACH_BYTES, 0, first + 1, limit + 1},
         ": a bucket closes when its bytes reach the limit, not when they exceed it"},
        {{BUCKET_WITHIN_BYTES, 0, first, limit},
         ": a bucket takes the gradient that exceeds its limit, too, and then closes"},
        {{BUCKET_REACH_BYTES, 0, limit, limit}, ": the first bucket has a separate limit"},
        {{BUCKET_REACH_BYTES, 0, first, first}, ": only the first bucket has the first limit"},
        {{BUCKET_EACH, 0, first, limit}, ": every gradient has a separate bucket"},
    };
    for (size_t w = 0; w < sizeof wrong / sizeof wrong[0]; w++) {
        lab_buckets b;
        bool same = true;
        buckets_assign(wrong[w].plan, bytes, count, &b);
        for (int i = 0; i < count; i++) same = same && s->result[1 + i] == b.bucket_of[i];
        if (same) return wrong[w].text;
    }
    return "";
}

/* Checks that the student's function makes the same buckets as DistributedDataParallel's rule. */
static status check_assignment(students *s, const char *what, const int64_t *bytes, int count, int64_t first,
                               int64_t limit)
{
    lab_test *t = s->t;
    lab_buckets want;
    double in[3 + STEP_MOST] = {count, (double)first, (double)limit};
    for (int i = 0; i < count; i++) in[3 + i] = (double)bytes[i];
    buckets_assign(buckets_ddp(first, limit), bytes, count, &want);
    TRY(students_call(s, BUCKETS_ASSIGN, in, 3 + count));
    for (int i = 0; i < count && !t->failed; i++)
        if (s->result[1 + i] != want.bucket_of[i])
            test_fail(t,
                      "%s, limits of %lld and %lld bytes: gradient %d (%lld bytes) is in bucket %.0f, "
                      "expected %d%s",
                      what, (long long)first, (long long)limit, i, (long long)bytes[i], s->result[1 + i],
                      want.bucket_of[i], explain(s, bytes, count, first, limit));
    if (!t->failed && s->result[0] != want.schedule.count)
        test_fail(t, "%s: got %.0f buckets, expected %d%s", what, s->result[0], want.schedule.count,
                  s->result[0] < want.schedule.count
                      ? ": the last one counts, too, though it never reaches its limit"
                      : "");
    return STATUS_OK;
}

static status check_model(students *s, const char *model)
{
    static const int64_t limits[][2] = {{MIB, 25 * MIB}, {MIB, MIB}, {25 * MIB, 25 * MIB}, {MIB, 5 * MIB}};
    int64_t bytes[STEP_MOST];
    int count;
    TRY(sizes_of(model, bytes, &count));
    for (size_t k = 0; k < sizeof limits / sizeof limits[0] && !s->t->failed; k++)
        TRY(check_assignment(s, model, bytes, count, limits[k][0], limits[k][1]));
    return STATUS_OK;
}

/* Checks small cases first, because their messages are the easiest to follow. If both limits are equal, the
 * sizes often reach the limit exactly. If the limits differ, the sizes never do, so each case shows one
 * mistake. */
static status run_assign(grader *g, lab_test *t)
{
    uint64_t start = random_start(g->seed, random_fnv1a64("lab 5 assign"));
    students *s;
    int models = 0;
    TRY(students_start(g, t, 1, &s));
    for (int k = 0; k < SMALL_CASES && !t->failed; k++) {
        int64_t bytes[12];
        int count = k % 20 < 8 ? 1 + k % 20 : 12;
        int64_t first = k < 20 ? 400 * (1 + k % 5) : 400 * (1 + k % 3) - 100,
                limit = k < 20 ? first : 400 * (3 + k % 5) - 100;
        for (int i = 0; i < count; i++)
            bytes[i] = 400 * (1 + (int64_t)random_below(start, (uint64_t)(12 * k + i), 4));
        TRY(check_assignment(s, "drawn sizes", bytes, count, first, limit));
    }
    for (; models < model_count && !t->failed; models++) TRY(check_model(s, model_table[models].name));
    snprintf(t->cost, sizeof t->cost, "%d models", models);
    return STATUS_OK;
}

/* ---- the launch rule ---- */

/* Draws the order in which each rank computes gradients. If `own` is false, the order is 0, 1, 2, ... */
static void draw_orders(buckets_step *step, uint64_t start, bool own)
{
    for (int r = 0; r < STEP_RANKS; r++) {
        for (int i = 0; i < step->count; i++) step->order[r][i] = i;
        if (own) draw_order(start, (uint64_t)(r * step->count), step->count, step->order[r]);
    }
}

static status run_launch(grader *g, lab_test *t)
{
    uint64_t start = random_start(g->seed, random_fnv1a64("lab 5 launch"));
    students *s;
    TRY(students_start(g, t, STEP_STUDENTS, &s));
    for (int k = 0; k < SMALL_CASES && !t->failed; k++) {
        int64_t bytes[30];
        buckets_step step = {.count = k == 0 ? 1 : 6 + k % 25, .bytes_per_s = 1};
        for (int i = 0; i < step.count; i++)
            bytes[i] = 400 * (1 + (int64_t)random_below(start, (uint64_t)(100 * k + i), 9));
        buckets_assign(buckets_ddp(400, 2000), bytes, step.count, &step.assigned);
        draw_orders(&step, start + (uint64_t)k, k % 2 != 0);
        TRY(buckets_step_run(s, &step));
    }
    return STATUS_OK;
}

/* ---- training ---- */

static void update(float *param, float grad[STEP_RANKS][LAB_RANKS_ELEMENTS])
{
    for (int i = 0; i < LAB_RANKS_ELEMENTS; i++) {
        float sum = 0;
        for (int r = 0; r < STEP_RANKS; r++) sum += grad[r][i];
        param[i] -= (float)learning_rate * (sum / STEP_RANKS);
    }
}

static status run_train(grader *g, lab_test *t)
{
    float param[LAB_RANKS_ELEMENTS], grad[STEP_RANKS][LAB_RANKS_ELEMENTS];
    int64_t bytes[LAB_RANKS_TENSORS], done = 0;
    buckets_step step = {.count = LAB_RANKS_TENSORS, .bytes_per_s = 1};
    students *s;
    double loss = 0;
    for (int i = 0; i < LAB_RANKS_TENSORS; i++) bytes[i] = 4 * lab_ranks_tensors[LAB_RANKS_TENSORS - 1 - i];
    TRY(students_start(g, t, 1, &s));
    TRY(check_assignment(s, "wine_mlp", bytes, LAB_RANKS_TENSORS, 12, 1024));
    buckets_assign(buckets_ddp(12, 1024), bytes, LAB_RANKS_TENSORS, &step.assigned);
    draw_orders(&step, 0, false);
    TRY(lab_ranks_open(g, STEP_RANKS, param));
    TRY(students_start(g, t, STEP_STUDENTS, &s));
    for (; done < STEPS && !t->failed; done++) {
        TRY(lab_ranks_compute_all(g, done, param, grad, &loss));
        TRY(buckets_step_run(s, &step));
        update(param, grad);
    }
    snprintf(t->cost, sizeof t->cost, "%d buckets, loss %.4f after %lld steps on Wine",
             step.assigned.schedule.count, loss, (long long)done);
    return STATUS_OK;
}

/* ---- exposed communication ---- */

/* Computes when each gradient of ResNet-50 becomes ready on a virtual GPU, from a run with one bucket per
 * gradient. */
static status ready_times(double *ready_s, int count)
{
    json_t *result, *message;
    size_t i;
    int found = 0;
    TRY(program_json(&result, NULL,
                     "run --device sim:v100-pcie-10gbe --mode ring --policy naive --gpus 2 --model resnet50 "
                     "--batch 32 --warmup 2 --steps 2 --data synthetic"));
    json_array_foreach((json_t *)report_at(result, "jobs.0.ranks.0.timeline.messages"), i, message)
    {
        int64_t index = (int64_t)report_number_at(message, "index");
        if (index < 0 || index >= count) continue;
        ready_s[index] = report_number_at(message, "launched_s");
        found++;
    }
    json_decref(result);
    return found == count ? STATUS_OK
                          : fail(STATUS_INTERNAL, "lab: %d of %d gradients in the time line", found, count);
}

static status run_exposed(grader *g, lab_test *t)
{
    static const int64_t caps[] = {25, 5, 1};
    uint64_t start = random_start(g->seed, random_fnv1a64("lab 5 exposed"));
    students *s;
    buckets_step step = {0};
    int64_t bytes[STEP_MOST];
    double ready_s[STEP_MOST];
    TRY(sizes_of("resnet50", bytes, &step.count));
    TRY(ready_times(ready_s, step.count));
    for (int i = 1; i < step.count; i++) step.compute_s[i] = ready_s[i] - ready_s[i - 1];
    draw_orders(&step, 0, false);
    TRY(students_start(g, t, STEP_STUDENTS, &s));
    for (int k = 0; k < 3 && !t->failed; k++) {
        buckets_assign(buckets_ddp(MIB, caps[k] * MIB), bytes, step.count, &step.assigned);
        step.latency_s = 1e-4 * (1 + (double)random_below(start, (uint64_t)k, 5));
        step.bytes_per_s = 1e9 * (2 + (double)random_below(start, 10 + (uint64_t)k, 9));
        TRY(buckets_step_run(s, &step));
        double got = 1e3 * step.exposed_s, want = 1e3 * step.reference_s;
        snprintf(t->cost, sizeof t->cost, "%.2f ms exposed, the reference %.2f ms (cap %lld MiB)", got, want,
                 (long long)caps[k]);
        bool early = step.waits_early != BUCKET_NONE;
        if (!t->failed && got > 1.1 * want)
            test_fail(t, "%.2f ms exposed, expected at most 1.1 times %.2f: bucket %d is %s", got, want,
                      early ? step.waits_early : step.late,
                      early ? "waited for while there are gradients left to compute"
                            : "launched later than it may be");
    }
    return STATUS_OK;
}

const lab_part buckets_parts[] = {
    {"assign", "assignment, all models", 20, false, run_assign, 0},
    {"launch", "the launch rule, drawn buckets", 20, false, run_launch, 0},
    {"train", "a perceptron on Wine", 10, false, run_train, 0},
    {"exposed", "exposed communication, ResNet-50", 15, false, run_exposed, 0},
    {"trace", "exposed communication of a trace", 10, false, buckets_run_trace, 0},
    {"why", "questions: the cap", 20, true, buckets_run_why, 0},
    {0},
};
