/* Shows the answers of whatif: as text, as CSV and as JSON. */
#include "harness/report/report.h"
#include "harness/sim/whatif.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Formats "285 (280 to 301)" with three digits, or "285" if nothing was drawn. */
static void with_limits(const whatif_question *q, char *out, size_t size, const char *to, double value,
                        double low, double high)
{
    char texts[3][24];
    if (q->draws == 0)
        text_three_digits(out, size, value);
    else
        snprintf(out, size, "%s (%s%s%s)", text_three_digits(texts[0], sizeof texts[0], value),
                 text_three_digits(texts[1], sizeof texts[1], low), to,
                 text_three_digits(texts[2], sizeof texts[2], high));
}

static void mixed_lines(const whatif_question *q, const whatif_answer *a, int p, text_buffer *out)
{
    for (int i = 0; i < q->size_count; i++) {
        const whatif_point *x = &a->points[p][i];
        if (json_array_size(x->algorithms) < 2) continue;
        json_t *job = json_pack("{s:O}", "algorithms", x->algorithms);
        text_append(out, "%s on %d GPUs, per step: ", q->policies.names[p], q->gpus[i]);
        report_algorithms(job, true, out);
        text_append(out, "\n");
        json_decref(job);
    }
}

/* Returns the largest cause of lost time, or -1 if it is below half a percent of the step. */
static int largest_cause(const whatif_point *x)
{
    int cause = 0;
    for (int c = 0; c < LOST_CAUSES; c++)
        if (x->lost.of[c] > x->lost.of[cause]) cause = c;
    return x->lost.of[cause] > 0.005 * x->lost.step_s ? cause : -1;
}

/* Formats the time that a cause loses as a share of the step: "5.48 %". */
static char *share_of(char *out, size_t size, const whatif_point *x, int cause)
{
    snprintf(out, size, "%.3g %%", 100 * x->lost.of[cause] / x->lost.step_s);
    return out;
}

/* A second measured point counts where neighbors do, of which virtual ranks have none. */
static const lost_cause_info *info_of(const whatif_question *q, int cause)
{
    static const lost_cause_info measured = {"neighbors_s", "beyond", "what the model lacks",
                                             "measured, beyond the model"};
    return q->measured_gpus && cause == LOST_NEIGHBORS ? &measured : &lost_causes[cause];
}

/* Returns true for a point that repeats the point of another policy. */
static bool is_repeated(const whatif_question *q, int p, int size)
{
    return p > 0 && whatif_is_alone(q, size);
}

static const char *policy_of(const whatif_question *q, int p, int size)
{
    return whatif_is_alone(q, size) ? "none" : q->policies.names[p];
}

static const char *name_of(const whatif_question *q, int p, int size)
{
    const char *policy = policy_of(q, p, size);
    return q->server_per_rank && strcmp(policy, "sync") == 0 ? "sync, a server per rank" : policy;
}

static void table_row(const whatif_question *q, const whatif_answer *a, int p, int i, text_buffer *out)
{
    const whatif_point *x = &a->points[p][i];
    char bytes[32], step[80], efficiency[24], rate[24], share[16], cause[48] = "";
    int largest = largest_cause(x);
    with_limits(q, step, sizeof step, "-", x->step_ms, x->low_ms, x->high_ms);
    text_format_bytes(bytes, sizeof bytes, (double)x->most_bytes);
    if (largest >= 0)
        snprintf(cause, sizeof cause, "%s %s", info_of(q, largest)->head,
                 share_of(share, sizeof share, x, largest));
    text_append(out, "%5d %-10s", q->gpus[i], name_of(q, p, i));
    if (strlen(name_of(q, p, i)) > 10) text_append(out, "\n%16s", "");
    if (x->refused[0])
        text_append(out, " cannot run: %s\n", x->refused);
    else if (!x->fits)
        text_append(out, "%18s%7s%10s%10s\n", "does not fit", "-", "-", bytes);
    else
        text_append(out, "%18s %6s%10s%10s %s\n", step,
                    text_three_digits(efficiency, sizeof efficiency, 100 * x->efficiency),
                    text_three_digits(rate, sizeof rate, x->samples_per_s), bytes, cause);
}

