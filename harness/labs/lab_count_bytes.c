/* Grades lab 1. The student's functions predict the bytes that a rank sends in a step. The predictions are
 * compared with exact values, which are computed here, and with the traffic counters of real runs. */
#include "harness/labs/labs.h"
#include "harness/labs/students.h"

#include "common/base/random.h"
#include "harness/report/report.h"

#include <math.h>
#include <stdio.h>

enum { REDUCER, SERVERS, RING, BUSIEST };
enum { CASES = 12, ELEMENT = 4 };

static int64_t part_size(int64_t n, int parts, int index)
{
    return n / parts + (index < n % parts);
}

static int64_t expected(int which, int ranks, int servers, int64_t n, int rank)
{
    int64_t own = rank < servers ? part_size(n, servers, rank) : 0, most = 0;
    switch (which) {
    case REDUCER:
        return expected(SERVERS, ranks, 1, n, rank);
    case SERVERS:
        return ELEMENT * (n - own + (ranks - 1) * own);
    case RING:
        if (ranks == 1) return 0;
        return ELEMENT *
               (2 * n - part_size(n, ranks, (rank + 1) % ranks) - part_size(n, ranks, (rank + 2) % ranks));
    default:
        for (int r = 0; r < ranks; r++) {
            int64_t sent = expected(SERVERS, ranks, servers, n, r);
            most = sent > most ? sent : most;
        }
        return most;
    }
}

/* Explains a wrong number that follows from a known mistake. */
static const char *explain(double got, int64_t want, int which, int ranks, int servers, int64_t n)
{
    double difference = got - (double)want;
    int parts = which == RING ? ranks : servers;
    if (got * ELEMENT == (double)want) return ": these are elements, not bytes";
    if (difference == (double)(ELEMENT * n))
        return ": one buffer too many; what a rank gives to itself is not sent";
    if (which == RING && fabs(2 * got - (double)want) <= 2 * ELEMENT)
        return ": half; the finished chunks travel around once more";
    if (difference != 0 && n % parts && fabs(difference) <= ELEMENT * 2.0 * ranks)
        return ": the parts do not divide the length, and some have one element more";
    return difference < 0 ? ": fewer than are sent" : ": more than are sent";
}

static status check_call(students *s, int ranks, int servers, int64_t n, int rank)
{
    const double in[] = {ranks, servers, (double)n, rank};
    int which = s->t->variant;
    int64_t want = expected(which, ranks, servers, n, rank);
    char what[64] = "", who[32] = "";
    TRY(students_call(s, which, in, 4));
    if (which == SERVERS || which == BUSIEST) snprintf(what, sizeof what, ", %d servers", servers);
    if (which != BUSIEST) snprintf(who, sizeof who, ", rank %d", rank);
    if (!s->t->failed && s->result[0] != (double)want)
        test_fail(s->t, "%d ranks%s, %lld elements%s: got %.0f bytes, expected %lld%s", ranks, what,
                  (long long)n, who, s->result[0], (long long)want,
                  explain(s->result[0], want, which, ranks, servers, n));
    return STATUS_OK;
}

/* Checks every rank in cases with random numbers of ranks and servers, and with even and prime lengths. */
static status run_function(grader *g, lab_test *t)
{
    static const int64_t lengths[] = {1 << 20, 25557032, 1091, 61706, 13, 1};
    uint64_t start = random_start(g->seed, random_fnv1a64("lab 1"));
    students *s;
    TRY(students_start(g, t, 1, &s));
    for (int k = 0; k < CASES && !t->failed; k++) {
        int ranks = k == 0 ? 4 : k == 1 ? 1 : 2 + (int)random_below(start, (uint64_t)k, 15);
        int servers = 1 + (int)random_below(start, 100 + (uint64_t)k, (uint64_t)ranks);
        for (int rank = 0; rank < (t->variant == BUSIEST ? 1 : ranks) && !t->failed; rank++)
            TRY(check_call(s, ranks, servers, lengths[k % 6], rank));
    }
    return STATUS_OK;
}

/* Trains the model of 1091 parameters with both engines and compares the counters of every rank. The
 * tolerance is 3 %, because the engines align chunks and a run ends between a push and the next pull. */
