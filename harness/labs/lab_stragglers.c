/* Lab 6: bounded staleness with a slow rank, and a restart from a checkpoint. */
#include "harness/labs/call.h"
#include "harness/labs/labs.h"
#include "harness/labs/stale_server.h"

#include "common/base/random.h"
#include "harness/report/report.h"
#include "labs/lab.h"
#include "labs/runner/stragglers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RULE_CASES = 300, INTERLEAVINGS = 1000, PER_PROCESS = 100, RESUMES = 6, WITHOUT_LIMIT = 1 << 30 };

/* ---- the rule ---- */

typedef struct rule {
    int64_t clock[STALE_MOST_RANKS], staleness;
    int ranks, rank, got;
} rule;

static void on_rule(void *context, students *s, int rank, runner_message m, const char *data)
{
    (void)rank;
    (void)data;
    ((rule *)context)->got = m.code;
    s->finished = true;
}

/* Rules that students write by mistake. */
enum { STRICT, ONE_MORE, OF_MEAN, OF_FASTEST, WRONG_RULES };
static const char *const wrong_rules[] = {
    ": a rank that is exactly `staleness` steps ahead may begin",
    ": a rank that is `staleness` + 1 steps ahead may not begin",
    ": the bound holds for the slowest rank, not for the mean of the clocks",
    ": compare with the slowest rank, not with the fastest",
};

static bool wrong_answer(const rule *r, int which)
{
    int64_t slowest = r->clock[0], fastest = r->clock[0], sum = 0, own = r->clock[r->rank];
    for (int k = 0; k < r->ranks; k++) {
        slowest = r->clock[k] < slowest ? r->clock[k] : slowest;
        fastest = r->clock[k] > fastest ? r->clock[k] : fastest;
        sum += r->clock[k];
    }
    return which == STRICT     ? own - slowest < r->staleness
           : which == ONE_MORE ? own - slowest <= r->staleness + 1
           : which == OF_MEAN  ? own - sum / r->ranks <= r->staleness
                               : own - fastest <= r->staleness;
}

static status ask_rule(students *s, rule *r)
{
    struct {
        stragglers_case head;
        int64_t clock[STALE_MOST_RANKS];
    } in = {.head = {.ranks = r->ranks, .rank = r->rank, .staleness = r->staleness}};
    memcpy(in.clock, r->clock, sizeof in.clock);
    students_send(s, 0,
                  (runner_message){RUNNER_CASE, STRAGGLERS_MAY_BEGIN, 0,
                                   (int64_t)(sizeof in.head + (size_t)r->ranks * sizeof r->clock[0])},
                  &in);
    return students_serve(s, on_rule, r);
}

static status open_server(grader *g, students *s)
{
    char words[1][64] = {""};
    return students_start(g, false, 1, words, -1, s);
}

static void close_server(students *s, lab_test *t)
{
    if (t->failed) students_printed(s, t);
    students_end(s);
}

static void fail_rule(lab_test *t, const rule *r, const bool fits[WRONG_RULES])
{
    char clocks[96];
    const char *why = "";
    for (int w = WRONG_RULES - 1; w >= 0; w--) why = fits[w] ? wrong_rules[w] : why;
    stale_clocks(r->clock, r->ranks, clocks);
    if (r->got == LAB_EMISSING)
        test_fail(t, "student_may_begin() has not been written yet: it returned LAB_EMISSING");
    else
        test_fail(t, "clocks %s, staleness %lld, rank %d: got %d, expected %d%s", clocks,
                  (long long)r->staleness, r->rank, r->got, !r->got, why);
}

