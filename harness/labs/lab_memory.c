/* Lab 7: memory per rank, compared with the ledgers of runs in virtual time, and the sharded optimizer
 * step. */
#include "harness/labs/labs.h"
#include "harness/labs/shard_step.h"

#include "common/base/random.h"
#include "harness/report/report.h"
#include "labs/lab.h"

#include <stdio.h>
#include <stdlib.h>

enum { CLASSES = sizeof(lab_memory) / sizeof(int64_t), CASES = 4, HIDDEN = 64, POSITIONS = 1024, STEPS = 30 };

/* Names of lab_memory's fields, in their order. */
static const char *const class_names[CLASSES] = {"parameters",      "replicas",       "gradients",
                                                 "optimizer_state", "gathered_units", "buckets"};
static const char *const policies[] = {"dp", "ddp", "zero1", "zero2", "zero3"};

/* ---- memory ---- */

typedef struct peaks {
    int root, unit, units, states, scheme, ranks, vocabulary;
    int64_t got[CLASSES];
} peaks;

/* Draws a small GPT. A block has 12 matrices of hidden x hidden and 13 vectors. The root has the embedding
 * tables of tokens and positions, and the last layer norm. */
static peaks draw_model(uint64_t start, int scheme, int k)
{
    uint64_t draw = (uint64_t)(10 * (10 * scheme + k));
    int vocabulary = 256 + (int)random_below(start, draw, 700);
    return (peaks){.root = HIDDEN * (vocabulary + POSITIONS + 2),
                   .unit = 12 * HIDDEN * HIDDEN + 13 * HIDDEN,
                   .units = 1 + (int)random_below(start, draw + 1, 5),
                   .states = k % 3 == 0 ? 2 : k % 3 - 1,
                   .scheme = scheme,
                   .ranks = 2 + (int)random_below(start, draw + 2, 5),
                   .vocabulary = vocabulary};
}

static const char *explain(const peaks *p, int c, int64_t want)
{
    int64_t got = p->got[c], whole = 4 * (p->root + p->units * p->unit);
    int64_t copies = c == 3 && p->states > 0 ? p->states : 1;
    if (got == -1) return ": it has not been set";
    if (4 * got == want) return ": these are elements, not bytes";
    if (want == 0) return ": this rank holds nothing of this class at any time";
    if (got == 0) return ": this rank does hold some of this class";
    if (want == copies * whole && got < want && c < 4 && p->scheme != LAB_DATA_PARALLEL)
        return ": this class is not cut under this scheme";
    if (got == copies * whole && want < got && (c == 4 || c == 5))
        return ": at most the root and two blocks are whole at a time";
    if (got == copies * whole && want < got) return ": this class is cut among the ranks";
    if (got == 2 * want || 2 * got == want) return got > want ? ": twice as much" : ": half as much";
    if (llabs(got - want) < copies * whole / 100)
        return ": near; root and blocks are cut one by one, into shards of a multiple of 16 elements, of "
               "which the last rank's may be shorter";
    if ((c == 4 || c == 5) && got < want) return ": more is whole at the same time: the root, and two blocks";
    return "";
}

static status check_rank(students *s, peaks *p, int rank, const json_t *classes)
{
    const double in[] = {p->root, p->unit, p->units, p->states, p->scheme, p->ranks, rank};
    lab_test *t = s->t;
    TRY(students_call_unchecked(s, MEMORY_PEAKS, in, 7));
    int code = (int)s->result[0];
    if (t->failed) return STATUS_OK;
    if (code == LAB_EMISSING)
        test_fail(t, "student_memory() has not been written yet: it returned LAB_EMISSING");
    else if (code != LAB_OK)
        test_fail(t, "student_memory() returned %d", code);
    for (int c = 0; c < CLASSES; c++) p->got[c] = (int64_t)s->result[1 + c];
    for (int c = 0; c < CLASSES && !t->failed; c++) {
        char key[64];
        snprintf(key, sizeof key, "%s.peak_bytes", class_names[c]);
        int64_t want = (int64_t)report_number_at(classes, key);
        if (p->got[c] != want)
            test_fail(t,
                      "%s, %d ranks, rank %d, a root of %d elements and %d blocks of %d, %d states: "
                      "%s: got %lld bytes, expected %lld%s",
                      policies[p->scheme], p->ranks, rank, p->root, p->units, p->unit, p->states,
                      class_names[c], (long long)p->got[c], (long long)want, explain(p, c, want));
    }
    return STATUS_OK;
}

static status check_model(students *s, peaks *p)
{
    json_t *result;
    TRY(program_json(&result, NULL,
                     "run --device sim:v100-pcie-32g --mode %s --policy %s --gpus %d --model gpt --layers %d "
                     "--hidden 64 --heads 4 --vocabulary %d --sequence 32 --batch 2 --optimizer %s --data "
                     "synthetic --eval-every -1 --warmup 1 --steps 2%s",
                     p->scheme == LAB_DATA_PARALLEL ? "ps" : "ring", policies[p->scheme], p->ranks, p->units,
                     p->vocabulary, p->states == 2 ? "adam" : "sgd",
                     p->states == 1 ? " --momentum 0.9" : ""));
    status rc = STATUS_OK;
    for (int r = 0; r < p->ranks && rc == STATUS_OK && !s->t->failed; r++) {
        char path[64];
        snprintf(path, sizeof path, "jobs.0.ranks.%d.memory.classes", r);
        rc = check_rank(s, p, r, report_at(result, path));
    }
    json_decref(result);
    return rc;
}