/* Returns true if no policy can run on this many GPUs, all for the same reason. */
static bool none_can_run(const whatif_question *q, const whatif_answer *a, int size)
{
    const char *reason = a->points[0][size].refused;
    int p = 0;
    while (p < q->policies.count && *reason && strcmp(a->points[p][size].refused, reason) == 0) p++;
    return p == q->policies.count;
}

/* Writes one table of all policies, by number of GPUs. */
static void table(const whatif_question *q, const whatif_answer *a, text_buffer *out)
{
    text_append(out, "\n%5s %-10s%18s%7s%10s%10s %s\n", "GPUs", "policy",
                q->draws > 0 ? "step, ms (range)" : "step, ms", "eff, %", "samples/s", "memory",
                "limited by");
    for (int i = 0; i < q->size_count; i++) {
        bool none = none_can_run(q, a, i);
        if (none) text_append(out, "%5d cannot run: %s\n", q->gpus[i], a->points[0][i].refused);
        for (int p = 0; p < q->policies.count && !none; p++)
            if (!is_repeated(q, p, i)) table_row(q, a, p, i, out);
    }
    for (int p = 0; p < q->policies.count; p++) mixed_lines(q, a, p, out);
}

/* Writes seconds as ms, without the sign of a value that is rounded to 0. */
static void hundredths(double seconds, text_buffer *out)
{
    double ms = 1e3 * seconds;
    if (isnan(ms))
        text_append(out, "%8s", "-");
    else
        text_append(out, " %7.*f", fabs(ms) < 1000 ? 2 : 0, fabs(ms) < 0.005 ? 0 : ms);
}

/* Writes for each point of several GPUs that can run the causes of lost time. Leaves out a cause that loses
 * nothing at any point. */
static void lost_table(const whatif_question *q, const whatif_answer *a, text_buffer *out)
{
    bool shown[LOST_CAUSES] = {false};
    int first = 0, rows = 0;
    while (first < q->size_count && whatif_is_alone(q, first)) first++;
    for (int p = 0; p < q->policies.count; p++)
        for (int i = first; i < q->size_count; i++) {
            rows += a->points[p][i].fits;
            for (int c = 0; c < LOST_CAUSES; c++)
                shown[c] = shown[c] || fabs(a->points[p][i].lost.of[c]) >= 5e-6;
        }
    if (rows == 0) return;
    text_append(
        out, "\nLost per step, ms: how much longer a step takes than on one GPU alone, and why\n%-12s%5s%8s",
        "", "GPUs", "lost =");
    for (int c = 0; c < LOST_CAUSES; c++) {
        if (!shown[c]) continue;
        bool divided = q->why && c == LOST_COMMUNICATION;
        text_append(out, divided ? "%8s%8s" : "%8s", divided ? "in host" : info_of(q, c)->head, "between");
    }
    text_append(out, "\n");
    for (int p = 0; p < q->policies.count; p++) {
        const char *name = q->policies.names[p];
        for (int i = first; i < q->size_count; i++) {
            const whatif_point *x = &a->points[p][i];
            if (!x->fits) continue;
            text_append(out, "%-12s%s%5d", name, strlen(name) > 12 ? "\n            " : "", q->gpus[i]);
            name = "";
            hundredths(x->lost.step_s - x->lost.alone_s, out);
            for (int c = 0; c < LOST_CAUSES; c++) {
                bool divided = q->why && c == LOST_COMMUNICATION;
                if (shown[c]) hundredths(x->lost.of[c] - (divided ? x->between_hosts_s : 0), out);
                if (shown[c] && divided) hundredths(x->between_hosts_s, out);
            }
            text_append(out, "\n");
        }
    }
    const char *separator = "";
    for (int c = 0; c < LOST_CAUSES; c++) {
        if (!shown[c]) continue;
        if (q->why && c == LOST_COMMUNICATION)
            text_append(out, "%sin host, between: exposed communication, of one host and added by others",
                        separator);
        else
            text_append(out, "%s%s: %s", separator, info_of(q, c)->head, info_of(q, c)->meaning);
        separator = "; ";
    }
    if (*separator) text_append(out, ".\n");
    if (shown[LOST_PYTHON] && !shown[LOST_DATA] && run_config_loader_workers(q->config, 1) == 0)
        text_append(out, "Batches take no time here; --loader-workers N adds PyTorch's loaders.\n");
}