/* Checks all cases, so that the message can name the rule that gives the student's answers. */
static status run_rule(grader *g, lab_test *t)
{
    uint64_t start = random_start(g->seed, random_fnv1a64("lab 6 rule"));
    students s = {0};
    rule first = {0};
    bool wrong = false, fits[WRONG_RULES] = {true, true, true, true};
    status rc = open_server(g, &s);
    for (int k = 0; k < RULE_CASES && rc == STATUS_OK && !s.failure[0]; k++) {
        rule r = {.ranks = k < 10 ? 2 : 1 + k % STALE_MOST_RANKS, .staleness = k % 4};
        for (int i = 0; i < r.ranks; i++) r.clock[i] = (int64_t)random_below(start, (uint64_t)(k * 8 + i), 6);
        r.rank = (int)random_below(start, (uint64_t)(k * 8 + 7), (uint64_t)r.ranks);
        rc = ask_rule(&s, &r);
        for (int w = 0; w < WRONG_RULES; w++) fits[w] = fits[w] && r.got == wrong_answer(&r, w);
        if (!wrong && r.got != stale_may_begin(r.clock, r.ranks, r.rank, r.staleness)) {
            first = r;
            wrong = true;
        }
    }
    if (s.failure[0])
        test_fail(t, "%s", s.failure);
    else if (wrong)
        fail_rule(t, &first, fits);
    close_server(&s, t);
    return rc;
}

/* ---- interleavings ---- */

/* Draws the slow rank and its factor, the bound and the times of a run with few parameters. */
static void draw_run(stale_run *y, uint64_t seed, uint64_t index, lab_test *t)
{
    static const int64_t bounds[] = {1, 0, 2, 3, WITHOUT_LIMIT};
    memset(y, 0, sizeof *y);
    y->t = t;
    y->start = random_start(seed + index, random_fnv1a64("lab 6"));
    y->ranks = 2 + (int)(index % (STALE_MOST_RANKS - 1));
    y->staleness = bounds[index / (STALE_MOST_RANKS - 1) % 5];
    y->slow_rank = (int)random_below(y->start, 0, (uint64_t)y->ranks);
    y->slow = 1 + (double)random_below(y->start, 1, 5);
    y->n = 3;
    y->most = 16;
    y->lr = 0.125f;
    y->momentum = index % 3 == 0 ? 0 : 0.9f;
    y->save_at = y->kill_at = -1;
}

static status run_schedule(grader *g, lab_test *t)
{
    stale_run *y = calloc(1, sizeof *y);
    status rc = y ? STATUS_OK : fail(STATUS_SYSTEM, "lab: no memory for the ranks");
    int done = 0;
    while (rc == STATUS_OK && done < INTERLEAVINGS && !t->failed) {
        students s = {0};
        rc = open_server(g, &s);
        for (int k = 0; k < PER_PROCESS && rc == STATUS_OK && !t->failed; k++, done++) {
            draw_run(y, g->seed, (uint64_t)done, t);
            rc = stale_serve(&s, y);
        }
        close_server(&s, t);
    }
    snprintf(t->cost, sizeof t->cost, "%d interleavings", t->failed ? done - 1 : done);
    free(y);
    return rc;
}

/* ---- restart ---- */

/* Serves until the server is killed, then from the checkpoint in a new process. */
static status serve_and_resume(grader *g, stale_run *y)
{
    students s = {0};
    status rc = open_server(g, &s);
    if (rc == STATUS_OK) rc = stale_serve(&s, y);
    close_server(&s, y->t);
    if (rc != STATUS_OK || y->t->failed || y->kill_at < 0) return rc;
    s = (students){0};
    rc = open_server(g, &s);
    if (rc == STATUS_OK) rc = stale_resume(&s, y);
    close_server(&s, y->t);
    return rc;
}

