#include "harness/compare/why.h"

#include "harness/report/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EACH(key) "forward.*." key " loss.*." key " backward.*." key
#define MEMORY EACH("peak_bytes") " -forward.*.live_bytes -loss.*.live_bytes -backward.*.live_bytes"

/* The mechanisms in the order in which they are switched. `options` are names between blanks, or empty for
 * all options that no row names. `paths` are the parts of a workload (why_switch()). */
typedef struct mechanism {
    const char *name, *options, *paths;
} mechanism;
enum { KERNELS = 2, ACTIVATIONS, GRADIENTS, READINESS = 6, MODEL = 8, FILES = 18, MECHANISMS };
static const mechanism mechanisms[MECHANISMS] = {
    {"input", " loader-workers prefetch ", "parts_ns.data -parts_idle_ns.data"},
    {"host", " dp-host ",
     EACH("idle_ns") " parts_ns.other -parts_idle_ns.other -parts_idle_ns.forward -parts_idle_ns.backward"},
    {"kernels", " efficiency tf32 bf16 draw jitter ", EACH("kernel_ns")},
    {"activations", NULL, MEMORY},
    {"gradients", " mixed-precision comm-hook powersgd-rank powersgd-start ",
     "gradient_type parameters.*.bytes -parameters.*.shape"},
    {"units", " reshard group ", "units -parameters.*.unit"},
    {"readiness", " launch static-graph find-unused-parameters ", "forward -loss backward"},
    {"optimizer", " optimizer momentum nesterov weight-decay clip-norm ",
     "optimizer optimizer_states parts_ns.optimizer -parts_idle_ns.optimizer"},
    {"model",
     " model classes image sync-batchnorm layers hidden heads vocabulary sequence data batch sampler ",
     "batch input_elements rows classes parameters -units -buffers -gradient_type -forward -loss -backward"},
    {"micro-batches", " accumulate stages stages-on schedule ", NULL},
    {"policy", " mode policy servers consistency staleness ", NULL},
    {"buckets", " bucket-cap-mb first-bucket-mb message-size order bucket-view ", NULL},
    {"reductions", " reduce-micro-batches ", NULL},
    {"collective", " collective algorithm ", NULL},
    {"slow rank", " slow ", NULL},
    {"link", " link adapters oversubscription ", NULL},
    {"machines", " device nodes gpus gpu per-host nvlink topology ", "source.ranks"},
    {"other settings", "", NULL},
    /* Traces may have a difference that no replay has, such as waiting for other ranks. */
    {"not replayed", NULL, "parts_ns.communication -parts_idle_ns.communication"}};
static const double noise = 0.02; /* least difference of two traces that counts */

/* ---- switching ---------------------------------------------------------------------------------------- */

/* Switches the options in `names`, or all if it is empty. Appends both values of each to `words`. */
static void switch_options(const char *names, const json_t *b, json_t *mixture, text_buffer *words)
{
    json_t *all = json_deep_copy(mixture), *value;
    const char *name;
    json_object_update(all, (json_t *)b);
    json_object_foreach(all, name, value)
    {
        char word[80];
        json_t *old = json_object_get(mixture, name), *new = json_object_get(b, name);
        snprintf(word, sizeof word, " %.60s ", name);
        if ((*names && !strstr(names, word)) || json_equal(old, new)) continue;
        text_append(words, "%s%s %s -> %s", words->length > 0 ? ", " : "", name,
                    old ? json_string_value(old) : "default", new ? json_string_value(new) : "default");
        if (new)
            json_object_set(mixture, name, new);
        else
            json_object_del(mixture, name);
    }
    json_decref(all);
}

/* Switches a mechanism from A to B, and returns its name. Recomputation of activations is not a change of the
 * kernels. Values of parameters are switched one by one if both workloads have as many, else with the model.
 */
