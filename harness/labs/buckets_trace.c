#include "harness/labs/buckets_step.h"
#include "harness/labs/labs.h"

#include "common/base/least.h"
#include "common/base/random.h"
#include "harness/report/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a trace ---- */

enum { MOST_SPANS = 4096, SPAN_CASES = 20 };

typedef struct spans {
    int computes, flights;
    /* program_s is the exposed communication that the program reports. */
    double compute[MOST_SPANS][2], flight[MOST_SPANS][2], program_s;
} spans;

typedef struct edge {
    double at;
    int compute, flight; /* +1 if a span of this kind begins, -1 if it ends, else 0 */
} edge;

/* Sums of the seconds in which a bucket was in flight. `all` counts all these seconds, `exposed` only the
 * seconds in which nothing was computed. `twice` counts each exposed second once per bucket in flight. */
typedef struct span_sums {
    double exposed, twice, all;
} span_sums;

static span_sums sum_spans(const spans *p)
{
    static edge edges[4 * MOST_SPANS];
    int count = 0, compute = 0, flight = 0;
    span_sums sums = {0};
    for (int i = 0; i < p->computes; i++)
        for (int end = 0; end < 2; end++) edges[count++] = (edge){p->compute[i][end], end ? -1 : 1, 0};
    for (int i = 0; i < p->flights; i++)
        for (int end = 0; end < 2; end++) edges[count++] = (edge){p->flight[i][end], 0, end ? -1 : 1};
    qsort(edges, (size_t)count, sizeof edges[0], ascending_doubles);
    for (int i = 0; i < count; i++) {
        double length = i ? edges[i].at - edges[i - 1].at : 0;
        sums.exposed += compute == 0 && flight > 0 ? length : 0;
        sums.twice += compute == 0 ? length * flight : 0;
        sums.all += flight > 0 ? length : 0;
        compute += edges[i].compute;
        flight += edges[i].flight;
    }
    return sums;
}

/* Runs ResNet-50 with `options`, and reads the spans of step `step` of rank 0 from its trace. */
static status read_trace(const grader *g, const char *options, int64_t step, spans *out)
{
    char path[PATH_MAX + 16], name[32];
    json_error_t error;
    json_t *result, *event;
    size_t i;
    double begin = 0, end = 0, process = -1;
    snprintf(path, sizeof path, "%s/trace.json", g->build);
    TRY(program_json(&result, path,
                     "run --device sim:v100-pcie-10gbe --mode ring --model resnet50 --batch 32 --steps 3 "
                     "--warmup 1 --data synthetic %s",
                     options));
    json_decref(result);
    json_t *trace = json_load_file(path, 0, &error), *events = json_object_get(trace, "traceEvents");
    snprintf(name, sizeof name, "step %lld", (long long)step);
    json_array_foreach(events, i, event)
    { /* the first step of this name is rank 0's */
        if (strcmp(report_text_at(event, "name"), name) != 0 || begin > 0) continue;
        begin = report_number_at(event, "ts");
        end = begin + report_number_at(event, "dur");
        process = report_number_at(event, "pid");
    }
    out->computes = out->flights = 0;
    out->program_s = 0;
    json_array_foreach(events, i, event)
    {
        const char *what = report_text_at(event, "cat"), *called = report_text_at(event, "name");
        double at = report_number_at(event, "ts"), until = at + report_number_at(event, "dur");
        if (report_number_at(event, "pid") != process || !(at < end && until > begin)) continue;
        double span[2] = {(fmax(at, begin) - begin) / 1e6, (fmin(until, end) - begin) / 1e6};
        if (strcmp(what, "compute stream") == 0 && out->computes < MOST_SPANS)
            memcpy(out->compute[out->computes++], span, sizeof span);
        else if (strcmp(what, "communication") == 0 && out->flights < MOST_SPANS)
            memcpy(out->flight[out->flights++], span, sizeof span);
        else if (strcmp(what, "parts of the step") == 0 && strcmp(called, "exposed_communication") == 0)
            out->program_s += span[1] - span[0];
    }
    json_decref(trace);
    return out->flights > 0 ? STATUS_OK
                            : fail(STATUS_INTERNAL, "lab: no communication in %s of the trace", name);
}

static status check_spans(students *s, const char *what, const spans *p, double want)
{
    double in[2 + 4 * MOST_SPANS] = {p->computes, p->flights};
    memcpy(in + 2, p->compute, (size_t)p->computes * sizeof p->compute[0]);
    memcpy(in + 2 + 2 * p->computes, p->flight, (size_t)p->flights * sizeof p->flight[0]);
    TRY(students_call(s, BUCKETS_EXPOSED, in, 2 + 2 * (p->computes + p->flights)));
    if (s->t->failed) return STATUS_OK;
    span_sums sums = sum_spans(p);
    double got = s->result[0], tolerance = 0.01 * want + 1e-12;
    const char *why = fabs(got - sums.all) <= tolerance
                          ? ": this is all communication, also what computation hides"
                      : fabs(got - sums.twice) <= tolerance ? ": buckets that overlap each other count once"
                      : got < want ? ": too little; do computations that overlap count twice?"
                                   : "";
    if (!(fabs(got - want) <= tolerance))
        test_fail(s->t, "%s, %d computations, %d buckets: got %.6g s exposed, expected %.6g within 1 %%%s",
                  what, p->computes, p->flights, got, want, why);
    return STATUS_OK;
}

