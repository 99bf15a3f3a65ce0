/* Lab 8: the best configuration for a randomly drawn model and cluster, in virtual time. The student's
 * choice is compared with every point of the grid. */
#include "harness/labs/labs.h"
#include "harness/labs/students.h"

#include "common/base/random.h"
#include "harness/report/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GPUS = 8, LEAST_WORDS = 100 };
static const char *const models[] = {"resnet50", "vgg16"},
                         *const rates[] = {"10Gbit/s", "25Gbit/s", "40Gbit/s"},
                         *const delays[] = {"5us", "20us", "100us"};
static const int batches[] = {16, 32, 64}, caps[] = {1, 5, 25, 100}, servers[] = {2, 8};

typedef struct choose_question {
    const char *model;
    char link[32];
    int memory_gib;
} choose_question;

typedef struct choice {
    const char *policy; /* "ddp" or "sync" */
    int batch, setting; /* Batch per rank. For "ddp" the setting is the bucket cap in MiB, for "sync" the
                           number of servers. */
} choice;

typedef struct outcome {
    double samples_per_s, memory_gib, exposed_ms;
} outcome;

static choose_question draw(uint64_t seed)
{
    uint64_t start = random_start(seed, random_fnv1a64("lab 8"));
    choose_question q = {.model = models[random_below(start, 0, 2)],
                         .memory_gib = random_below(start, 1, 2) ? 4 : 8};
    snprintf(q.link, sizeof q.link, "%s,%s", rates[random_below(start, 2, 3)],
             delays[random_below(start, 3, 3)]);
    return q;
}

static bool is_ring(choice c)
{
    return strcmp(c.policy, "ddp") == 0;
}

/* Runs `harness COMMAND` with the options of a choice. */
static status compute(const char *command, const choose_question *q, choice c, json_t **result)
{
    return program_json(
        result, NULL, "%s --nodes 2 --gpus 8 --link %s --model %s --batch %d --policy %s %s %d", command,
        q->link, q->model, c.batch, c.policy, is_ring(c) ? "--bucket-cap-mb" : "--servers", c.setting);
}

/* Computes the outcome with `harness whatif`, as the student does. */
static status simulate(const choose_question *q, choice c, outcome *out)
{
    json_t *result;
    TRY(compute("whatif --profile dgx1-v100-4xib100", q, c, &result));
    *out = (outcome){report_number_at(result, "points.0.samples_per_s"),
                     report_number_at(result, "points.0.memory_peak_bytes") / 0x1p30,
                     report_number_at(result, "points.0.exposed_communication_s") * 1e3};
    json_decref(result);
    return STATUS_OK;
}

/* Computes only throughput and memory, with one `harness run`. `whatif` would repeat the run with many draws
 * of the profile's constants, to compute intervals that the grid does not need. */
static status run_point(const choose_question *q, choice c, outcome *out)
{
    char command[128], path[64];
    json_t *result;
    snprintf(command, sizeof command,
             "run --device sim:dgx1-v100-4xib100 --mode %s --data synthetic --warmup 2 --steps 3",
             is_ring(c) ? "ring" : "ps");
    TRY(compute(command, q, c, &result));
    *out = (outcome){.samples_per_s = report_number_at(result, "jobs.0.throughput.samples_per_s")};
    for (int rank = 0; rank < GPUS; rank++) {
        snprintf(path, sizeof path, "jobs.0.ranks.%d.memory.total.peak_bytes", rank);
        out->memory_gib = fmax(out->memory_gib, report_number_at(result, path) / 0x1p30);
    }
    json_decref(result);
    return STATUS_OK;
}

/* ---- the student's choice ---- */

static bool is_one_of(double value, const int *values, int count)
{
    for (int i = 0; i < count; i++)
        if (value == values[i]) return true;
    return false;
}

static double number(const grader *g, const char *key)
{
    const char *text = grader_answer(g, key);
    return text && text[0] ? atof(text) : 0;
}

/* Reads the choice. Returns false, with the reason in `t`, if the choice is not in the grid. */
static bool read_choice(const grader *g, lab_test *t, choice *c)
{
    const char *policy = test_given_answer(g, t, "policy");
    if (!policy) return false;
    if (strcmp(policy, "ddp") != 0 && strcmp(policy, "sync") != 0)
        test_fail(t, "answers.txt: policy: expected ddp or sync, got '%s'", policy);
    else if (!is_one_of(number(g, "batch"), batches, 3))
        test_fail(t, "answers.txt: batch: expected 16, 32 or 64");
    else if (strcmp(policy, "ddp") == 0 && !is_one_of(number(g, "bucket_cap_mb"), caps, 4))
        test_fail(t, "answers.txt: bucket_cap_mb: expected 1, 5, 25 or 100");
    else if (strcmp(policy, "sync") == 0 && !is_one_of(number(g, "servers"), servers, 2))
        test_fail(t, "answers.txt: servers: expected 2 or 8");
    else
        *c = (choice){strcmp(policy, "ddp") == 0 ? "ddp" : "sync", (int)number(g, "batch"), 0};
    if (!t->failed) c->setting = (int)number(g, is_ring(*c) ? "bucket_cap_mb" : "servers");
    return !t->failed;
}

/* ---- parts ---- */