static const char *switch_mechanism(int m, const why_job *a, const why_job *b, json_t *mixture,
                                    text_buffer *words)
{
    const json_t *from = json_object_get(a->job, "workload"), *to = json_object_get(b->job, "workload");
    bool both = json_is_object(from) && json_is_object(to);
    bool recomputes = both && (why_recomputes(from, to) || why_traces_recompute(a->source, b->source));
    bool fits = m < GRADIENTS || m > READINESS ||
                json_array_size(json_object_get(from, "parameters")) ==
                    json_array_size(json_object_get(to, "parameters"));
    const char *paths = mechanisms[m].paths;
    if (recomputes && m == KERNELS) paths = "forward.*.kernel_ns loss.*.kernel_ns";
    if (recomputes && m == ACTIVATIONS) paths = MEMORY " backward.*.kernel_ns";
    if (both && fits && paths) why_switch(paths, to, json_object_get(mixture, "workload"), words);
    if (!both && m == MODEL) json_object_set_new(mixture, "workload", json_deep_copy(to));
    if (mechanisms[m].options)
        switch_options(mechanisms[m].options, json_object_get(b->job, "options"),
                       json_object_get(mixture, "options"), words);
    return recomputes && m == ACTIVATIONS ? "checkpointing" : mechanisms[m].name;
}

/* ---- parts -------------------------------------------------------------------------------------------- */

static void add_row(json_t *rows, const char *name, const int64_t part[], const char *differs)
{
    json_array_append_new(rows, json_pack("{s:s, s:I, s:I, s:s}", "mechanism", name, "step_ns",
                                          (json_int_t)part[WHY_STEP_NS], "memory_bytes",
                                          (json_int_t)part[WHY_BYTES], "differs", differs));
}

/* Adds a time to the row of a mechanism, or adds a row if the mechanism has none. */
static void add_time(json_t *rows, const char *name, int64_t ns, const char *differs)
{
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        if (strcmp(report_text_at(row, "mechanism"), name) != 0) continue;
        json_object_set_new(row, "step_ns", json_integer(ns + (int64_t)report_number_at(row, "step_ns")));
        json_object_set_new(row, "differs", json_sprintf("%s, %s", report_text_at(row, "differs"), differs));
        return;
    }
    add_row(rows, name, (int64_t[]){ns, 0}, differs);
}

/* Divides the time that the replays do not have between waiting for a late rank and what the traces'
 * collectives prove. *ns becomes 0 if they prove anything. */
static void add_communication(const why_job *a, const why_job *b, int64_t *ns, json_t *rows)
{
    bool known = json_is_integer(json_object_get(a->source, "waiting_ns")) &&
                 json_is_integer(json_object_get(b->source, "waiting_ns"));
    int64_t from = known ? why_waiting_ns(a) : 0, to = known ? why_waiting_ns(b) : 0;
    text_buffer words = {0};
    const char *name = why_collectives(a->source, b->source, &words);
    if (from != to) {
        text_buffer waits = {0};
        text_append(&waits, "waiting %.3f -> %.3f ms", 1e-6 * (double)from, 1e-6 * (double)to);
        add_time(rows, "slow rank", to - from, waits.data);
        text_free(&waits);
        *ns -= to - from;
    }
    if (name) {
        add_time(rows, name, *ns, words.data);
        *ns = 0;
    }
    text_free(&words);
}

/* Switches all mechanisms one after another, and adds a row for each that differs. If a mixture is not a
 * valid job, the part of its mechanism is counted with the next one. */
