/* Lab 5: gradient buckets. The reference is the ring's own assignment, which a test compares with
 * PyTorch's. */
#include "harness/labs/buckets_step.h"
#include "harness/labs/buckets_trace.h"
#include "harness/labs/call.h"
#include "harness/labs/labs.h"
#include "harness/labs/ranks.h"

#include "common/base/random.h"
#include "harness/report/report.h"
#include "labs/runner/buckets.h"
#include "models/models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20, SMALL_CASES = 40, STEPS = 30 };
static const double learning_rate = 0.1;

/* ---- assignment ---- */

/* Lists the sizes of a model's gradients in the reverse order of registration. The caller frees *bytes. */
static status sizes_of(const char *model, int64_t **bytes, int *count)
{
    nn_model *m = NULL;
    TRY(model_build(&(model_options){.name = model}, &m));
    *count = m->param_count;
    *bytes = calloc((size_t)m->param_count + 1, sizeof **bytes);
    for (int i = 0; *bytes && i < *count; i++) (*bytes)[i] = 4 * m->params[*count - 1 - i].elements;
    nn_model_free(&m);
    return *bytes ? STATUS_OK : fail(STATUS_SYSTEM, "lab: no memory for a model's sizes");
}

static bool is_as(const student_calls *c, const bucket_schedule *s, int count)
{
    for (int i = 0; i < count; i++)
        if (c->result[1 + i] != s->bucket_of[i]) return false;
    return true;
}

/* Explains a wrong assignment that follows from another rule. */
static const char *explain(const student_calls *c, const int64_t *bytes, int count, int64_t first,
                           int64_t limit)
{
    static const struct {
        bucket_plan plan; /* limits: 0 as given, 1 the other limit, 2 one byte more */
        const char *text;
    } wrong[] = {
        {{BUCKET_REACH_BYTES, 0, 2, 2},
         ": a bucket closes when its bytes reach the limit, not when they exceed it"},
        {{BUCKET_WITHIN_BYTES, 0, 0, 0},
         ": a bucket takes the gradient that exceeds its limit, too, and then closes"},
        {{BUCKET_REACH_BYTES, 0, 1, 0}, ": the first bucket has a separate limit"},
        {{BUCKET_REACH_BYTES, 0, 0, 1}, ": only the first bucket has the first limit"},
        {{BUCKET_EACH, 0, 0, 0}, ": every gradient has a separate bucket"},
    };
    bucket_tensor tensors[STEP_MOST];
    bucket_schedule s = {0};
    const char *text = "";
    if (count > STEP_MOST || bucket_schedule_open(count, &s) != STATUS_OK) return text;
    for (int i = 0; i < count; i++) tensors[i] = (bucket_tensor){bytes[i] / 4, DTYPE_F32, 0};
    for (size_t w = 0; w < sizeof wrong / sizeof wrong[0] && !text[0]; w++) {
        bucket_plan plan = wrong[w].plan;
        plan.first_limit = plan.first_limit == 1 ? limit : first + plan.first_limit / 2;
        plan.limit = plan.limit == 1 ? first : limit + plan.limit / 2;
        bucket_assign(&plan, tensors, count, NULL, &s);
        if (is_as(c, &s, count)) text = wrong[w].text;
    }
    bucket_schedule_close(&s);
    return text;
}

static status check_assignment(student_calls *c, lab_test *t, const char *what, const int64_t *bytes,
                               int count, int64_t first, int64_t limit)
{
    bucket_schedule want = {0};
    double in[3 + STEP_MOST] = {count, (double)first, (double)limit};
    for (int i = 0; i < count; i++) in[3 + i] = (double)bytes[i];
    TRY(buckets_of(bytes, count, first, limit, &want));
    status rc = calls_make(c, t, BUCKETS_ASSIGN, in, 3 + count);
    for (int i = 0; i < count && !t->failed; i++)
        if (c->result[1 + i] != want.bucket_of[i])
            test_fail(t,
                      "%s, limits of %lld and %lld bytes: gradient %d (%lld bytes) is in bucket %.0f, "
                      "expected %d%s",
                      what, (long long)first, (long long)limit, i, (long long)bytes[i], c->result[1 + i],
                      want.bucket_of[i], explain(c, bytes, count, first, limit));
    if (!t->failed && c->result[0] != want.count)
        test_fail(t, "%s: got %.0f buckets, expected %d%s", what, c->result[0], want.count,
                  c->result[0] < want.count ? ": the last one counts, too, though it never reaches its limit"
                                            : "");
    bucket_schedule_close(&want);
    return rc;
}

static status check_model(student_calls *c, lab_test *t, const char *model)
{
    static const int64_t limits[][2] = {{MIB, 25 * MIB}, {MIB, MIB}, {25 * MIB, 25 * MIB}, {MIB, 5 * MIB}};
    int64_t *bytes = NULL;
    int count = 0;
    TRY(sizes_of(model, &bytes, &count));
    status rc =
        count <= STEP_MOST ? STATUS_OK : fail(STATUS_INTERNAL, "lab: %s has %d gradients", model, count);
    for (size_t k = 0; k < sizeof limits / sizeof limits[0] && rc == STATUS_OK && !t->failed; k++)
        rc = check_assignment(c, t, model, bytes, count, limits[k][0], limits[k][1]);
    free(bytes);
    return rc;
}

