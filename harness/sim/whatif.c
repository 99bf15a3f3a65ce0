#include "harness/sim/whatif.h"

#include "harness/run/run_result.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- parsing ---------------------------------------------------------------------------------- */

/* Copies the word before the next comma, and moves past it; false: it is longer than `size`. */
static bool next_word(const char **at, char *word, size_t size)
{
    size_t length = strcspn(*at, ",");
    if (length >= size) return false;
    memcpy(word, *at, length);
    word[length] = '\0';
    *at += length + ((*at)[length] == ',');
    return true;
}

static status not_a_list(const char *text)
{
    return fail(STATUS_USAGE, "--gpus: expected a list such as 8,16,...,4096, got '%s'", text);
}

static status add_size(whatif_question *q, int64_t gpus)
{
    if (q->size_count == WHATIF_SIZES)
        return fail(STATUS_USAGE, "--gpus: expected at most %d numbers, got more", WHATIF_SIZES);
    q->gpus[q->size_count++] = (int)gpus;
    return STATUS_OK;
}

/* From the last number on by the ratio of the last two, up to `end`. */
static status go_on(whatif_question *q, int64_t end)
{
    int n = q->size_count;
    int64_t ratio = n > 1 && q->gpus[n - 1] > q->gpus[n - 2] ? q->gpus[n - 1] / q->gpus[n - 2] : 2;
    if (n == 0 || ratio < 2) ratio = 2;
    for (int64_t at = n ? q->gpus[n - 1] * ratio : 1; at < end; at *= ratio) TRY(add_size(q, at));
    return STATUS_OK;
}

status whatif_parse_gpus(const char *text, whatif_question *q)
{
    bool dots = false;
    for (const char *at = text; *at;) {
        char word[24];
        int64_t gpus;
        if (!next_word(&at, word, sizeof word)) return not_a_list(text);
        if (strcmp(word, "...") == 0) {
            dots = true;
            continue;
        }
        TRY(text_parse_int("--gpus", word, 1, SIM_RANK_LIMIT - 1, &gpus));
        if (dots) TRY(go_on(q, gpus));
        TRY(add_size(q, gpus));
        dots = false;
    }
    return dots || q->size_count == 0 ? not_a_list(text) : STATUS_OK;
}

status whatif_parse_policies(const char *text, whatif_question *q)
{
    for (const char *at = text; *at;) {
        const char *checked[ENGINE_COUNT];
        char *name = q->policies[q->policy_count];
        if (q->policy_count == WHATIF_POLICIES || !next_word(&at, name, sizeof q->policies[0]))
            return fail(STATUS_USAGE, "--policy: expected at most %d names, got '%s'", WHATIF_POLICIES, text);
        q->policy_count++;
        TRY(engine_parse_policies(name, checked, NULL));
    }
    return q->policy_count ? STATUS_OK : fail(STATUS_USAGE, "--policy: expected a name, got none");
}

/* ---- asking ----------------------------------------------------------------------------------- */

static virtual_workload workload_of(const whatif_question *q, const char *policy, int gpus)
{
    virtual_workload w = {.machine = q->machine,
                          .model = q->model,
                          .batch = q->batch,
                          .optimizer = q->optimizer,
                          .policy = policy,
                          .by_symmetry = true};
    w.machine.world = gpus;
    return w;
}

static status ask_point(const whatif_question *q, const char *policy, int gpus, double one_gpu_ms,
                        virtual_figures *figures, whatif_point *out)
{
    virtual_workload w = workload_of(q, gpus > 1 ? policy : NULL, gpus);
    TRY(virtual_measure(&w, figures));
    *out = (whatif_point){.step_ms = figures->step_ms,
                          .exposed_ms = figures->exposed_ms,
                          .efficiency = one_gpu_ms / figures->step_ms,
                          .samples_per_s = (double)(q->batch * gpus) / figures->step_ms * 1000,
                          .most_bytes = figures->most_bytes};
    if (gpus == 1 || figures->ranks == gpus) return STATUS_OK;
    w.machine.trees = true;
    TRY(virtual_measure(&w, figures));
    if (figures->step_ms < out->step_ms) out->tree_ms = figures->step_ms;
    return STATUS_OK;
}

static status ask_all(const whatif_question *q, virtual_figures *figures, whatif_answer *out)
{
    virtual_workload alone = workload_of(q, NULL, 1);
    alone.machine.machines = 1;
    TRY(virtual_measure(&alone, figures));
    out->one_gpu_ms = figures->step_ms;
    for (int p = 0; p < q->policy_count; p++)
        for (int i = 0; i < q->size_count; i++)
            TRY(ask_point(q, q->policies[p], q->gpus[i], out->one_gpu_ms, figures, &out->points[p][i]));
    return STATUS_OK;
}

status whatif_ask(const whatif_question *q, whatif_answer *out)
{
    virtual_figures *figures = calloc(1, sizeof *figures);
    if (!figures) return fail(STATUS_SYSTEM, "no memory for the figures");
    status rc = ask_all(q, figures, out);
    free(figures);
    return rc;
}