/* Checks that a run on Wine without staleness, saved between two steps, ends as if it had not been killed. */
static status resume_wine(grader *g, stale_run *y, lab_test *t)
{
    static float uninterrupted[STALE_MOST];
    uint64_t start = random_start(g->seed, random_fnv1a64("lab 6 resume"));
    status rc = STATUS_OK;
    for (int run = 0; run < 2 && rc == STATUS_OK && !t->failed; run++) {
        draw_run(y, g->seed, 0, t);
        y->ranks = 3;
        y->staleness = 0;
        y->n = LAB_RANKS_ELEMENTS;
        y->lr = 0.02f;
        y->momentum = 0.9f;
        y->most = 60;
        if (run == 1) y->save_at = 3 * (3 + (int64_t)random_below(start, 0, 6));
        if (run == 1) y->kill_at = y->save_at + 2 + (int64_t)random_below(start, 1, 20);
        rc = lab_ranks_open(y->ranks, g->seed, y->now.param, &y->wine);
        if (rc == STATUS_OK) rc = serve_and_resume(g, y);
        lab_ranks_close(&y->wine);
        if (run == 0) memcpy(uninterrupted, y->now.param, sizeof uninterrupted);
    }
    if (rc == STATUS_OK && !t->failed && memcmp(uninterrupted, y->now.param, sizeof uninterrupted) != 0)
        test_fail(t, "the resumed run ends with other parameters than the run that was never killed");
    snprintf(t->cost, sizeof t->cost, "killed after push %lld, resumed from push %lld, %lld bytes",
             (long long)y->kill_at, (long long)y->save_at, (long long)y->byte_count);
    free(y->bytes);
    return rc;
}

static status run_resume(grader *g, lab_test *t)
{
    stale_run *y = calloc(1, sizeof *y);
    status rc = y ? STATUS_OK : fail(STATUS_SYSTEM, "lab: no memory for the ranks");
    for (uint64_t k = 0; k < RESUMES && rc == STATUS_OK && !t->failed; k++) {
        draw_run(y, g->seed, 7000 + k, t);
        y->momentum = 0.9f;
        y->staleness = 1 + (int64_t)(k % 3);
        y->slow = 4;
        y->save_at = 5 + (int64_t)k;
        y->kill_at = y->save_at + 4;
        rc = serve_and_resume(g, y);
        free(y->bytes);
    }
    if (rc == STATUS_OK && !t->failed) rc = resume_wine(g, y, t);
    free(y);
    return rc;
}

/* ---- training ---- */

static status run_train(grader *g, lab_test *t)
{
    static const int64_t bounds[] = {0, 3, WITHOUT_LIMIT};
    static const char *const names[] = {"sync", "ssp 3", "async"};
    stale_run *y = calloc(1, sizeof *y);
    status rc = y ? STATUS_OK : fail(STATUS_SYSTEM, "lab: no memory for the ranks");
    size_t used = (size_t)snprintf(t->cost, sizeof t->cost, "to loss 0.3 on Wine:");
    for (int k = 0; k < 3 && rc == STATUS_OK && !t->failed; k++) {
        students s = {0};
        draw_run(y, g->seed, 2, t);
        y->ranks = 4;
        y->slow_rank = 3;
        y->slow = 4;
        y->staleness = bounds[k];
        y->n = LAB_RANKS_ELEMENTS;
        y->lr = 0.05f;
        y->momentum = 0;
        y->most = 240;
        y->loss_limit = 0.3;
        rc = lab_ranks_open(y->ranks, g->seed, y->now.param, &y->wine);
        if (rc == STATUS_OK) rc = open_server(g, &s);
        if (rc == STATUS_OK) rc = stale_serve(&s, y);
        close_server(&s, t);
        lab_ranks_close(&y->wine);
        used += (size_t)snprintf(t->cost + used, sizeof t->cost - used, " %s %.1f%s", names[k], y->reached_s,
                                 k < 2 ? "," : " mean steps");
    }
    free(y);
    return rc;
}

/* ---- questions ---- */

typedef struct stragglers_question {
    char gpus[8], slow[16];
    int staleness, slow_steps, pause_ms, step_ms;
} stragglers_question;