static status switch_all(const why_job *a, const why_job *b, int64_t rest[], char *const *words, int count,
                         json_t *rows)
{
    why_job mixture = {.job = json_deep_copy(a->job)};
    int64_t last[] = {a->replay[WHY_STEP_NS], a->replay[WHY_BYTES]}, part[WHY_FIGURES];
    status rc = STATUS_OK;
    for (int m = 0; m < MECHANISMS && rc == STATUS_OK; m++) {
        if (m == FILES && rest[WHY_STEP_NS] != 0) add_communication(a, b, &rest[WHY_STEP_NS], rows);
        text_buffer differs = {0};
        json_t *before = json_deep_copy(mixture.job);
        const char *name = switch_mechanism(m, a, b, mixture.job, &differs);
        bool changed = !json_equal(mixture.job, before), done = json_equal(mixture.job, b->job);
        if (changed && !done) rc = why_job_replay(&mixture, words, count);
        bool merged = rc == STATUS_USAGE || rc == STATUS_CONFIG;
        if (merged) {
            error_clear();
            text_append(&differs, ", counted with the next row");
            rc = STATUS_OK;
        }
        const int64_t *now = merged || !changed ? last : done ? b->replay : mixture.replay;
        for (int f = 0; f < WHY_FIGURES; f++) {
            part[f] = now[f] - last[f] + (m == FILES ? rest[f] : 0);
            last[f] = now[f];
        }
        bool shown = changed && differs.length > 0 && m != FILES;
        if (shown || part[WHY_STEP_NS] != 0 || part[WHY_BYTES] != 0)
            add_row(rows, name, part, differs.length > 0 ? differs.data : "details");
        json_decref(before);
        text_free(&differs);
    }
    json_decref(mixture.job);
    return rc;
}

/* Returns the name of the mechanism with the largest part of the step or, if no step differs, of memory. */
static const char *largest(const json_t *rows)
{
    const char *name = NULL;
    double most = 0;
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        double part =
            fabs(report_number_at(row, "step_ns")) + 1e-18 * fabs(report_number_at(row, "memory_bytes"));
        if (part > most) name = report_text_at(row, "mechanism");
        most = fmax(most, part);
    }
    return name;
}

static status explain(why_job jobs[2], char *const *words, int count, json_t *rows, json_t **out)
{
    int64_t rest[WHY_FIGURES], a[WHY_FIGURES], b[WHY_FIGURES];
    bool traced = jobs[0].traced && jobs[1].traced, near = traced;
    double least[] = {fmax(noise, fmax(why_spread(jobs[0].source), why_spread(jobs[1].source)) / 2), noise};
    for (int i = 0; i < 2; i++) {
        status rc = why_job_replay(&jobs[i], words, count);
        if (rc != STATUS_OK) error_context("%s", jobs[i].name);
        TRY(rc);
    }
    for (int f = 0; f < WHY_FIGURES; f++) {
        bool files = traced && count == 0 && jobs[0].file[f] > 0 && jobs[1].file[f] > 0;
        a[f] = files ? jobs[0].file[f] : jobs[0].replay[f];
        b[f] = files ? jobs[1].file[f] : jobs[1].replay[f];
        rest[f] = b[f] - a[f] - (jobs[1].replay[f] - jobs[0].replay[f]);
        near = near && (double)llabs(b[f] - a[f]) <= least[f] * (double)a[f];
    }
    TRY(switch_all(&jobs[0], &jobs[1], rest, words, count, rows));
    bool equal = near || json_array_size(rows) == 0;
    *out = json_pack("{s:i, s:b, s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:O, s:s?}", "schema_version",
                     WHY_SCHEMA_VERSION, "simulated", 1, "a", jobs[0].name, "b", jobs[1].name, "equal",
                     (int)equal, "a_step_ns", (json_int_t)a[WHY_STEP_NS], "b_step_ns",
                     (json_int_t)b[WHY_STEP_NS], "a_memory_bytes", (json_int_t)a[WHY_BYTES], "b_memory_bytes",
                     (json_int_t)b[WHY_BYTES], "mechanisms", rows, "largest", equal ? NULL : largest(rows));
    return *out ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for the comparison");
}

status why_explain(const char *a, const char *b, char *const *words, int count, json_t **out)
{
    why_job jobs[2] = {0};
    json_t *rows = json_array();
    status rc = why_job_open(a, &jobs[0]);
    if (rc == STATUS_OK) rc = why_job_open(b, &jobs[1]);
    if (rc == STATUS_OK) rc = explain(jobs, words, count, rows, out);
    for (int i = 0; i < 2; i++) {
        json_decref(jobs[i].job);
        json_decref(jobs[i].source);
    }
    json_decref(rows);
    return rc;
}