/* ---- showing ---------------------------------------------------------------------------------- */

static void bar(double part, text_buffer *out)
{
    enum { WIDTH = 50 };
    int filled = (int)(part * WIDTH + 0.5);
    if (filled > WIDTH) filled = WIDTH;
    char text[WIDTH + 1];
    memset(text, '#', sizeof text);
    text_append(out, "|%-*.*s|", WIDTH, filled, text);
}

static void table(const whatif_question *q, const whatif_answer *a, int p, text_buffer *out)
{
    text_append(out, "\n%s\n%8s %12s %12s %11s %12s %14s %12s\n", q->policies[p], "GPUs", "step, ms",
                "exposed, ms", "efficiency", "samples/s", "memory a rank", "tree, ms");
    for (int i = 0; i < q->size_count; i++) {
        const whatif_point *x = &a->points[p][i];
        char bytes[32];
        text_append(out, "%8d %12.3f %12.3f %9.1f %% %12.0f %14s ", q->gpus[i], x->step_ms, x->exposed_ms,
                    100 * x->efficiency, x->samples_per_s,
                    text_format_bytes(bytes, sizeof bytes, (double)x->most_bytes));
        if (x->tree_ms > 0)
            text_append(out, "%12.3f\n", x->tree_ms);
        else
            text_append(out, "%12s\n", "");
    }
}

void whatif_text(const whatif_question *q, const whatif_answer *a, text_buffer *out)
{
    text_append(out, "SIMULATED: %s, batch %lld a GPU, profile %s", q->model.name, (long long)q->batch,
                q->machine.profile);
    if (q->machine.machines) text_append(out, ", %d machines", q->machine.machines);
    char rate[48];
    if (q->machine.link_rate > 0)
        text_append(out, ", links of %s, %g us",
                    text_format_rate(rate, sizeof rate, q->machine.link_rate * 1e9), q->machine.link_latency);
    text_append(out, "; one GPU takes %.3f ms\n", a->one_gpu_ms);
    for (int p = 0; p < q->policy_count; p++) table(q, a, p, out);
    text_append(out, "\nefficiency: the step of one GPU over this step\n");
    for (int p = 0; p < q->policy_count; p++)
        for (int i = 0; i < q->size_count; i++) {
            text_append(out, "%-14s %7d ", i ? "" : q->policies[p], q->gpus[i]);
            bar(a->points[p][i].efficiency, out);
            text_append(out, " %.1f %%\n", 100 * a->points[p][i].efficiency);
        }
    text_append(out, "\ntree: the step where NCCL's model leaves the ring for a tree, for calls for which "
                     "that is faster.\n");
}

void whatif_csv(const whatif_question *q, const whatif_answer *a, text_buffer *out)
{
    text_append(
        out,
        "profile,model,batch_per_rank,policy,gpus,step_s,exposed_communication_s,efficiency,samples_per_s,"
        "memory_peak_bytes,tree_step_s\n");
    for (int p = 0; p < q->policy_count; p++)
        for (int i = 0; i < q->size_count; i++) {
            const whatif_point *x = &a->points[p][i];
            text_append(out, "\"%s\",%s,%lld,%s,%d,%.9g,%.9g,%.9g,%.9g,%lld,", q->machine.profile,
                        q->model.name, (long long)q->batch, q->policies[p], q->gpus[i], x->step_ms / 1e3,
                        x->exposed_ms / 1e3, x->efficiency, x->samples_per_s, (long long)x->most_bytes);
            if (x->tree_ms > 0) text_append(out, "%.9g", x->tree_ms / 1e3);
            text_append(out, "\n");
        }
}

json_t *whatif_json(const whatif_question *q, const whatif_answer *a)
{
    json_t *rows = json_array();
    for (int p = 0; p < q->policy_count; p++)
        for (int i = 0; i < q->size_count; i++) {
            const whatif_point *x = &a->points[p][i];
            json_array_append_new(
                rows, json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:I, s:o}", "policy", q->policies[p], "gpus",
                                q->gpus[i], "step_s", x->step_ms / 1e3, "exposed_communication_s",
                                x->exposed_ms / 1e3, "efficiency", x->efficiency, "samples_per_s",
                                x->samples_per_s, "memory_peak_bytes", (json_int_t)x->most_bytes,
                                "tree_step_s", x->tree_ms > 0 ? json_real(x->tree_ms / 1e3) : json_null()));
        }
    return json_pack("{s:i, s:b, s:s, s:s, s:I, s:f, s:o}", "schema_version", RESULT_SCHEMA_VERSION,
                     "simulated", 1, "profile", q->machine.profile, "model", q->model.name, "batch_per_rank",
                     (json_int_t)q->batch, "one_gpu_step_s", a->one_gpu_ms / 1e3, "points", rows);
}