static void dependence_lines(const whatif_dependence *d, text_buffer *out)
{
    if (!d->constant) return;
    text_append(out,
                "The range depends most on the constant %s, %.4g to %.4g: the step takes %.3f to %.3f ms.\n",
                d->constant, d->low, d->high, d->step_low_ms, d->step_high_ms);
}

static void next_lines(const whatif_question *q, const whatif_verdict *v, text_buffer *out)
{
    char range[64] = "";
    if (q->draws > 0) snprintf(range, sizeof range, " (%.3f to %.3f)", v->low, v->high);
    text_append(out, "It is %.3f%s times as fast as %s", v->ratio, range, name_of(q, v->next, v->size));
    if (v->undecided)
        text_append(out, ": undecided, because the %s 1", q->draws > 0 ? "range contains" : "ratio is");
    text_append(out, ".\n");
}

/* Says which policy trains the most samples/s, what limits it, and what to try. */
static void best_lines(const whatif_question *q, const whatif_answer *a, text_buffer *out)
{
    const whatif_verdict *v = &a->verdict;
    int gpus = q->gpus[v->size];
    if (whatif_is_alone(q, v->best < 0 ? q->size_count - 1 : v->size)) return;
    if (v->best < 0) {
        text_append(out, "\nNo policy can run on these GPUs of %.0f GiB.\n", a->gpu_gib);
        return;
    }
    const whatif_point *best = &a->points[v->best][v->size];
    int cause = largest_cause(best);
    char rate[24], share[16];
    text_append(out, "\nBest on %d GPUs: %s, %s samples/s", gpus, name_of(q, v->best, v->size),
                text_three_digits(rate, sizeof rate, best->samples_per_s));
    if (cause >= 0)
        text_append(out, ". It loses most by %s, %s of a step", info_of(q, cause)->name,
                    share_of(share, sizeof share, best, cause));
    text_append(out, ".\n");
    if (v->next >= 0) next_lines(q, v, out);
    dependence_lines(&a->dependence, out);
    if (!json_is_object(a->next)) return;
    text_append(out, "Next: ");
    report_next(a->next, out);
    text_append(out, ".\n");
}