static status run_fits(grader *g, lab_test *t)
{
    choose_question q = draw(g->seed);
    choice c;
    outcome o;
    if (!read_choice(g, t, &c)) return STATUS_OK;
    TRY(simulate(&q, c, &o));
    snprintf(t->cost, sizeof t->cost, "%.2f GiB (limit %d)", o.memory_gib, q.memory_gib);
    if (o.memory_gib > q.memory_gib)
        test_fail(
            t,
            "your configuration needs %.2f GiB on its fullest GPU, which has %d: a smaller batch needs less",
            o.memory_gib, q.memory_gib);
    return STATUS_OK;
}

/* Finds the highest throughput, in samples per second, among the points of the grid that fit in memory. */
static status best_of_grid(const choose_question *q, double *best)
{
    *best = 0;
    for (int b = 0; b < 3; b++)
        for (int k = 0; k < 6; k++) {
            outcome o;
            TRY(run_point(q,
                          k < 4 ? (choice){"ddp", batches[b], caps[k]}
                                : (choice){"sync", batches[b], servers[k - 4]},
                          &o));
            if (o.memory_gib <= q->memory_gib && o.samples_per_s > *best) *best = o.samples_per_s;
        }
    return STATUS_OK;
}

static status run_regret(grader *g, lab_test *t)
{
    choose_question q = draw(g->seed);
    choice c;
    outcome o;
    double best;
    if (!read_choice(g, t, &c)) return STATUS_OK;
    TRY(run_point(&q, c, &o));
    if (o.memory_gib > q.memory_gib) {
        test_fail(t, "your configuration does not fit");
        return STATUS_OK;
    }
    TRY(best_of_grid(&q, &best));
    double regret = 100 * (best / o.samples_per_s - 1);
    t->ratio = regret > 0 ? regret : 1e-9;
    snprintf(t->cost, sizeof t->cost, "regret %.1f %%", regret);
    if (regret <= 3) return STATUS_OK;
    test_fail(t,
              "%.0f samples per second; the best of the grid that fits has %.1f %% more: full points within "
              "3 %%, 30 within 10 %%, 15 within 30 %%; %s",
              o.samples_per_s, regret,
              is_ring(c) ? "have you tried larger batches and all caps?" : "is another policy faster?");
    t->score = regret <= 10 ? 30 : regret <= 30 ? 15 : 0;
    return STATUS_OK;
}

static status run_predict(grader *g, lab_test *t)
{
    choose_question q = draw(g->seed);
    choice c;
    outcome o;
    if (!read_choice(g, t, &c)) return STATUS_OK;
    TRY(simulate(&q, c, &o));
    const double points[] = {10, 5, 10};
    const lab_answer answers[] = {
        {"samples_per_s", o.samples_per_s, 0.05,
         "run whatif with your configuration; with --nodes and --link"},
        {"memory_gib", o.memory_gib, 0.05, "the column of the largest rank's peak, in GiB"},
        {"exposed_ms", o.exposed_ms, 0.1, "the column of exposed communication, in ms"},
    };
    for (int i = 0; i < 3; i++) test_answers(g, t, points[i], &answers[i], 1);
    return STATUS_OK;
}

static status run_defence(grader *g, lab_test *t)
{
    text_buffer text = {0};
    int words = 0;
    if (grader_read_file(g->folder, "defence.md", &text) != STATUS_OK) error_clear();
    char *rest = NULL;
    for (char *word = text.data ? strtok_r(text.data, " \n\t\r", &rest) : NULL; word;
         word = strtok_r(NULL, " \n\t\r", &rest))
        words++;
    text_free(&text);
    snprintf(t->cost, sizeof t->cost, "%d words; your teacher reads them", words);
    if (words < LEAST_WORDS)
        test_fail(t, "defence.md: no answer yet: expected at least %d words, got %d", LEAST_WORDS, words);
    return STATUS_OK;
}

void choose_ask(uint64_t seed, text_buffer *out)
{
    choose_question q = draw(seed);
    text_append(out, "# Your model: %s, on %d V100 in 2 machines. Your link: %s. Memory per GPU: %d GiB.\n",
                q.model, GPUS, q.link, q.memory_gib);
    text_append(
        out,
        "# See each point of the grid with\n# harness whatif --profile dgx1-v100-4xib100 --nodes 2 --gpus 8 "
        "--link %s --model %s --batch 16 --policy ddp --bucket-cap-mb 1\n# The policy, ddp or sync; the "
        "batch per GPU, 16, 32 or 64.\npolicy =\nbatch =\n"
        "# With ddp: the cap, 1, 5, 25 or 100. With sync: servers, 2 or 8.\nbucket_cap_mb =\nservers =\n"
        "# What you expect of it: all GPUs' samples per second, GiB of the fullest GPU, exposed "
        "communication in ms.\n"
        "samples_per_s =\nmemory_gib =\nexposed_ms =\n",
        q.link, q.model);
}

const lab_part choose_parts[] = {
    {"fits", "the configuration fits the memory", 20, true, run_fits, 0},
    {"regret", "compared with the best of the grid", 45, true, run_regret, 0},
    {"predict", "what you expect of it", 25, true, run_predict, 0},
    {"defence", "half a page in defence.md", 10, true, run_defence, 0},
    {0},
};