status buckets_run_trace(grader *g, lab_test *t)
{
    uint64_t start = random_start(g->seed, random_fnv1a64("lab 5 spans"));
    students *s;
    spans p = {0};
    TRY(students_start(g, t, 1, &s));
    for (int k = 0; k < SPAN_CASES && !t->failed; k++) {
        p.computes = k % 7;
        p.flights = 1 + k % 5;
        for (int i = 0; i < p.computes + p.flights; i++) {
            double *span = i < p.computes ? p.compute[i] : p.flight[i - p.computes];
            span[0] = (double)random_below(start, (uint64_t)(100 * k + 2 * i), 40);
            span[1] = span[0] + (double)random_below(start, (uint64_t)(100 * k + 2 * i + 1), 15);
        }
        TRY(check_spans(s, "drawn spans", &p, sum_spans(&p).exposed));
    }
    if (t->failed) return STATUS_OK;
    TRY(read_trace(g, "--gpus 4", 2, &p));
    TRY(check_spans(s, "a trace of ResNet-50", &p, p.program_s));
    if (p.program_s > 0)
        snprintf(t->cost, sizeof t->cost, "%.3f ms, the program %.3f ms", 1e3 * s->result[0],
                 1e3 * p.program_s);
    return STATUS_OK;
}

/* ---- questions ---- */

static const char *const sweep_caps[] = {"0.2", "1", "5", "25", "100"};
enum { SWEEP_CAPS = sizeof sweep_caps / sizeof sweep_caps[0], TRACED_STEP = 3 };

typedef struct bucket_question {
    char link[32];
    int gpus, cap;
} bucket_question;

static bucket_question draw(uint64_t seed)
{
    uint64_t start = random_start(seed, random_fnv1a64("lab 5 questions"));
    bucket_question q = {.gpus = 4 + (int)random_below(start, 2, 5),
                         .cap = 2 + (int)random_below(start, 3, 20)};
    snprintf(q.link, sizeof q.link, "%dGbit/s,%dus", 20 + (int)random_below(start, 0, 21),
             20 + 5 * (int)random_below(start, 1, 17));
    return q;
}

void buckets_ask(uint64_t seed, text_buffer *out)
{
    bucket_question q = draw(seed);
    text_append(
        out,
        "# Your cluster. Sweep the cap over 0.2, 1, 5, 25 and 100 MiB:\n"
        "# harness whatif --profile v100-pcie-10gbe --gpus %d --link %s --model resnet50 --batch 32 "
        "--policy ddp --bucket-cap-mb 0.2\n"
        "# The cap with the least exposed communication, and the exposed communication in ms at both ends.\n"
        "best_cap_mb =\nexposed_at_0.2_ms =\nexposed_at_100_ms =\n",
        q.gpus, q.link);
    text_append(out,
                "# A trace:\n"
                "# harness run --device sim:v100-pcie-10gbe --mode ring --gpus %d --link %s --model resnet50 "
                "--batch 32 --data synthetic --bucket-cap-mb %d --warmup 1 --steps 3 --trace trace.json\n"
                "# Exposed communication in ms of \"step %d\" of rank 0, which you compute from the rows "
                "\"compute stream\" "
                "and \"communication\".\n"
                "trace_ms =\n",
                q.gpus, q.link, q.cap, TRACED_STEP);
}

static status sweep(const bucket_question *q, double exposed_ms[SWEEP_CAPS])
{
    for (int k = 0; k < SWEEP_CAPS; k++) {
        json_t *result;
        TRY(program_json(&result, NULL,
                         "whatif --profile v100-pcie-10gbe --gpus %d --link %s --model resnet50 --batch 32 "
                         "--policy ddp --bucket-cap-mb %s",
                         q->gpus, q->link, sweep_caps[k]));
        exposed_ms[k] = 1e3 * report_number_at(result, "points.0.exposed_communication_s");
        json_decref(result);
    }
    return STATUS_OK;
}

/* Checks that with the student's cap the exposed communication is at most 1.1 times as long as with the best
 * cap of the sweep. */
static bool check_best(const grader *g, lab_test *t, const double exposed_ms[SWEEP_CAPS])
{
    const char *given = test_given_answer(g, t, "best_cap_mb");
    double best = exposed_ms[0];
    for (int k = 1; k < SWEEP_CAPS; k++) best = exposed_ms[k] < best ? exposed_ms[k] : best;
    if (!given) return false;
    for (int k = 0; k < SWEEP_CAPS; k++)
        if (strcmp(given, sweep_caps[k]) == 0) {
            if (exposed_ms[k] <= 1.1 * best) return true;
            test_fail(
                t,
                "answers.txt: best_cap_mb: with %s MiB %.1f ms are exposed, with the best cap less than %.1f",
                given, exposed_ms[k], exposed_ms[k] / 1.1);
            return false;
        }
    test_fail(t, "answers.txt: best_cap_mb: expected 0.2, 1, 5, 25 or 100, got '%s'", given);
    return false;
}

status buckets_run_why(grader *g, lab_test *t)
{
    bucket_question q = draw(g->seed);
    double exposed_ms[SWEEP_CAPS], each = t->points / 4;
    char options[128];
    spans p;
    TRY(sweep(&q, exposed_ms));
    snprintf(options, sizeof options, "--gpus %d --link %s --bucket-cap-mb %d", q.gpus, q.link, q.cap);
    TRY(read_trace(g, options, TRACED_STEP, &p));
    const lab_answer answers[] = {
        {"exposed_at_0.2_ms", exposed_ms[0], 0.01, "the column of exposed communication, in ms"},
        {"exposed_at_100_ms", exposed_ms[SWEEP_CAPS - 1], 0.01, "the column of exposed communication, in ms"},
        {"trace_ms", 1e3 * p.program_s, 0.01,
         "count what is in flight while nothing is computed, only within that step, in ms"},
    };
    t->score = each * check_best(g, t, exposed_ms);
    test_answers(g, t, each, answers, 3);
    return STATUS_OK;
}
