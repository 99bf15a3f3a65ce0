/* Lab 3: sums, cost and time of the student's all-reduce, and questions. The time is compared with the
 * reference's. */
#include "harness/labs/labs.h"

#include "common/base/random.h"
#include "harness/labs/ring_relay.h"
#include "harness/report/significance.h"
#include "labs/lab.h"

#include <sched.h>
#include <stdio.h>
#include <unistd.h>

/* ---- parts ---- */

static status run_two(grader *g, lab_test *t)
{
    return ring_relay_run(g, t, 2, (int64_t[]){2, 8, 4096}, 3, NULL);
}

static status run_even(grader *g, lab_test *t)
{
    for (int size = 1; size <= 8 && !t->failed; size++)
        TRY(ring_relay_run(g, t, size, (int64_t[]){size, 16 * size, 1024 * size}, 3, NULL));
    return STATUS_OK;
}

static status run_uneven(grader *g, lab_test *t)
{
    for (int size = 2; size <= 8 && !t->failed; size++)
        TRY(ring_relay_run(g, t, size, (int64_t[]){0, 1, size - 1, size + 1, 13, 97, 1009}, 7, NULL));
    return STATUS_OK;
}

static status run_large(grader *g, lab_test *t)
{
    static const int64_t count = 1000003;
    ring_traffic most = {0};
    TRY(ring_relay_run(g, t, 8, &count, 1, &most));
    snprintf(t->cost, sizeof t->cost, "%.3f x buffer sent per rank",
             (double)most.sent_bytes / ((double)count * sizeof(float)));
    return STATUS_OK;
}

/* Traffic that a part counts: bytes or messages that a rank sends. */
enum { BYTES, MESSAGES };

static status run_traffic(grader *g, lab_test *t)
{
    static const int sizes[] = {3, 8};
    int64_t count = t->variant == BYTES ? 100003 : 1009;
    double buffer = (double)count * sizeof(float);
    for (int k = 0; k < 2 && !t->failed; k++) {
        ring_traffic most;
        int size = sizes[k];
        int64_t messages = 2 * (size - 1),
                bytes = messages * ((count + size - 1) / size) * (int64_t)sizeof(float);
        TRY(ring_relay_run(g, t, size, &count, 1, &most));
        if (t->variant == BYTES)
            snprintf(t->cost, sizeof t->cost, "%.3f x buffer sent per rank (bound %.3f)",
                     (double)most.sent_bytes / buffer, (double)bytes / buffer);
        else
            snprintf(t->cost, sizeof t->cost, "%lld messages sent per rank (bound %lld)",
                     (long long)most.messages, (long long)messages);
        if (t->failed) return STATUS_OK;
        if (t->variant == BYTES && most.sent_bytes > bytes)
            test_fail(t,
                      "%d ranks, %lld elements: a rank sent %lld bytes, expected at most %lld: 2 (n - 1) "
                      "chunks of 1/n of the buffer",
                      size, (long long)count, (long long)most.sent_bytes, (long long)bytes);
        if (t->variant == MESSAGES && most.messages > messages)
            test_fail(t, "%d ranks: a rank sent %lld messages, expected at most 2 (n - 1) = %lld", size,
                      (long long)most.messages, (long long)messages);
    }
    return STATUS_OK;
}

static status run_scratch(grader *g, lab_test *t)
{
    static const int64_t count = 100003;
    enum { SIZE = 8, SLACK = 256 };
    ring_traffic most;
    int64_t bound = (count + SIZE - 1) / SIZE * (int64_t)sizeof(float);
    TRY(ring_relay_run(g, t, SIZE, &count, 1, &most));
    snprintf(t->cost, sizeof t->cost, "%lld bytes allocated (bound %lld)", (long long)most.memory_bytes,
             (long long)bound);
    if (!t->failed && most.memory_bytes > bound + SLACK)
        test_fail(
            t, "%d ranks, %lld elements: a rank allocated %lld bytes, expected at most one chunk, %lld bytes",
            SIZE, (long long)count, (long long)most.memory_bytes, (long long)bound);
    return STATUS_OK;
}

/* ---- speed ---- */

enum { SPEED_RANKS = 4, SPEED_COUNT = 2000003, SPEED_ROUNDS = 11, SPEED_FEW_ROUNDS = 3 };

typedef struct timed {
    int ready, returned;
    bool wrong;
    int64_t ns; /* longest of the ranks' critical paths (ring_direct.h) */
} timed;