void whatif_text(const whatif_question *q, const whatif_answer *a, text_buffer *out)
{
    report_workload(a->workload, out);
    text_append(out, "\nSIMULATED: profile %s", q->profile);
    for (int i = 0; i < q->word_count; i++) text_append(out, " %s", q->words[i]);
    int line = (int)strcspn(a->hardware, "\n"); /* the lines after it describe a composed cluster */
    text_append(out, "\n%.*s", line, a->hardware);
    char one[80];
    with_limits(q, one, sizeof one, " to ", a->one_gpu.step_ms, a->one_gpu.low_ms, a->one_gpu.high_ms);
    if (q->step_ms > 0)
        text_append(out, "; one GPU takes %.3f ms, as measured\n", q->step_ms);
    else
        text_append(out, "; one GPU takes %s ms\n", one);
    if (a->hardware[line]) text_append(out, "%s\n", a->hardware + line + 1);
    if (!a->one_gpu.fits)
        text_append(out,
                    "One GPU of %.0f GiB does not hold the model: its time, with which others are compared, "
                    "is that of a GPU with more memory.\n",
                    a->gpu_gib);
    if (a->estimated)
        text_append(out, "The efficiency of one GPU is an estimate; a measurement of one GPU replaces the "
                         "estimate, --measured 1:SAMPLES_PER_S.\n");
    if (q->measured_gpus)
        text_append(out,
                    "%s on %d GPUs: %s samples/s measured, %s by the model. From %d GPUs on a step%s takes "
                    "%.3f ms %s than the model says.\n",
                    q->measured_policy, q->measured_gpus, report_value(CELL_RATE, q->measured_rate).text,
                    report_value(CELL_RATE, a->modeled_rate).text, q->measured_gpus,
                    q->policies.count > 1 ? " of every policy" : "", fabs(a->added_ms),
                    a->added_ms < 0 ? "less" : "more");
    table(q, a, out);
    if (q->config->run.stages == 1) lost_table(q, a, out);
    best_lines(q, a, out);
    text_append(out, "\nEfficiency: samples/s over those of as many GPUs alone. Steps are means over ranks "
                     "(dp: of rank 0) and steps.\n"
                     "Limited by: the largest part of the lost time, as a share of the step.\n");
    if (q->draws > 0)
        text_append(out, "In brackets: limits over %d draw%s of the profile's constants from their ranges.\n",
                    q->draws, q->draws == 1 ? "" : "s");
    if (q->unknown_stack)
        text_append(out,
                    "The stack is unknown: the limits reach from full overlap of exchange and backward pass "
                    "to none%s.\n",
                    q->measured_gpus ? "" : ", and contain what such a stack may lose for other reasons");
}

void whatif_csv(const whatif_question *q, const whatif_answer *a, text_buffer *out)
{
    text_append(out, "profile,model,batch_per_rank,policy,gpus,step_s,exposed_communication_s,waiting_s,"
                     "weak_scaling_efficiency,samples_per_s,memory_peak_bytes,step_low_s,step_high_s,"
                     "weak_scaling_efficiency_low,weak_scaling_efficiency_high,tree_step_s,fits\n");
    const char *model = json_string_value(json_object_get(a->workload, "model"));
    json_int_t batch = json_integer_value(json_object_get(a->workload, "batch_per_rank"));
    for (int p = 0; p < q->policies.count; p++)
        for (int i = 0; i < q->size_count; i++) {
            const whatif_point *x = &a->points[p][i];
            if (is_repeated(q, p, i)) continue;
            report_csv_text(q->profile, out);
            text_append(out, ",");
            report_csv_text(model, out);
            text_append(out, ",%lld,", (long long)batch);
            report_csv_text(policy_of(q, p, i), out);
            text_append(out, ",%d", q->gpus[i]);
            if (x->refused[0]) {
                text_append(out, ",,,,,,,,,,,,0\n");
                continue;
            }
            text_append(out, ",%.9g,%.9g,%.9g,%.9g,%.9g,%lld,%.9g,%.9g,%.9g,%.9g,", x->step_ms / 1e3,
                        x->exposed_ms / 1e3, x->waiting_ms / 1e3, x->efficiency, x->samples_per_s,
                        (long long)x->most_bytes, x->low_ms / 1e3, x->high_ms / 1e3, x->least_efficiency,
                        x->most_efficiency);
            if (report_find(x->algorithms, "algorithm", "tree")) text_append(out, "%.9g", x->step_ms / 1e3);
            text_append(out, ",%d\n", x->fits);
        }
}

/* Returns the verdict, or null if no policy can run on several GPUs. */
static json_t *verdict_to_json(const whatif_question *q, const whatif_answer *a)
{
    const whatif_verdict *v = &a->verdict;
    if (v->best < 0) return json_null();
    int cause = largest_cause(&a->points[v->best][v->size]);
    json_t *next = json_null();
    if (v->next >= 0)
        next = json_pack("{s:s, s:f, s:f, s:f}", "policy", q->policies.names[v->next], "ratio", v->ratio,
                         "ratio_low", v->low, "ratio_high", v->high);
    return json_pack("{s:s, s:i, s:s?, s:b, s:o}", "policy", q->policies.names[v->best], "gpus",
                     q->gpus[v->size], "limited_by", cause < 0 ? NULL : lost_causes[cause].key, "undecided",
                     (int)v->undecided, "next", next);
}

