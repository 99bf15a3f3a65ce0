/* Lab 4: latency and bandwidth. The tables to fit are drawn with noise, so that scores do not depend on
 * the machine's load. Students measure with `harness bench --link --fit`. */
#include "harness/labs/labs.h"
#include "harness/labs/students.h"

#include "common/base/random.h"

#include <math.h>

enum { FIT, MESSAGE, RING, REDUCER };
enum { TABLES = 6, SIZES = 10, TIMES = 12 };
static const double tolerance = 0.15;

typedef struct emulated {
    double latency, bandwidth; /* seconds; bytes per second */
} emulated;

/* Draws a link of 20 to 200 MB/s and 0.5 to 5 ms. `--link` can express it: the MB/s are integers, and the
 * latency is a multiple of 0.1 ms. */
static emulated draw_link(uint64_t start, uint64_t index)
{
    return (emulated){(5 + (double)random_below(start, 2 * index, 46)) / 1e4,
                      (20 + (double)random_below(start, 2 * index + 1, 181)) * 1e6};
}

static double expected(int which, int ranks, double bytes, emulated l)
{
    return which == MESSAGE ? l.latency + bytes / l.bandwidth
           : which == RING  ? 2 * (ranks - 1) * (l.latency + bytes / ranks / l.bandwidth)
           : ranks == 1     ? 0
                            : 2 * (l.latency + (ranks - 1) * bytes / l.bandwidth);
}

/* ---- the fit ---- */

static void check_fit(const students *s, emulated l, lab_test *t)
{
    double latency = s->result[0], bandwidth = s->result[1];
    if (!is_within(bandwidth, l.bandwidth, tolerance))
        test_fail(t, "bandwidth: got %.4g bytes per second, expected %.4g within 15 %%%s", bandwidth,
                  l.bandwidth,
                  is_within(1 / bandwidth, l.bandwidth, tolerance) ? ": this is seconds per byte" : "");
    else if (!is_within(latency, l.latency, tolerance))
        test_fail(t,
                  "latency: got %.4g s, expected %.4g within 15 %%: small sizes show it, so a fit must weigh "
                  "them as much as large ones",
                  latency, l.latency);
}

static status run_fit(grader *g, lab_test *t)
{
    uint64_t start = random_start(g->seed, random_fnv1a64("lab 4"));
    students *s;
    TRY(students_start(g, t, 1, &s));
    for (int k = 0; k < TABLES && !t->failed; k++) {
        emulated l = draw_link(start, (uint64_t)k);
        double in[2 * SIZES];
        for (int i = 0; i < SIZES; i++) {
            in[i] = 1024 * pow(4, i);
            in[SIZES + i] = expected(MESSAGE, 2, in[i], l) *
                            (1 + 0.03 * random_signed(start, 1000 + (uint64_t)(k * SIZES + i)));
        }
        TRY(students_call(s, FIT, in, 2 * SIZES));
        if (!t->failed) check_fit(s, l, t);
    }
    return STATUS_OK;
}

/* ---- predictions ---- */

static const char *explain(int which, int ranks, double bytes, emulated l, double got)
{
    double want = expected(which, ranks, bytes, l);
    if (is_within(got, 1000 * want, 0.001)) return ": these are milliseconds";
    if (which == MESSAGE && is_within(got, l.latency + 8 * bytes / l.bandwidth, 0.001))
        return ": these are bits, the bandwidth is in bytes";
    if (is_within(got, want / 2, 0.001)) return ": half; the result travels, too";
    if (which == RING && is_within(got, 2 * (ranks - 1) * (l.latency + bytes / l.bandwidth), 0.001))
        return ": each step sends 1/n of the buffer";
    if (which == RING && is_within(got, want * ranks / (ranks - 1), 0.001))
        return ": one step too many in each half";
    if (which == REDUCER && is_within(got, 2 * (l.latency + bytes / l.bandwidth), 0.001))
        return ": all buffers pass through one link, the reducer's";
    return "";
}

static status run_times(grader *g, lab_test *t)
{
    uint64_t start = random_start(g->seed, random_fnv1a64("lab 4 times"));
    students *s;
    TRY(students_start(g, t, 1, &s));
    for (int k = 0; k < TIMES && !t->failed; k++) {
        emulated l = draw_link(start, (uint64_t)k);
        int ranks = 2 + (k * 5) % 15;
        double bytes = 100 * pow(10, k % 7), in[] = {ranks, bytes, l.latency, l.bandwidth},
               want = expected(t->variant, ranks, bytes, l);
        TRY(students_call(s, t->variant, in, 4));
        if (!t->failed && !is_within(s->result[0], want, 0.001))
            test_fail(t, "%d ranks, %.0f bytes, %.4g s, %.4g bytes per second: got %.6g s, expected %.6g%s",
                      ranks, bytes, l.latency, l.bandwidth, s->result[0], want,
                      explain(t->variant, ranks, bytes, l, s->result[0]));
    }
    return STATUS_OK;
}

/* ---- questions ---- */

typedef struct link_question {
    emulated link;
    int ranks;
    double bytes;
} link_question;

static link_question draw(uint64_t seed)
{
    uint64_t start = random_start(seed, random_fnv1a64("lab 4 questions"));
    return (link_question){draw_link(start, 0), 4 + (int)random_below(start, 10, 13),
                           1e6 * (double)(1 + random_below(start, 11, 40))};
}

void alpha_beta_ask(uint64_t seed, text_buffer *out)
{
    link_question q = draw(seed);
    text_append(out, "# Your link: --link %.0fMB/s,%.1fms. Measure it as the handout says.\n",
                q.link.bandwidth / 1e6, q.link.latency * 1e3);
    text_append(out,
                "# Latency of a message in ms, bandwidth in MB/s, as you have fitted them.\nlatency_ms "
                "=\nbandwidth =\n"
                "# Time of an all-reduce of %.0f bytes among %d ranks over this link in ms: in a ring, and "
                "with one reducer.\n"
                "ring_ms =\nreducer_ms =\n# The size in bytes from which on the ring is faster, for %d "
                "ranks.\ncrossover_bytes =\n",
                q.bytes, q.ranks, q.ranks);
}

static status run_why(grader *g, lab_test *t)
{
    link_question q = draw(g->seed);
    double n = q.ranks, crossover = n * (n - 2) / ((n - 1) * (n - 1)) * q.link.latency * q.link.bandwidth;
    const lab_answer answers[] = {
        {"latency_ms", q.link.latency * 1e3, tolerance,
         "more than 15 % off; take the best times, on a quiet machine"},
        {"bandwidth", q.link.bandwidth / 1e6, tolerance,
         "more than 15 % off; take the best times, on a quiet machine"},
        {"ring_ms", 1e3 * expected(RING, q.ranks, q.bytes, q.link), tolerance,
         "use your function with your fit"},
        {"reducer_ms", 1e3 * expected(REDUCER, q.ranks, q.bytes, q.link), tolerance,
         "use your function with your fit"},
        {"crossover_bytes", crossover, tolerance, "set both times equal and solve for the size"},
    };
    test_answers(g, t, t->points / 5, answers, 5);
    return STATUS_OK;
}

const lab_part alpha_beta_parts[] = {
    {"fit", "the fit of drawn tables", 25, false, run_fit, 0},
    {"message", "time of a message", 10, false, run_times, MESSAGE},
    {"ring", "time of a ring all-reduce", 20, false, run_times, RING},
    {"reducer", "time with one reducer", 20, false, run_times, REDUCER},
    {"why", "questions: your link", 20, true, run_why, 0},
    {0},
};