static void on_timed_message(void *context, students *s, int rank, runner_message m, const char *data)
{
    timed *y = context;
    if (m.kind == RING_READY && ++y->ready == SPEED_RANKS) {
        for (int r = 0; r < SPEED_RANKS; r++) students_answer(s, r, LAB_OK, 0);
    } else if (m.kind == RUNNER_RESULT) {
        if (m.n > y->ns) y->ns = m.n;
        y->wrong = y->wrong || m.code != LAB_OK || m.bytes != SPEED_COUNT * (int64_t)sizeof(float);
        for (int64_t i = 0; i < SPEED_COUNT && !y->wrong; i += 997)
            y->wrong = ((const float *)(const void *)data)[i] != ring_relay_sum(SPEED_RANKS, i);
        s->finished = ++y->returned == SPEED_RANKS;
    }
    (void)rank;
}

/* Times the student's code and the reference in turns, so that a slow processor affects both. The median of
 * the ratios counts. If all ratios are far above the bound, a few rounds are enough. More rounds could exceed
 * the processor time that the limits allow the student's code. */
static status race(students *s, lab_test *t)
{
    double ratio[SPEED_ROUNDS];
    int n = 0;
    bool far = true;
    for (; n < SPEED_ROUNDS && !(far && n >= SPEED_FEW_ROUNDS); n++) {
        timed y = {0};
        int64_t reference;
        TRY(ring_reference_time(SPEED_RANKS, SPEED_COUNT, &reference));
        TRY(ring_relay_send_input(s, SPEED_COUNT));
        TRY(students_serve(s, on_timed_message, &y));
        if (!t->failed && y.wrong) test_fail(t, "not timed: the sums are wrong");
        if (t->failed) return STATUS_OK;
        ratio[n] = (double)y.ns / (double)reference;
        far = far && ratio[n] > 3;
    }
    t->ratio = median_of(ratio, n);
    snprintf(t->cost, sizeof t->cost, "%.2f x the reference's time (bound 1.50; bonus at 1.20)", t->ratio);
    if (t->ratio > 1.5)
        test_fail(t,
                  "%d ranks, %d elements: %.2f times the reference's time, expected at most 1.5: does a rank "
                  "add more than it must, or wait where it could send?",
                  SPEED_RANKS, SPEED_COUNT, t->ratio);
    else if (t->ratio <= 1.2)
        t->score = t->points + 2;
    return STATUS_OK;
}

static status build_fast(grader *g, lab_test *t)
{
    text_buffer printed = {0};
    status rc = grader_build(g, true, &printed);
    if (!g->compiles_fast) {
        test_fail(t, "not timed: %s does not compile without the sanitizers", g->lab->source);
        text_append(&t->details, "%s", printed.data ? printed.data : "");
    }
    text_free(&printed);
    return rc;
}

static status run_race(grader *g, lab_test *t)
{
    int shared;
    students *s;
    TRY(ring_reference_links(SPEED_RANKS, SPEED_COUNT, &shared));
    status rc = students_start_timed(g, t, SPEED_RANKS, SPEED_COUNT, shared, &s);
    close(shared);
    return rc == STATUS_OK ? race(s, t) : rc;
}

/* Binds this thread and its future children to the current processor. Returns false if the system does not
 * allow the binding. */
static bool stay_here(cpu_set_t *before)
{
    cpu_set_t here;
    int processor = sched_getcpu();
    if (processor < 0 || sched_getaffinity(0, sizeof *before, before) != 0) return false;
    CPU_ZERO(&here);
    CPU_SET(processor, &here);
    return sched_setaffinity(0, sizeof here, &here) == 0;
}

static status run_speed(grader *g, lab_test *t)
{
    cpu_set_t before;
    TRY(ring_relay_run(g, t, SPEED_RANKS, (int64_t[]){1009}, 1, NULL));
    if (t->failed) {
        students_end(g); /* Shows the output of the student's processes. */
        text_append(&t->details, "not timed: the sums are wrong\n");
        return STATUS_OK;
    }
    TRY(build_fast(g, t));
    if (t->failed) return STATUS_OK;
    /* All ranks share a processor, because messages between ranks on one processor take half as long. */
    bool bound = stay_here(&before);
    status rc = run_race(g, t);
    if (bound) sched_setaffinity(0, sizeof before, &before);
    return rc;
}

/* ---- questions ---- */

