/* Lab 6: bounded staleness with a slow rank, and a restart from a checkpoint. */
#include "harness/labs/labs.h"
#include "harness/labs/stale_server.h"

#include "common/base/random.h"
#include "harness/report/report.h"
#include "labs/lab.h"

#include <stdio.h>
#include <string.h>

enum { RULE_CASES = 300, INTERLEAVINGS = 1000, PER_PROCESS = 100, RESUMES = 6, WITHOUT_LIMIT = 1 << 30 };

/* ---- the rule ---- */

typedef struct rule {
    int64_t clock[STALE_MOST_RANKS], staleness;
    int ranks, rank, got;
} rule;

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

static void fail_rule(lab_test *t, const rule *r, const bool fits[WRONG_RULES])
{
    char where[160];
    const char *why = "";
    for (int w = WRONG_RULES - 1; w >= 0; w--) why = fits[w] ? wrong_rules[w] : why;
    stale_describe(r->clock, r->ranks, r->staleness, where);
    if (r->got == LAB_EMISSING)
        test_fail(t, "student_may_begin() has not been written yet: it returned LAB_EMISSING");
    else
        test_fail(t, "%s, rank %d: got %d, expected %d%s", where, r->rank, r->got, !r->got, why);
}

/* Checks all cases even after a wrong answer, so that the message can name the rule that gives the student's
 * answers. */
static status run_rule(grader *g, lab_test *t)
{
    uint64_t start = random_start(g->seed, random_fnv1a64("lab 6 rule"));
    students *s;
    rule first = {0};
    bool wrong = false, fits[WRONG_RULES] = {true, true, true, true};
    TRY(students_start(g, t, 1, &s));
    for (int k = 0; k < RULE_CASES && !t->failed; k++) {
        rule r = {.ranks = k < 10 ? 2 : 1 + k % STALE_MOST_RANKS, .staleness = k % 4};
        for (int i = 0; i < r.ranks; i++) r.clock[i] = (int64_t)random_below(start, (uint64_t)(k * 8 + i), 6);
        r.rank = (int)random_below(start, (uint64_t)(k * 8 + 7), (uint64_t)r.ranks);
        double in[2 + STALE_MOST_RANKS] = {r.rank, (double)r.staleness};
        for (int i = 0; i < r.ranks; i++) in[2 + i] = (double)r.clock[i];
        TRY(students_call_unchecked(s, STRAGGLERS_MAY_BEGIN, in, 2 + r.ranks));
        r.got = (int)s->result[0];
        for (int w = 0; w < WRONG_RULES; w++) fits[w] = fits[w] && r.got == wrong_answer(&r, w);
        if (!wrong && r.got != stale_may_begin(r.clock, r.ranks, r.rank, r.staleness)) {
            first = r;
            wrong = true;
        }
    }
    if (!t->failed && wrong) fail_rule(t, &first, fits);
    return STATUS_OK;
}

/* ---- interleavings ---- */

/* Draws the slow rank and its factor, the bound and the times of a run with few parameters. */
static void draw_run(stale_run *y, const grader *g, lab_test *t, uint64_t index)
{
    static const int64_t bounds[] = {1, 0, 2, 3, WITHOUT_LIMIT};
    memset(y, 0, sizeof *y);
    y->g = g;
    y->t = t;
    y->start = random_start(g->seed + index, random_fnv1a64("lab 6"));
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
    students *s;
    stale_run y;
    int done = 0;
    for (; done < INTERLEAVINGS && !t->failed; done++) {
        if (done % PER_PROCESS == 0) TRY(students_start(g, t, 1, &s));
        draw_run(&y, g, t, (uint64_t)done);
        TRY(stale_serve(s, &y));
    }
    snprintf(t->cost, sizeof t->cost, "%d interleavings", t->failed ? done - 1 : done);
    return STATUS_OK;
}

/* ---- training ---- */

/* Draws a run in which `ranks` ranks train the classifier on the Wine data set. */
static status draw_wine(stale_run *y, grader *g, lab_test *t, uint64_t index, int ranks)
{
    draw_run(y, g, t, index);
    y->ranks = ranks;
    y->n = LAB_RANKS_ELEMENTS;
    y->wine = true;
    return lab_ranks_open(g, ranks, y->now.param);
}

static status run_train(grader *g, lab_test *t)
{
    static const int64_t bounds[] = {0, 3, WITHOUT_LIMIT};
    static const char *const names[] = {"sync", "ssp 3", "async"};
    size_t used = (size_t)snprintf(t->cost, sizeof t->cost, "to loss 0.3 on Wine:");
    for (int k = 0; k < 3 && !t->failed; k++) {
        students *s;
        stale_run y;
        TRY(draw_wine(&y, g, t, 2, 4));
        y.slow_rank = 3;
        y.slow = 4;
        y.staleness = bounds[k];
        y.lr = 0.05f;
        y.momentum = 0;
        y.most = 240;
        y.loss_limit = 0.3;
        TRY(students_start(g, t, 1, &s));
        TRY(stale_serve(s, &y));
        used += (size_t)snprintf(t->cost + used, sizeof t->cost - used, " %s %.1f%s", names[k], y.reached_s,
                                 k < 2 ? "," : " mean steps");
    }
    return STATUS_OK;
}

/* ---- restart ---- */

/* Serves until the server is killed, then from the checkpoint in a new process. */
static status serve_and_resume(grader *g, stale_run *y)
{
    students *s;
    TRY(students_start(g, y->t, 1, &s));
    TRY(stale_serve(s, y));
    if (y->t->failed || y->kill_at < 0) return STATUS_OK;
    TRY(students_start(g, y->t, 1, &s));
    return stale_resume(s, y);
}

