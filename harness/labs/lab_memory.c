/* Lab 7: memory per rank, compared with the ledgers of runs in virtual time, and the sharded optimizer
 * step. */
#include "harness/labs/call.h"
#include "harness/labs/labs.h"
#include "harness/labs/shard_step.h"

#include "common/base/random.h"
#include "harness/report/report.h"
#include "labs/lab.h"
#include "labs/runner/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES = sizeof(lab_memory) / sizeof(int64_t), CASES = 4, HIDDEN = 64, POSITIONS = 1024, STEPS = 30 };

/* Names of lab_memory's fields, in their order. */
static const char *const class_names[CLASSES] = {"parameters",      "replicas",       "gradients",
                                                 "optimizer_state", "gathered_units", "buckets"};
static const char *const policies[] = {"dp", "ddp", "zero1", "zero2", "zero3"};

/* ---- memory ---- */

typedef struct peaks {
    memory_peaks_case in;
    int vocabulary, code;
    int64_t got[CLASSES];
} peaks;

static void on_peaks(void *context, students *s, int rank, runner_message m, const char *data)
{
    peaks *p = context;
    (void)rank;
    s->finished = true;
    p->code = m.code;
    if (m.bytes == (int64_t)sizeof p->got) memcpy(p->got, data, sizeof p->got);
}

/* Draws a small GPT. A block has 12 matrices of hidden x hidden and 13 vectors. The root has the tables of
 * tokens and positions and the last layer norm. */
static peaks draw_model(uint64_t start, int scheme, int k)
{
    uint64_t draw = (uint64_t)(10 * (10 * scheme + k));
    peaks p = {.vocabulary = 256 + (int)random_below(start, draw, 700)};
    p.in = (memory_peaks_case){.root = HIDDEN * (p.vocabulary + POSITIONS + 2),
                               .unit = 12 * HIDDEN * HIDDEN + 13 * HIDDEN,
                               .units = 1 + (int64_t)random_below(start, draw + 1, 5),
                               .states = k % 3 == 0 ? 2 : k % 3 - 1,
                               .scheme = scheme,
                               .ranks = 2 + (int64_t)random_below(start, draw + 2, 5)};
    return p;
}

static status run_model(const peaks *p, json_t **out)
{
    char gpus[16], layers[16], vocabulary[16];
    snprintf(gpus, sizeof gpus, "%d", (int)p->in.ranks);
    snprintf(layers, sizeof layers, "%d", (int)p->in.units);
    snprintf(vocabulary, sizeof vocabulary, "%d", p->vocabulary);
    const char *words[] = {"run",
                           "--device",
                           "sim:v100-pcie-32g",
                           "--mode",
                           p->in.scheme == LAB_DATA_PARALLEL ? "ps" : "ring",
                           "--policy",
                           policies[p->in.scheme],
                           "--gpus",
                           gpus,
                           "--model",
                           "gpt",
                           "--layers",
                           layers,
                           "--hidden",
                           "64",
                           "--heads",
                           "4",
                           "--vocabulary",
                           vocabulary,
                           "--sequence",
                           "32",
                           "--batch",
                           "2",
                           "--optimizer",
                           p->in.states == 2 ? "adam" : "sgd",
                           "--data",
                           "synthetic",
                           "--eval-every",
                           "-1",
                           "--warmup",
                           "1",
                           "--steps",
                           "2",
                           "--json",
                           "-",
                           p->in.states == 1 ? "--momentum" : NULL,
                           "0.9",
                           NULL};
    return program_json(words, out);
}

static const char *explain(const peaks *p, int c, int64_t want)
{
    int64_t got = p->got[c], whole = 4 * (p->in.root + p->in.units * p->in.unit);
    int64_t copies = c == 3 && p->in.states > 0 ? p->in.states : 1;
    if (got == -1) return ": it has not been set";
    if (4 * got == want) return ": these are elements, not bytes";
    if (want == 0) return ": this rank holds nothing of this class at any time";
    if (got == 0) return ": this rank does hold some of this class";
    if (want == copies * whole && got < want && c < 4 && p->in.scheme != LAB_DATA_PARALLEL)
        return ": this class is not cut under this scheme";
    if (got == copies * whole && want < got && (c == 4 || c == 5))
        return ": at most the root and two blocks are whole at a time";
    if (got == copies * whole && want < got) return ": this class is cut among the ranks";
    if (got == 2 * want || 2 * got == want) return got > want ? ": twice as much" : ": half as much";
    if (llabs(got - want) < copies * whole / 100)
        return ": near; root and blocks are cut one by one, into shards of a multiple of 16 elements, of "
               "which the last rank's "
               "may be shorter";
    if ((c == 4 || c == 5) && got < want) return ": more is whole at the same time: the root, and two blocks";
    return "";
}