typedef struct ring_question {
    int size, chunk;
    float value[STUDENTS_MOST]; /* [size] value of each rank */
} ring_question;

static ring_question draw(uint64_t seed)
{
    uint64_t start = random_start(seed, random_fnv1a64("lab 3"));
    ring_question q = {.size = 4 + (int)random_below(start, 0, 3)};
    q.chunk = 1 + (int)random_below(start, 1, (uint64_t)q.size - 1);
    int large = (int)random_below(start, 2, (uint64_t)q.size);
    for (int r = 0; r < q.size; r++) q.value[r] = (float)(1 + (int)random_below(start, 10 + (uint64_t)r, 7));
    q.value[large] = 16777216.0f; /* 2^24, which does not change in float32 if 1 is added */
    q.value[(large + 2) % q.size] = -16777216.0f;
    return q;
}

/* Returns the sum of the values of all ranks in the order first, first + 1, ..., which wraps around. In the
 * handout's ring, chunk c starts at rank c and travels to the right: (((x_c + x_c+1) + x_c+2) + ...). */
static float sum_from(const ring_question *q, int first)
{
    volatile float sum = q->value[first];
    for (int k = 1; k < q->size; k++) sum += q->value[(first + k) % q->size];
    return sum;
}

void ring_ask(uint64_t seed, text_buffer *out)
{
    ring_question q = draw(seed);
    text_append(out,
                "# %d ranks sum one float each, all in chunk %d of the handout's ring (its sum starts at "
                "rank %d).\n# The values:",
                q.size, q.chunk, q.chunk);
    for (int r = 0; r < q.size; r++) text_append(out, "%s %.0f", r ? "," : "", (double)q.value[r]);
    text_append(out, " (of rank 0, 1, ...). 16777216 is 2^24.\n\n"
                     "# In which order are the ranks' values added? Write ranks, as in 3 1 0 2.\norder =\n"
                     "# The sum in that order, in float32.\nring_sum =\n"
                     "# The sum in rank order, as lab 2's server adds, in float32.\nrank_order_sum =\n"
                     "# With how many ranks at most are the bits of both always equal?\nequal_up_to =\n");
}

static status run_why(grader *g, lab_test *t)
{
    ring_question q = draw(g->seed);
    char order[64] = "", *end = order;
    for (int k = 0; k < q.size; k++) end += sprintf(end, "%s%d", k ? " " : "", (q.chunk + k) % q.size);
    const lab_answer answers[] = {
        {"ring_sum", sum_from(&q, q.chunk), 0, "round after every addition, in the order above"},
        {"rank_order_sum", sum_from(&q, 0), 0, "round after every addition, rank 0 first"},
        {"equal_up_to", 2, 0, "a + b = b + a holds in floating point; (a + b) + c = a + (b + c) does not"},
    };
    double each = t->points / 4;
    t->score = each * test_answer_text(g, t, "order", order, "follow one chunk through the chunk table");
    test_answers(g, t, each, answers, 3);
    return STATUS_OK;
}

const lab_part ring_parts[] = {
    {"two", "sums of 2 ranks", 10, false, run_two, 0},
    {"even", "sums of 1 to 8 ranks, equal chunks", 15, false, run_even, 0},
    {"uneven", "sums of 2 to 8 ranks, uneven chunks", 15, false, run_uneven, 0},
    {"large", "sums of 8 ranks, 1000003 elements", 10, false, run_large, 0},
    {"bytes", "bytes sent per rank", 10, false, run_traffic, BYTES},
    {"steps", "messages sent per rank", 10, false, run_traffic, MESSAGES},
    {"scratch", "memory besides the buffer", 5, false, run_scratch, 0},
    {"speed", "speed, 4 ranks, 2000003 elements", 10, false, run_speed, 0},
    {"why", "questions: the order of additions", 10, true, run_why, 0},
    {0},
};

/* Runs a line "RANKS ELEMENTS". */
status ring_hidden(grader *g, lab_test *t, const char *words)
{
    int size = 0;
    long long count = -1;
    if (sscanf(words, "%d %lld", &size, &count) != 2 || size < 1 || size > STUDENTS_MOST || count < 0 ||
        count > 4000000)
        return fail(STATUS_DATA,
                    "--hidden: expected POINTS RANKS ELEMENTS, ranks to 8, elements to 4000000, got '... %s'",
                    words);
    return ring_relay_run(g, t, size, (int64_t[]){count}, 1, NULL);
}