static stragglers_question draw(uint64_t seed)
{
    uint64_t start = random_start(seed, random_fnv1a64("lab 6 questions"));
    stragglers_question q = {.staleness = 2 + (int)random_below(start, 2, 8),
                             .step_ms = 10 * (3 + (int)random_below(start, 3, 10))};
    int gpus = 3 + (int)random_below(start, 0, 5);
    snprintf(q.gpus, sizeof q.gpus, "%d", gpus);
    snprintf(q.slow, sizeof q.slow, "%d:1.%d", gpus - 1, 4 + (int)random_below(start, 1, 6));
    q.slow_steps = q.staleness + 4 + (int)random_below(start, 4, 20);
    q.pause_ms = q.step_ms * (2 + (int)random_below(start, 5, 9)) + q.step_ms / 2;
    return q;
}

static void ask(uint64_t seed, text_buffer *out)
{
    stragglers_question q = draw(seed);
    text_append(
        out,
        "# Samples per second of all ranks, with a slow rank, under the three rules (the policies "
        "sync, ssp and async):\n"
        "# harness run --device sim:dgx1-v100 --mode ps --gpus %s --slow %s --model resnet50 --batch 32 "
        "--data synthetic --steps 20 --policy sync\n"
        "sync_samples_per_s =\nssp_samples_per_s =\nasync_samples_per_s =\n",
        q.gpus, q.slow);
    text_append(out,
                "# Staleness %d; one rank needs as long for a step as the others for %d. How many steps has "
                "a fast rank pushed when "
                "it has to wait for the first time?\nsteps_before_wait =\n"
                "# All ranks need %d ms for a step; then one rank pauses once, for %d ms. The smallest "
                "staleness with which no other "
                "rank waits.\nsmallest_staleness =\n",
                q.staleness, q.slow_steps, q.step_ms, q.pause_ms);
}

static status samples_per_s(const stragglers_question *q, const char *policy, double *out)
{
    const char *words[] = {"run",    "--device", "sim:dgx1-v100", "--mode",  "ps",      "--policy", policy,
                           "--gpus", q->gpus,    "--slow",        q->slow,   "--model", "resnet50", "--batch",
                           "32",     "--data",   "synthetic",     "--steps", "20",      "--json",   "-",
                           NULL};
    json_t *result;
    TRY(program_json(words, &result));
    *out = report_number_at(result, "jobs.0.throughput.samples_per_s");
    json_decref(result);
    return STATUS_OK;
}

static status run_why(grader *g, lab_test *t)
{
    static const char *const policies[] = {"sync", "ssp", "async"};
    stragglers_question q = draw(g->seed);
    double score = 0, each = t->points / 5;
    for (int k = 0; k < 3; k++) {
        char key[32];
        double expected;
        snprintf(key, sizeof key, "%s_samples_per_s", policies[k]);
        TRY(samples_per_s(&q, policies[k], &expected));
        score += each * test_answer_number(g, t, key, expected, 0.02, "run the command with this policy");
    }
    score += each * test_answer_number(g, t, "steps_before_wait", q.staleness + 1, 0,
                                       "which step may it begin while the slow rank has pushed none?");
    score +=
        each * test_answer_number(g, t, "smallest_staleness", q.pause_ms / q.step_ms + 1, 0,
                                  "count the steps that another rank begins until the paused rank pushes");
    t->score = score;
    return STATUS_OK;
}

static const lab_part parts[] = {
    {"rule", "the rule, drawn clocks", 15, false, run_rule},
    {"schedule", "1000 interleavings", 25, false, run_schedule},
    {"resume", "killed, and restarted from a checkpoint", 25, false, run_resume},
    {"train", "Wine with a slow rank", 10, false, run_train},
    {"why", "questions: a slow rank", 20, true, run_why},
};

const lab stragglers_lab = {.number = 6,
                            .name = "stragglers",
                            .title = "stragglers",
                            .hours = "2 to 3",
                            .source = "stale.c",
                            .function = "student_serve_stale",
                            .runner = "stragglers",
                            .parts = parts,
                            .part_count = sizeof parts / sizeof parts[0],
                            .questions = ask};