static status check_model(students *s, peaks *p, lab_test *t)
{
    json_t *result;
    TRY(run_model(p, &result));
    json_t *ranks = json_object_get(json_array_get(json_object_get(result, "jobs"), 0), "ranks");
    status rc = STATUS_OK;
    for (int r = 0; r < p->in.ranks && rc == STATUS_OK && !t->failed; r++) {
        p->in.rank = r;
        students_send(s, 0, (runner_message){RUNNER_CASE, MEMORY_PEAKS, 0, (int64_t)sizeof p->in}, &p->in);
        rc = students_serve(s, on_peaks, p);
        if (s->failure[0])
            test_fail(t, "%s", s->failure);
        else if (p->code == LAB_EMISSING)
            test_fail(t, "student_memory() has not been written yet: it returned LAB_EMISSING");
        else if (p->code != LAB_OK)
            test_fail(t, "student_memory() returned %d", p->code);
        for (int c = 0; c < CLASSES && !t->failed; c++) {
            char key[64];
            snprintf(key, sizeof key, "memory.classes.%s.peak_bytes", class_names[c]);
            int64_t want = (int64_t)report_number_at(json_array_get(ranks, (size_t)r), key);
            if (p->got[c] != want)
                test_fail(t,
                          "%s, %d ranks, rank %d, a root of %lld elements and %d blocks of %lld, %d states: "
                          "%s: got %lld bytes, "
                          "expected %lld%s",
                          policies[p->in.scheme], (int)p->in.ranks, r, (long long)p->in.root,
                          (int)p->in.units, (long long)p->in.unit, (int)p->in.states, class_names[c],
                          (long long)p->got[c], (long long)want, explain(p, c, want));
        }
    }
    json_decref(result);
    return rc;
}

static status check_scheme(grader *g, lab_test *t, int scheme)
{
    uint64_t start = random_start(g->seed, random_fnv1a64("lab 7"));
    students s = {0};
    status rc = shard_ranks_open(g, 1, &s);
    for (int k = 0; k < CASES && rc == STATUS_OK && !t->failed; k++) {
        peaks p = draw_model(start, scheme, k);
        rc = check_model(&s, &p, t);
    }
    if (!t->failed) snprintf(t->cost, sizeof t->cost, "%d ledgers, to the byte", CASES);
    if (t->failed) students_printed(&s, t);
    students_end(&s);
    return rc;
}

static status run_dp(grader *g, lab_test *t)
{
    return check_scheme(g, t, LAB_DATA_PARALLEL);
}

static status run_ddp(grader *g, lab_test *t)
{
    return check_scheme(g, t, LAB_DDP);
}

static status run_zero1(grader *g, lab_test *t)
{
    return check_scheme(g, t, LAB_ZERO1);
}

static status run_zero2(grader *g, lab_test *t)
{
    return check_scheme(g, t, LAB_ZERO2);
}

static status run_zero3(grader *g, lab_test *t)
{
    return check_scheme(g, t, LAB_ZERO3);
}

/* ---- the sharded step ---- */

static void check_scratch(const shard_run *y, lab_test *t)
{
    int64_t shard = 4 * ((y->n + y->ranks - 1) / y->ranks);
    if (!t->failed && y->most_bytes > shard + 64)
        test_fail(t, "%d ranks, %lld elements: %lld bytes allocated, expected at most one shard, %lld bytes",
                  y->ranks, (long long)y->n, (long long)y->most_bytes, (long long)shard);
}

static status run_step(grader *g, lab_test *t)
{
    static const struct {
        int ranks;
        int64_t n;
    } sizes[] = {{1, 5}, {2, 8}, {2, 7}, {3, 9}, {3, 100}, {4, 5}, {6, 4}, {5, 1001}};
    uint64_t start = random_start(g->seed, random_fnv1a64("lab 7 step"));
    shard_run *y = calloc(1, sizeof *y);
    status rc = y ? STATUS_OK : fail(STATUS_SYSTEM, "lab: no memory for the ranks");
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0] && rc == STATUS_OK && !t->failed; k++) {
        students s = {0};
        memset(y, 0, sizeof *y);
        y->t = t;
        y->ranks = sizes[k].ranks;
        y->n = sizes[k].n;
        for (int64_t i = 0; i < y->n; i++) y->param[i] = (float)random_signed(start, (uint64_t)i);
        rc = shard_ranks_open(g, y->ranks, &s);
        while (rc == STATUS_OK && !t->failed && y->step < 4) {
            for (int64_t i = 0; i < y->ranks * y->n; i++)
                y->grad[i / y->n][i % y->n] =
                    (float)random_signed(start, 10000 * (uint64_t)(y->step + 1) + (uint64_t)i);
            rc = shard_step(&s, y);
        }
        check_scratch(y, t);
        if (t->failed) students_printed(&s, t);
        students_end(&s);
    }
    free(y);
    return rc;
}