static status run_memory(grader *g, lab_test *t)
{
    uint64_t start = random_start(g->seed, random_fnv1a64("lab 7"));
    students *s;
    TRY(students_start(g, t, 1, &s));
    for (int k = 0; k < CASES && !t->failed; k++) {
        peaks p = draw_model(start, t->variant, k);
        TRY(check_model(s, &p));
    }
    if (!t->failed) snprintf(t->cost, sizeof t->cost, "%d ledgers, to the byte", CASES);
    return STATUS_OK;
}

/* ---- the sharded step ---- */

static status run_step(grader *g, lab_test *t)
{
    static const struct {
        int ranks;
        int64_t n;
    } sizes[] = {{1, 5}, {2, 8}, {2, 7}, {3, 9}, {3, 100}, {4, 5}, {6, 4}, {5, 1001}};
    uint64_t start = random_start(g->seed, random_fnv1a64("lab 7 step"));
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0] && !t->failed; k++) {
        students *s;
        shard_run y = {.t = t, .ranks = sizes[k].ranks, .n = sizes[k].n};
        for (int64_t i = 0; i < y.n; i++) y.param[i] = (float)random_signed(start, (uint64_t)i);
        TRY(students_start(g, t, y.ranks, &s));
        while (!t->failed && y.step < 4) {
            for (int64_t i = 0; i < y.ranks * y.n; i++)
                y.grad[i / y.n][i % y.n] =
                    (float)random_signed(start, 10000 * (uint64_t)(y.step + 1) + (uint64_t)i);
            TRY(shard_step(s, &y));
        }
        int64_t shard = 4 * ((y.n + y.ranks - 1) / y.ranks);
        if (!t->failed && y.most_bytes > shard + 64)
            test_fail(t,
                      "%d ranks, %lld elements: %lld bytes allocated, expected at most one shard, %lld bytes",
                      y.ranks, (long long)y.n, (long long)y.most_bytes, (long long)shard);
    }
    return STATUS_OK;
}

static status run_train(grader *g, lab_test *t)
{
    shard_run y = {.t = t, .ranks = 3, .n = LAB_RANKS_ELEMENTS};
    students *s;
    double loss = 0;
    TRY(lab_ranks_open(g, y.ranks, y.param));
    TRY(students_start(g, t, y.ranks, &s));
    while (!t->failed && y.step < STEPS) {
        TRY(lab_ranks_compute_all(g, y.step, y.param, y.grad, &loss));
        TRY(shard_step(s, &y));
    }
    snprintf(t->cost, sizeof t->cost, "loss %.4f after %lld steps on Wine", loss, (long long)y.step);
    return STATUS_OK;
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

void memory_ask(uint64_t seed, text_buffer *out)
{
    memory_question q = draw(seed);
    text_append(
        out,
        "# A model of %d million parameters in float32, trained with Adam on %d ranks. Only parameters, "
        "gradients and optimizer state, in GiB per rank.\nddp_gib =\nzero1_gib =\nzero3_gib =\n"
        "# The least number of ranks with which these fit into %d GiB under ZeRO-3.\nleast_ranks =\n"
        "# How many times as much as DDP does ZeRO-3 send per step?\nsent_ratio =\n",
        q.millions, q.ranks, q.gib);
}

static status run_why(grader *g, lab_test *t)
{
    memory_question q = draw(g->seed);
    double gib = q.millions * 1e6 / 0x1p30, n = q.ranks;
    int least = 1;
    while (16 * gib / least > q.gib) least++;
    const lab_answer answers[] = {
        {"ddp_gib", 16 * gib, 5e-3, "4 + 4 + 8 bytes per parameter"},
        {"zero1_gib", (8 + 8 / n) * gib, 5e-3, "only the optimizer's state is cut"},
        {"zero3_gib", 16 / n * gib, 5e-3, "everything is cut"},
        {"least_ranks", least, 0, "divide, and round up"},
        {"sent_ratio", 1.5, 1e-3,
         "count reduce-scatters and all-gathers of all parameters: how many has each?"},
    };
    test_answers(g, t, t->points / 5, answers, 5);
    return STATUS_OK;
}

const lab_part memory_parts[] = {
    {"dp", "memory under DataParallel", 10, false, run_memory, LAB_DATA_PARALLEL},
    {"ddp", "memory under DDP", 10, false, run_memory, LAB_DDP},
    {"zero1", "memory under ZeRO-1", 10, false, run_memory, LAB_ZERO1},
    {"zero2", "memory under ZeRO-2", 10, false, run_memory, LAB_ZERO2},
    {"zero3", "memory under ZeRO-3", 15, false, run_memory, LAB_ZERO3},
    {"step", "the sharded step, drawn gradients", 15, false, run_step, 0},
    {"train", "a perceptron on Wine", 10, false, run_train, 0},
    {"why", "questions: what fits", 15, true, run_why, 0},
    {0},
};