/* Checks small cases first, because their messages are the easiest to follow. Sizes often reach a limit
 * exactly in cases with equal limits, and never in other cases, so each case shows one mistake. */
static status run_assign(grader *g, lab_test *t)
{
    uint64_t start = random_start(g->seed, random_fnv1a64("lab 5 assign"));
    student_calls *c = NULL;
    int models = 0;
    status rc = calls_open(g, &c);
    for (int k = 0; rc == STATUS_OK && k < SMALL_CASES && !t->failed; k++) {
        int64_t bytes[12];
        int count = k % 20 < 8 ? 1 + k % 20 : 12;
        int64_t first = k < 20 ? 400 * (1 + k % 5) : 400 * (1 + k % 3) - 100,
                limit = k < 20 ? first : 400 * (3 + k % 5) - 100;
        for (int i = 0; i < count; i++)
            bytes[i] = 400 * (1 + (int64_t)random_below(start, (uint64_t)(12 * k + i), 4));
        rc = check_assignment(c, t, "drawn sizes", bytes, count, first, limit);
    }
    for (; rc == STATUS_OK && models < model_count && !t->failed; models++)
        rc = check_model(c, t, model_table[models].name);
    snprintf(t->cost, sizeof t->cost, "%d models", models);
    calls_close(&c, t);
    return rc;
}

/* ---- the launch rule ---- */

/* Draws the order in which each rank computes gradients. If `own` is false, the order is 0, 1, 2, ... */
static void draw_orders(buckets_step *step, uint64_t start, bool own)
{
    for (int r = 0; r < STEP_RANKS; r++) {
        for (int i = 0; i < step->count; i++) step->order[r][i] = i;
        for (int i = step->count - 1; own && i > 0; i--) {
            int other = (int)random_below(start, (uint64_t)(r * step->count + i), (uint64_t)i + 1),
                swap = step->order[r][i];
            step->order[r][i] = step->order[r][other];
            step->order[r][other] = swap;
        }
    }
}