static status compare_run(students *s, int which, int ranks, int servers)
{
    char path[64], engine[64] = "--mode ring --algorithm ring";
    json_t *result;
    if (which == SERVERS) snprintf(engine, sizeof engine, "--mode ps --policy sync --servers %d", servers);
    TRY(program_json(&result, NULL,
                     "run %s --gpus %d --model wine_mlp --data synthetic --batch 8 --warmup 1 --steps 100",
                     engine, ranks));
    status rc = STATUS_OK;
    for (int rank = 0; rank < ranks && rc == STATUS_OK && !s->t->failed; rank++) {
        const double in[] = {ranks, servers, 1091, rank};
        snprintf(path, sizeof path, "jobs.0.traffic.per_rank.%d.bytes_sent_per_step", rank);
        double counted = report_number_at(result, path);
        rc = students_call(s, which, in, 4);
        if (!s->t->failed && !is_within(s->result[0], counted, 0.03))
            test_fail(s->t,
                      "%s, %d ranks, %d servers, 1091 parameters: rank %d sent %.0f bytes per step, you "
                      "predict %.0f",
                      which == RING ? "ring" : "parameter server", ranks, servers, rank, counted,
                      s->result[0]);
    }
    json_decref(result);
    return rc;
}

static status run_real(grader *g, lab_test *t)
{
    uint64_t start = random_start(g->seed, random_fnv1a64("lab 1 runs"));
    int ranks = 3 + (int)random_below(start, 0, 2),
        servers = 2 + (int)random_below(start, 1, (uint64_t)ranks - 1);
    students *s;
    TRY(students_start(g, t, 1, &s));
    TRY(compare_run(s, RING, ranks, 1));
    if (!t->failed) TRY(compare_run(s, SERVERS, ranks, servers));
    snprintf(t->cost, sizeof t->cost, "counted in runs of %d ranks, %d servers", ranks, servers);
    return STATUS_OK;
}

typedef struct count_question {
    int ranks, times;
    int64_t n;
} count_question;

static count_question draw(uint64_t seed)
{
    uint64_t start = random_start(seed, random_fnv1a64("lab 1 questions"));
    count_question q = {.ranks = 4 + 2 * (int)random_below(start, 0, 15),
                        .times = 3 + (int)random_below(start, 1, 20)};
    q.n = q.ranks * (1000 + (int64_t)random_below(start, 2, 9000));
    return q;
}

void count_bytes_ask(uint64_t seed, text_buffer *out)
{
    count_question q = draw(seed);
    text_append(
        out,
        "# %d ranks sum %lld gradients of type float32.\n# Bytes that rank 0 sends as the only "
        "reducer.\nreducer_bytes =\n"
        "# Bytes that each rank sends in the ring.\nring_bytes =\n"
        "# The least number of servers with which no rank sends more than in the ring.\nservers_as_ring =\n"
        "# From how many ranks on does the only reducer send at least %d times as much as a rank of a "
        "ring?\nranks_for_times =\n",
        q.ranks, (long long)q.n, q.times);
}

static status run_why(grader *g, lab_test *t)
{
    count_question q = draw(g->seed);
    const lab_answer answers[] = {
        {"reducer_bytes", (double)expected(REDUCER, q.ranks, 1, q.n, 0), 0, "it sends the sum to all others"},
        {"ring_bytes", (double)expected(RING, q.ranks, 1, q.n, 0), 0,
         "2 (n - 1) chunks of 1/n of the buffer"},
        {"servers_as_ring", q.ranks, 0,
         "try k servers in your function until its busiest link meets the ring"},
        {"ranks_for_times", 2 * q.times, 0, "divide one formula by the other: what is left of n?"},
    };
    test_answers(g, t, t->points / 4, answers, 4);
    return STATUS_OK;
}

const lab_part count_bytes_parts[] = {
    {"reducer", "bytes with one reducer", 15, false, run_function, REDUCER},
    {"servers", "bytes with k servers", 20, false, run_function, SERVERS},
    {"ring", "bytes in the ring", 20, false, run_function, RING},
    {"busiest", "the busiest link", 15, false, run_function, BUSIEST},
    {"real", "counters of real runs", 15, false, run_real, 0},
    {"why", "questions: where they meet", 10, true, run_why, 0},
    {0},
};