/* Runs a server on Wine without staleness, and restarts it from a checkpoint that it saved between two steps.
 * Checks that the run ends as if the server had not been killed. */
static status resume_wine(grader *g, lab_test *t)
{
    float uninterrupted[STALE_MOST];
    uint64_t start = random_start(g->seed, random_fnv1a64("lab 6 resume"));
    stale_run y;
    for (int run = 0; run < 2 && !t->failed; run++) {
        if (run == 1) memcpy(uninterrupted, y.now.param, sizeof uninterrupted);
        TRY(draw_wine(&y, g, t, 0, 3));
        y.staleness = 0;
        y.lr = 0.02f;
        y.momentum = 0.9f;
        y.most = 60;
        if (run == 1) y.save_at = 3 * (3 + (int64_t)random_below(start, 0, 6));
        if (run == 1) y.kill_at = y.save_at + 2 + (int64_t)random_below(start, 1, 20);
        TRY(serve_and_resume(g, &y));
    }
    if (!t->failed && memcmp(uninterrupted, y.now.param, sizeof uninterrupted) != 0)
        test_fail(t, "the resumed run ends with other parameters than the run that was never killed");
    snprintf(t->cost, sizeof t->cost, "killed after push %lld, resumed from push %lld, %lld bytes",
             (long long)y.kill_at, (long long)y.save_at, (long long)y.byte_count);
    return STATUS_OK;
}

static status run_resume(grader *g, lab_test *t)
{
    for (uint64_t k = 0; k < RESUMES && !t->failed; k++) {
        stale_run y;
        draw_run(&y, g, t, 7000 + k);
        y.momentum = 0.9f;
        y.staleness = 1 + (int64_t)(k % 3);
        y.slow = 4;
        y.save_at = 5 + (int64_t)k;
        y.kill_at = y.save_at + 4;
        TRY(serve_and_resume(g, &y));
    }
    return t->failed ? STATUS_OK : resume_wine(g, t);
}

/* ---- questions ---- */

typedef struct stragglers_question {
    char slow[16];
    int gpus, staleness, slow_steps, pause_ms, step_ms;
} stragglers_question;

static stragglers_question draw(uint64_t seed)
{
    uint64_t start = random_start(seed, random_fnv1a64("lab 6 questions"));
    stragglers_question q = {.staleness = 2 + (int)random_below(start, 2, 8),
                             .step_ms = 10 * (3 + (int)random_below(start, 3, 10))};
    q.gpus = 3 + (int)random_below(start, 0, 5);
    snprintf(q.slow, sizeof q.slow, "%d:1.%d", q.gpus - 1, 4 + (int)random_below(start, 1, 6));
    q.slow_steps = q.staleness + 4 + (int)random_below(start, 4, 20);
    q.pause_ms = q.step_ms * (2 + (int)random_below(start, 5, 9)) + q.step_ms / 2;
    return q;
}

void stragglers_ask(uint64_t seed, text_buffer *out)
{
    stragglers_question q = draw(seed);
    text_append(out,
                "# Samples per second of all ranks, with a slow rank, under the three rules (the policies "
                "sync, ssp and async):\n"
                "# harness run --device sim:dgx1-v100 --mode ps --gpus %d --slow %s --model resnet50 --batch "
                "32 --data synthetic --steps 20 --policy sync\n"
                "sync_samples_per_s =\nssp_samples_per_s =\nasync_samples_per_s =\n",
                q.gpus, q.slow);
    text_append(out,
                "# Staleness %d; one rank needs as long for a step as the others for %d. How many steps has "
                "a fast rank pushed when it has to wait for the first time?\nsteps_before_wait =\n"
                "# All ranks need %d ms for a step; then one rank pauses once, for %d ms. The smallest "
                "staleness with which no other rank waits.\nsmallest_staleness =\n",
                q.staleness, q.slow_steps, q.step_ms, q.pause_ms);
}

static status run_why(grader *g, lab_test *t)
{
    static const char *const policies[] = {"sync", "ssp", "async"};
    stragglers_question q = draw(g->seed);
    lab_answer answers[] = {
        {"sync_samples_per_s", 0, 0.02, "run the command with this policy"},
        {"ssp_samples_per_s", 0, 0.02, "run the command with this policy"},
        {"async_samples_per_s", 0, 0.02, "run the command with this policy"},
        {"steps_before_wait", q.staleness + 1, 0,
         "which step may it begin while the slow rank has pushed none?"},
        {"smallest_staleness", q.pause_ms / q.step_ms + 1, 0,
         "count the steps that another rank begins until the paused rank pushes"},
    };
    for (int k = 0; k < 3; k++) {
        json_t *result;
        TRY(program_json(&result, NULL,
                         "run --device sim:dgx1-v100 --mode ps --policy %s --gpus %d --slow %s --model "
                         "resnet50 --batch 32 --data synthetic --steps 20",
                         policies[k], q.gpus, q.slow));
        answers[k].number = report_number_at(result, "jobs.0.throughput.samples_per_s");
        json_decref(result);
    }
    test_answers(g, t, t->points / 5, answers, 5);
    return STATUS_OK;
}

const lab_part stragglers_parts[] = {
    {"rule", "the rule, drawn clocks", 15, false, run_rule, 0},
    {"schedule", "1000 interleavings", 25, false, run_schedule, 0},
    {"resume", "killed, and restarted from a checkpoint", 25, false, run_resume, 0},
    {"train", "Wine with a slow rank", 10, false, run_train, 0},
    {"why", "questions: a slow rank", 20, true, run_why, 0},
    {0},
};