static status run_launch(grader *g, lab_test *t)
{
    uint64_t start = random_start(g->seed, random_fnv1a64("lab 5 launch"));
    students s = {0};
    buckets_step *step = calloc(1, sizeof *step);
    status rc = step ? buckets_ranks_open(g, &s) : fail(STATUS_SYSTEM, "lab: no memory for a step");
    for (int k = 0; rc == STATUS_OK && k < SMALL_CASES && !t->failed; k++) {
        int64_t bytes[30];
        bucket_schedule schedule = {0};
        step->count = k == 0 ? 1 : 6 + k % 25;
        for (int i = 0; i < step->count; i++)
            bytes[i] = 400 * (1 + (int64_t)random_below(start, (uint64_t)(100 * k + i), 9));
        rc = buckets_of(bytes, step->count, 400, 2000, &schedule);
        step->schedule = &schedule;
        step->bytes_per_s = 1;
        draw_orders(step, start + (uint64_t)k, k % 2 != 0);
        if (rc == STATUS_OK) rc = buckets_step_run(&s, step, t);
        bucket_schedule_close(&schedule);
    }
    if (t->failed) students_printed(&s, t);
    students_end(&s);
    free(step);
    return rc;
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

/* Checks the buckets that the student's function makes of wine_mlp's gradients. */
static status assign_wine(grader *g, lab_test *t, bucket_schedule *out)
{
    student_calls *c = NULL;
    int64_t bytes[LAB_RANKS_TENSORS];
    for (int i = 0; i < LAB_RANKS_TENSORS; i++) bytes[i] = 4 * lab_ranks_tensors[LAB_RANKS_TENSORS - 1 - i];
    status rc = calls_open(g, &c);
    if (rc == STATUS_OK) rc = check_assignment(c, t, "wine_mlp", bytes, LAB_RANKS_TENSORS, 12, 1024);
    calls_close(&c, t);
    return rc == STATUS_OK ? buckets_of(bytes, LAB_RANKS_TENSORS, 12, 1024, out) : rc;
}

static status run_train(grader *g, lab_test *t)
{
    float param[LAB_RANKS_ELEMENTS], (*grad)[LAB_RANKS_ELEMENTS] = calloc(STEP_RANKS, sizeof *grad);
    buckets_step *step = calloc(1, sizeof *step);
    lab_ranks *ranks = NULL;
    bucket_schedule schedule = {0};
    students s = {0};
    double loss = 0;
    int64_t done = 0;
    status rc =
        step && grad ? assign_wine(g, t, &schedule) : fail(STATUS_SYSTEM, "lab: no memory for the ranks");
    if (rc == STATUS_OK) rc = lab_ranks_open(STEP_RANKS, g->seed, param, &ranks);
    if (rc == STATUS_OK) rc = buckets_ranks_open(g, &s);
    for (; rc == STATUS_OK && done < STEPS && !t->failed; done++) {
        *step = (buckets_step){.count = LAB_RANKS_TENSORS, .schedule = &schedule, .bytes_per_s = 1};
        draw_orders(step, 0, false);
        loss = 0;
        for (int r = 0; r < STEP_RANKS && rc == STATUS_OK; r++) {
            double own;
            rc = lab_ranks_compute(ranks, r, done, LAB_RANKS_BATCH, param, grad[r], &own);
            loss += own / STEP_RANKS;
        }
        if (rc == STATUS_OK) rc = buckets_step_run(&s, step, t);
        update(param, grad);
    }
    snprintf(t->cost, sizeof t->cost, "%d buckets, loss %.4f after %lld steps on Wine", schedule.count, loss,
             (long long)done);
    if (t->failed) students_printed(&s, t);
    students_end(&s);
    lab_ranks_close(&ranks);
    bucket_schedule_close(&schedule);
    free(step);
    free(grad);
    return rc;
}

/* ---- exposed communication ---- */

/* Computes when each gradient of ResNet-50 becomes ready on a virtual GPU, from a run with one bucket per
 * gradient. */
static status ready_times(double *ready_s, int count)
{
    static const char *const words[] = {"run",       "--device", "sim:v100-pcie-10gbe",
                                        "--mode",    "ring",     "--policy",
                                        "naive",     "--gpus",   "2",
                                        "--model",   "resnet50", "--batch",
                                        "32",        "--warmup", "2",
                                        "--steps",   "2",        "--data",
                                        "synthetic", "--json",   "-",
                                        NULL};
    json_t *result, *message;
    size_t i;
    int found = 0;
    TRY(program_json(words, &result));
    json_t *line = json_object_get(
        json_array_get(json_object_get(json_array_get(json_object_get(result, "jobs"), 0), "ranks"), 0),
        "timeline");
    json_array_foreach(json_object_get(line, "messages"), i, message)
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
    students s = {0};
    buckets_step *step = calloc(1, sizeof *step);
    int64_t *bytes = NULL;
    double ready_s[STEP_MOST];
    status rc =
        step ? sizes_of("resnet50", &bytes, &step->count) : fail(STATUS_SYSTEM, "lab: no memory for a step");
    if (rc == STATUS_OK) rc = ready_times(ready_s, step->count);
    for (int i = 1; rc == STATUS_OK && i < step->count; i++) step->compute_s[i] = ready_s[i] - ready_s[i - 1];
    if (rc == STATUS_OK) rc = buckets_ranks_open(g, &s);
    for (int k = 0; rc == STATUS_OK && k < 3 && !t->failed; k++) {
        bucket_schedule schedule = {0};
        rc = buckets_of(bytes, step->count, MIB, caps[k] * MIB, &schedule);
        step->schedule = &schedule;
        step->latency_s = 1e-4 * (1 + (double)random_below(start, (uint64_t)k, 5));
        step->bytes_per_s = 1e9 * (2 + (double)random_below(start, 10 + (uint64_t)k, 9));
        draw_orders(step, 0, false);
        if (rc == STATUS_OK) rc = buckets_step_run(&s, step, t);
        bucket_schedule_close(&schedule);
        double got = 1e3 * step->exposed_s, want = 1e3 * step->reference_s;
        snprintf(t->cost, sizeof t->cost, "%.2f ms exposed, the reference %.2f ms (cap %lld MiB)", got, want,
                 (long long)caps[k]);
        if (t->failed || got <= 1.1 * want) continue;
        if (step->waits_early != BUCKET_NONE)
            test_fail(t,
                      "%.2f ms exposed, expected at most 1.1 times %.2f: bucket %d is waited for while there "
                      "are gradients left to compute",
                      got, want, step->waits_early);
        else
            test_fail(t,
                      "%.2f ms exposed, expected at most 1.1 times %.2f: bucket %d is launched later than it "
                      "may be",
                      got, want, step->late);
    }
    if (t->failed) students_printed(&s, t);
    students_end(&s);
    free(bytes);
    free(step);
    return rc;
}

static const lab_part parts[] = {
    {"assign", "assignment, all models", 20, false, run_assign},
    {"launch", "the launch rule, drawn buckets", 20, false, run_launch},
    {"train", "a perceptron on Wine", 10, false, run_train},
    {"exposed", "exposed communication, ResNet-50", 15, false, run_exposed},
    {"trace", "exposed communication of a trace", 10, false, buckets_run_trace},
    {"why", "questions: the cap", 20, true, buckets_run_why},
};

const lab buckets_lab = {.number = 5,
                         .name = "buckets",
                         .title = "gradient buckets",
                         .hours = "2 to 3",
                         .source = "buckets.c",
                         .function = "student_backward",
                         .runner = "buckets",
                         .parts = parts,
                         .part_count = sizeof parts / sizeof parts[0],
                         .questions = buckets_ask};