static status run_train(grader *g, lab_test *t)
{
    shard_run *y = calloc(1, sizeof *y);
    lab_ranks *ranks = NULL;
    students s = {0};
    double loss = 0;
    status rc = y ? lab_ranks_open(3, g->seed, y->param, &ranks)
                  : fail(STATUS_SYSTEM, "lab: no memory for the ranks");
    if (rc == STATUS_OK) rc = shard_ranks_open(g, 3, &s);
    if (rc == STATUS_OK) {
        y->t = t;
        y->ranks = 3;
        y->n = LAB_RANKS_ELEMENTS;
    }
    while (rc == STATUS_OK && !t->failed && y->step < STEPS) {
        loss = 0;
        for (int r = 0; r < y->ranks && rc == STATUS_OK; r++) {
            double own;
            rc = lab_ranks_compute(ranks, r, y->step, LAB_RANKS_BATCH, y->param, y->grad[r], &own);
            loss += own / y->ranks;
        }
        if (rc == STATUS_OK) rc = shard_step(&s, y);
    }
    if (rc == STATUS_OK)
        snprintf(t->cost, sizeof t->cost, "loss %.4f after %lld steps on Wine", loss, (long long)y->step);
    if (t->failed) students_printed(&s, t);
    students_end(&s);
    lab_ranks_close(&ranks);
    free(y);
    return rc;
}

/* ---- questions ---- */

typedef struct memory_question {
    int millions, ranks, gib;
} memory_question;

static memory_question draw(uint64_t seed)
{
    uint64_t start = random_start(seed, random_fnv1a64("lab 7 questions"));
    return (memory_question){.millions = 100 * (3 + (int)random_below(start, 0, 97)),
                             .ranks = 4 + (int)random_below(start, 1, 29),
                             .gib = 8 * (1 + (int)random_below(start, 2, 3))};
}

static void ask(uint64_t seed, text_buffer *out)
{
    memory_question q = draw(seed);
    text_append(out,
                "# A model of %d million parameters in float32, trained with Adam on %d ranks. Only "
                "parameters, gradients and "
                "optimizer state, in GiB per rank.\nddp_gib =\nzero1_gib =\nzero3_gib =\n"
                "# The least number of ranks with which these fit into %d GiB under ZeRO-3.\nleast_ranks =\n"
                "# How many times as much as DDP does ZeRO-3 send per step?\nsent_ratio =\n",
                q.millions, q.ranks, q.gib);
}

static status run_why(grader *g, lab_test *t)
{
    memory_question q = draw(g->seed);
    double gib = q.millions * 1e6 / 0x1p30, n = q.ranks, score = 0, each = t->points / 5;
    int least = 1;
    while (16 * gib / least > q.gib) least++;
    score += each * test_answer_number(g, t, "ddp_gib", 16 * gib, 5e-3, "4 + 4 + 8 bytes per parameter");
    score += each * test_answer_number(g, t, "zero1_gib", (8 + 8 / n) * gib, 5e-3,
                                       "only the optimizer's state is cut");
    score += each * test_answer_number(g, t, "zero3_gib", 16 / n * gib, 5e-3, "everything is cut");
    score += each * test_answer_number(g, t, "least_ranks", least, 0, "divide, and round up");
    score += each * test_answer_number(
                        g, t, "sent_ratio", 1.5, 1e-3,
                        "count reduce-scatters and all-gathers of all parameters: how many has each?");
    t->score = score;
    return STATUS_OK;
}

static const lab_part parts[] = {
    {"dp", "memory under DataParallel", 10, false, run_dp},
    {"ddp", "memory under DDP", 10, false, run_ddp},
    {"zero1", "memory under ZeRO-1", 10, false, run_zero1},
    {"zero2", "memory under ZeRO-2", 10, false, run_zero2},
    {"zero3", "memory under ZeRO-3", 15, false, run_zero3},
    {"step", "the sharded step, drawn gradients", 15, false, run_step},
    {"train", "a perceptron on Wine", 10, false, run_train},
    {"why", "questions: what fits", 15, true, run_why},
};

const lab memory_lab = {.number = 7,
                        .name = "memory",
                        .title = "memory and sharded state",
                        .hours = "2 to 3",
                        .source = "memory.c",
                        .function = "student_sharded_step",
                        .runner = "memory",
                        .parts = parts,
                        .part_count = sizeof parts / sizeof parts[0],
                        .questions = ask};