static json_t *dependence_to_json(const whatif_dependence *d)
{
    return d->constant ? json_pack("{s:s, s:f, s:f, s:f, s:f}", "constant", d->constant, "low", d->low,
                                   "high", d->high, "step_at_low_s", d->step_low_ms / 1e3, "step_at_high_s",
                                   d->step_high_ms / 1e3)
                       : json_null();
}

json_t *whatif_json(const whatif_question *q, const whatif_answer *a)
{
    json_t *rows = json_array(), *options = json_array(), *measured = json_array();
    if (q->measured_gpus)
        json_array_append_new(measured, json_pack("{s:s, s:i, s:f, s:f, s:f}", "policy", q->measured_policy,
                                                  "gpus", q->measured_gpus, "samples_per_s", q->measured_rate,
                                                  "modeled_samples_per_s", a->modeled_rate, "added_s",
                                                  a->added_ms / 1e3));
    for (int i = 0; i < q->word_count; i++) json_array_append_new(options, json_string(q->words[i]));
    for (int p = 0; p < q->policies.count; p++)
        for (int i = 0; i < q->size_count; i++) {
            const whatif_point *x = &a->points[p][i];
            if (is_repeated(q, p, i)) continue;
            json_array_append_new(
                rows, json_pack("{s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:b, "
                                "s:s?, s:o, s:o}",
                                "policy", policy_of(q, p, i), "gpus", q->gpus[i], "step_s",
                                report_json_number(x->step_ms / 1e3), "step_low_s",
                                report_json_number(x->low_ms / 1e3), "step_high_s",
                                report_json_number(x->high_ms / 1e3), "exposed_communication_s",
                                report_json_number(x->exposed_ms / 1e3), "waiting_s",
                                report_json_number(x->waiting_ms / 1e3), "lost", lost_time_to_json(&x->lost),
                                "between_hosts_s", report_json_number(x->between_hosts_s),
                                "weak_scaling_efficiency", report_json_number(x->efficiency),
                                "weak_scaling_efficiency_low", report_json_number(x->least_efficiency),
                                "weak_scaling_efficiency_high", report_json_number(x->most_efficiency),
                                "samples_per_s", report_json_number(x->samples_per_s), "memory_peak_bytes",
                                (json_int_t)x->most_bytes, "fits", (int)x->fits, "refused",
                                x->refused[0] ? x->refused : NULL, "tree_step_s",
                                report_find(x->algorithms, "algorithm", "tree") ? json_real(x->step_ms / 1e3)
                                                                                : json_null(),
                                "algorithms", x->algorithms ? json_incref(x->algorithms) : json_null()));
        }
    return json_pack("{s:i, s:b, s:s, s:b, s:o, s:O, s:b, s:f, s:f, s:f, s:b, s:b, s:o, s:o, s:o, s:o, s:O?}",
                     "schema_version", WHATIF_SCHEMA_VERSION, "simulated", 1, "profile", q->profile,
                     "efficiencies_estimated", (int)a->estimated, "options", options, "workload", a->workload,
                     "one_gpu_fits", (int)a->one_gpu.fits, "one_gpu_step_s", a->one_gpu.step_ms / 1e3,
                     "one_gpu_step_low_s", a->one_gpu.low_ms / 1e3, "one_gpu_step_high_s",
                     a->one_gpu.high_ms / 1e3, "server_per_rank", (int)q->server_per_rank, "unknown_stack",
                     (int)q->unknown_stack, "measured", measured, "points", rows, "verdict",
                     verdict_to_json(q, a), "range_depends_on", dependence_to_json(&a->dependence), "next",
                     a->next);
}
