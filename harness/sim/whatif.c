#include "harness/sim/whatif.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "harness/report/report.h"
#include "harness/result/run_result.h"
#include "harness/sim/next.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- parsing ---------------------------------------------------------------------------------- */

/* Copies the word before the next comma and moves past the comma. Returns false if the word does not fit. */
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

/* Continues the series of numbers up to `end` by the ratio of the last two. */
static status go_on(whatif_question *q, int64_t end)
{
    int n = q->size_count;
    int64_t ratio = n > 1 ? q->gpus[n - 1] / q->gpus[n - 2] : 2;
    if (ratio < 2) ratio = 2;
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

/* ---- asking ----------------------------------------------------------------------------------- */

/* Defaults of this command. After two steps buckets have been rebuilt, so later steps are alike. */
static const char warmup[] = "--warmup 2", length[] = "--steps 3";

static virtual_workload workload_of(const whatif_question *q, const char *policy, int gpus, int draw,
                                    double efficiency)
{
    virtual_workload w = {
        .profile = q->profile,
        .policy = policy,
        .gpus = gpus,
        .words = q->words,
        .word_count = q->word_count,
        .draw = draw,
        .efficiency = efficiency,
        .variant = {.by_symmetry = true, .may_be_one_machine = true, .splits_python = true}};
    char servers[24] = "";
    if (policy && q->server_per_rank && strcmp(policy, "sync") == 0)
        snprintf(servers, sizeof servers, " --servers %d", gpus);
    snprintf(w.options, sizeof w.options, "%s %s%s", warmup, q->has_length ? "" : length, servers);
    return w;
}

/* Measures a workload. If a GPU has too little memory, measures the same workload on GPUs with enough. */
static status measure(const virtual_workload *w, virtual_figures *figures, bool *fits)
{
    virtual_workload large = *w;
    status rc = virtual_measure(w, figures);
    *fits = rc != STATUS_SYSTEM;
    if (*fits) return rc;
    error_clear();
    large.variant.unlimited_memory = true;
    return virtual_measure(&large, figures);
}

/* Runs a point. `alone` is the point of one GPU and `alone_job` its job. Both are NULL for this point itself.
 */
static status ask_point(const virtual_workload *w, const whatif_question *q, const whatif_point *alone,
                        const json_t *alone_job, virtual_figures *figures, whatif_point *out)
{
    bool fits;
    TRY(measure(w, figures, &fits));
    if (!isfinite(figures->step_ms))
        return fail(STATUS_CONFIG, "--warmup: expected fewer steps than %d GPUs train, got all of them",
                    w->gpus);
    double one = alone ? alone->samples_per_s : figures->samples_per_s;
    int gpus = alone ? w->gpus * q->devices : 1;
    *out = (whatif_point){.step_ms = 1e3 * report_number_at(figures->job, "phases.step_s.mean_s"),
                          .exposed_ms =
                              1e3 * report_number_at(figures->job, "phases.exposed_communication_s.mean_s"),
                          .waiting_ms = 1e3 * report_number_at(figures->job, "phases.waiting_s.mean_s"),
                          .efficiency = figures->samples_per_s / one / gpus,
                          .samples_per_s = figures->samples_per_s,
                          .lost = {.step_s = NAN},
                          .most_bytes = figures->most_bytes,
                          .fits = fits};
    if (q->stages == 1)
        out->lost = lost_time_between(figures->job, alone ? alone_job : figures->job, NULL, true);
    json_t *algorithms = json_object_get(figures->job, "algorithms");
    if (w->draw == 0 && json_is_array(algorithms)) out->algorithms = json_incref(algorithms);
    return STATUS_OK;
}

/* Runs one GPU, without the options of stages and without --slow of another rank. *efficiency is 0 if
 * there is no measured step to fit. */
static status ask_one_gpu(const whatif_question *q, int draw, virtual_figures *figures, double *efficiency,
                          whatif_point *out)
{
    static const option others[] = {{"stages", OPTION_TEXT, .help = ""},
                                    {"stages-on", OPTION_TEXT, .help = ""},
                                    {"schedule", OPTION_TEXT, .help = ""},
                                    {"slow", OPTION_TEXT, .help = ""}};
    const option_table table = {"Several GPUs", others, q->slow_rank > 0 ? 4 : 3};
    const char *left_out;
    virtual_workload alone = workload_of(q, NULL, 1, draw, 0);
    char **words = calloc((size_t)q->word_count + 1, sizeof *words);
    if (!words) return fail(STATUS_SYSTEM, "no memory for a command line");
    status rc = options_take(&(option_binding){.table = &table, .storage = &left_out}, 1, q->word_count,
                             q->words, words, &alone.word_count);
    alone.words = words;
    alone.variant.unlimited_memory = q->step_ms > 0; /* A measured step fits into the memory. */
    *efficiency = 0;
    if (rc == STATUS_OK && q->step_ms > 0) rc = virtual_fit(&alone, q->step_ms, figures, efficiency);
    alone.efficiency = *efficiency;
    if (rc == STATUS_OK) rc = ask_point(&alone, q, NULL, NULL, figures, out);
    free(words);
    return rc;
}

/* Adds a draw to a point. Draw 0 sets the figures; the other draws widen the limits. */
static void put(whatif_point *to, const whatif_point *p, int draw)
{
    if (draw == 0) {
        *to = *p;
        to->low_ms = to->high_ms = p->step_ms;
        to->least_efficiency = to->most_efficiency = p->efficiency;
    }
    to->drawn[draw] = p->samples_per_s;
    to->low_ms = fmin(to->low_ms, p->step_ms);
    to->high_ms = fmax(to->high_ms, p->step_ms);
    to->least_efficiency = fmin(to->least_efficiency, p->efficiency);
    to->most_efficiency = fmax(to->most_efficiency, p->efficiency);
}

/* Makes a row of the error of this thread. */
static status refuse(whatif_point *out)
{
    *out = (whatif_point){.step_ms = NAN,
                          .exposed_ms = NAN,
                          .waiting_ms = NAN,
                          .efficiency = NAN,
                          .samples_per_s = NAN,
                          .lost = {.step_s = NAN}};
    snprintf(out->refused, sizeof out->refused, "%s", error_message());
    error_clear();
    return STATUS_OK;
}

/* Servers are all simulated, since each has other parameters, and the time grows with the cube of their
 * number. */
static bool has_too_many_servers(const whatif_question *q, int p, int i)
{
    enum { MOST_SERVERS = 32 };
    return q->server_per_rank && strcmp(q->policies.names[p], "sync") == 0 && q->gpus[i] > MOST_SERVERS;
}

static status ask_all(const whatif_question *q, int draw, virtual_figures *figures, whatif_answer *out)
{
    whatif_point one, point;
    double efficiency;
    TRY(ask_one_gpu(q, draw, figures, &efficiency, &one));
    put(&out->one_gpu, &one, draw);
    if (draw == 0) out->efficiency = efficiency;
    json_t *alone = json_incref(figures->job);
    status rc = STATUS_OK, refusal = STATUS_OK;
    bool any = false;
    if (!out->workload) out->workload = json_incref(figures->workload);
    for (int p = 0; p < q->policies.count; p++)
        for (int i = 0; i < q->size_count; i++) {
            virtual_workload w = workload_of(q, q->policies.names[p], q->gpus[i], draw, efficiency);
            point = one;
            if (has_too_many_servers(q, p, i))
                rc = fail(STATUS_CONFIG,
                          "%d servers take minutes to simulate: --policy sync --servers %d does it", w.gpus,
                          w.gpus);
            else if (w.gpus * q->devices > 1)
                rc = ask_point(&w, q, &one, alone, figures, &point);
            /* If there are several policies, the row of a job that cannot run says why. */
            if ((rc == STATUS_CONFIG || rc == STATUS_USAGE) && q->policies.count > 1) {
                refusal = rc;
                rc = refuse(&point);
            }
            TRY_GOTO(rc, rc, done);
            any = any || !point.refused[0];
            put(&out->points[p][i], &point, draw);
            if (draw == 0 && figures->hardware[0])
                snprintf(out->hardware, sizeof out->hardware, "%s", figures->hardware);
        }
    if (!any) rc = fail(refusal, "%s", out->points[0][0].refused);
done:
    json_decref(alone);
    return rc;
}

static status describe_gpu(const char *profile, whatif_answer *out)
{
    sim_profile *p = NULL;
    TRY(sim_profile_load(profile, &p));
    out->gpu_gib = sim_profile_get(p, SIM_GPU_MEMORY);
    for (int c = SIM_CONVOLUTION_FORWARD; c <= SIM_OPTIMIZER; c++)
        if (sim_profile_has(p, (sim_constant)c) && strcmp(p->provenance[c].tag, "assumed") == 0)
            out->estimated = true;
    sim_profile_free(&p);
    return STATUS_OK;
}

/* Returns the policy with the most samples/s on the largest number of GPUs, or -1 if none fits. */
static int best_policy(const whatif_question *q, const whatif_answer *a)
{
    int best = -1, last = q->size_count - 1;
    for (int p = 0; p < q->policies.count; p++)
        if (a->points[p][last].fits &&
            (best < 0 || a->points[p][last].samples_per_s > a->points[best][last].samples_per_s))
            best = p;
    return best;
}

/* Tries settings for the best policy on the largest number of GPUs. */
static status try_next(const whatif_question *q, whatif_answer *a)
{
    int engine, last = q->gpus[q->size_count - 1], best = best_policy(q, a);
    if (best < 0 || last * q->devices == 1) return STATUS_OK;
    TRY(engine_of_policy(q->policies.names[best], &engine));
    virtual_workload w = workload_of(q, q->policies.names[best], last, 0, a->efficiency);
    command_words words = {0};
    TRY(virtual_words(&w, &words));
    status rc = virtual_next(words.words, words.count, engine, w.policy, last, &a->next);
    free(words.words);
    return rc;
}

status whatif_ask(const whatif_question *q, whatif_answer *out)
{
    virtual_figures figures = {0};
    status rc = describe_gpu(q->profile, out);
    if (q->step_ms > 0 || q->recorded) out->estimated = false;
    int64_t begin_ns = clock_now_ns();
    for (int draw = 0; draw <= q->draws && rc == STATUS_OK; draw++) {
        rc = ask_all(q, draw, &figures, out);
        double once_s = 1e-9 * (double)(clock_now_ns() - begin_ns);
        if (draw == 0 && once_s * q->draws > 5 && !q->quiet && rc == STATUS_OK)
            log_info("about %.0f s left for the ranges; --draws 0 leaves them out", once_s * q->draws);
    }
    virtual_figures_free(&figures);
    return rc == STATUS_OK ? try_next(q, out) : rc;
}

void whatif_answer_close(whatif_answer *a)
{
    json_decref(a->next);
    json_decref(a->workload);
    for (int p = 0; p < POLICY_LIST_MOST; p++)
        for (int i = 0; i < WHATIF_SIZES; i++) json_decref(a->points[p][i].algorithms);
    *a = (whatif_answer){0};
}

/* ---- showing ---------------------------------------------------------------------------------- */

/* Formats "285 (280 to 301)" with three digits. */
static void with_limits(char *out, size_t size, const char *to, double value, double low, double high)
{
    char texts[3][24];
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
        text_append(out, "%d GPUs, per step: ", q->gpus[i]);
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

static const char *name_of(const whatif_question *q, int p)
{
    return q->server_per_rank && strcmp(q->policies.names[p], "sync") == 0 ? "sync, a server per rank"
                                                                           : q->policies.names[p];
}

static void table_row(const whatif_question *q, const whatif_answer *a, int p, int i, text_buffer *out)
{
    const whatif_point *x = &a->points[p][i];
    char bytes[32], step[80], efficiency[24], rate[24], cause[48] = "";
    with_limits(step, sizeof step, "-", x->step_ms, x->low_ms, x->high_ms);
    text_format_bytes(bytes, sizeof bytes, (double)x->most_bytes);
    if (largest_cause(x) >= 0)
        snprintf(cause, sizeof cause, "%s %.3g %%", lost_causes[largest_cause(x)].head,
                 100 * x->lost.of[largest_cause(x)] / x->lost.step_s);
    text_append(out, "%5d %-10s", q->gpus[i], name_of(q, p));
    if (strlen(name_of(q, p)) > 10) text_append(out, "\n%16s", "");
    if (x->refused[0])
        text_append(out, " cannot run: %s\n", x->refused);
    else if (!x->fits)
        text_append(out, "%18s%7s%10s%10s\n", "does not fit", "-", "-", bytes);
    else
        text_append(out, "%18s%7s%10s%10s %s\n", step,
                    text_three_digits(efficiency, sizeof efficiency, 100 * x->efficiency),
                    text_three_digits(rate, sizeof rate, x->samples_per_s), bytes, cause);
}

/* Writes one table of all policies, by number of GPUs. */
static void table(const whatif_question *q, const whatif_answer *a, text_buffer *out)
{
    text_append(out, "\n%5s %-10s%18s%7s%10s%10s %s\n", "GPUs", "policy", "step, ms (range)", "eff, %",
                "samples/s", "memory", "limited by");
    for (int i = 0; i < q->size_count; i++)
        for (int p = 0; p < q->policies.count; p++) table_row(q, a, p, i, out);
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

/* Writes for each point the causes of lost time. Leaves out a cause that loses nothing at any point. */
static void lost_table(const whatif_question *q, const whatif_answer *a, text_buffer *out)
{
    bool shown[LOST_CAUSES] = {false};
    for (int p = 0; p < q->policies.count; p++)
        for (int i = 0; i < q->size_count; i++)
            for (int c = 0; c < LOST_CAUSES; c++)
                shown[c] = shown[c] || fabs(a->points[p][i].lost.of[c]) >= 5e-6;
    text_append(
        out, "\nLost per step, ms: how much longer a step takes than on one GPU alone, and why\n%-12s%5s%8s",
        "", "GPUs", "lost =");
    for (int c = 0; c < LOST_CAUSES; c++)
        if (shown[c]) text_append(out, "%8s", lost_causes[c].head);
    text_append(out, "\n");
    for (int p = 0; p < q->policies.count; p++)
        for (int i = 0; i < q->size_count; i++) {
            const whatif_point *x = &a->points[p][i];
            text_append(out, "%-12s%s%5d", i ? "" : q->policies.names[p],
                        !i && strlen(q->policies.names[p]) > 12 ? "\n            " : "", q->gpus[i]);
            if (x->fits) hundredths(x->lost.step_s - x->lost.alone_s, out);
            for (int c = 0; c < LOST_CAUSES && x->fits; c++)
                if (shown[c]) hundredths(x->lost.of[c], out);
            text_append(out, "%s\n", x->fits ? "" : x->refused[0] ? "  cannot run" : "  does not fit");
        }
    const char *separator = "";
    for (int c = 0; c < LOST_CAUSES; c++) {
        if (!shown[c]) continue;
        text_append(out, "%s%s: %s", separator, lost_causes[c].head, lost_causes[c].meaning);
        separator = "; ";
    }
    if (*separator) text_append(out, ".\n");
    if (shown[LOST_PYTHON] && !shown[LOST_DATA])
        text_append(out, "Batches take no time here; --loader-workers N adds PyTorch's loaders.\n");
}

/* The policy with the most samples/s, and the policy that comes nearest to it. */
typedef struct verdict {
    int best, next; /* Indices of policies, or -1 if there is none. */
    /* Samples/s of `best` divided by the samples/s of `next`, with limits over the draws. Both policies have
     * the same constants in a draw, so a constant that slows both does not decide. */
    double ratio, low, high;
} verdict;

/* Returns the comparison of the best policy with another policy that fits. */
static verdict compare(const whatif_question *q, const whatif_answer *a, int best, int other)
{
    int last = q->size_count - 1;
    const double *mine = a->points[best][last].drawn, *others = a->points[other][last].drawn;
    verdict v = {best, other, mine[0] / others[0], INFINITY, 0};
    for (int d = 0; d <= q->draws; d++) {
        v.low = fmin(v.low, mine[d] / others[d]);
        v.high = fmax(v.high, mine[d] / others[d]);
    }
    return v;
}

static bool is_undecided(const verdict *v)
{
    return v->next >= 0 && v->low <= 1;
}

/* Compares the policies that fit on the largest number of GPUs. The next policy is the fastest of those that
 * are not slower than the best policy in some draw. If all others are slower in every draw, it is the fastest
 * of the others. */
static verdict make_verdict(const whatif_question *q, const whatif_answer *a)
{
    verdict v = {.best = best_policy(q, a), .next = -1};
    for (int p = 0; p < q->policies.count && v.best >= 0; p++) {
        if (p == v.best || !a->points[p][q->size_count - 1].fits) continue;
        verdict other = compare(q, a, v.best, p);
        bool nearer = is_undecided(&other) == is_undecided(&v) ? other.ratio < v.ratio : is_undecided(&other);
        if (v.next < 0 || nearer) v = other;
    }
    return v;
}

static void next_lines(const whatif_question *q, const verdict *v, text_buffer *out)
{
    char range[64] = "";
    if (q->draws > 0) snprintf(range, sizeof range, " (%.3f to %.3f)", v->low, v->high);
    text_append(out, "It is %.3f%s times as fast as %s", v->ratio, range, name_of(q, v->next));
    if (is_undecided(v))
        text_append(out, ": undecided, because the %s 1", q->draws > 0 ? "range contains" : "ratio is");
    text_append(out, ".\n");
}

/* Says which policy trains the most samples/s on the largest number of GPUs, what limits it, and what to
 * try. */
static void best_lines(const whatif_question *q, const whatif_answer *a, text_buffer *out)
{
    verdict v = make_verdict(q, a);
    int gpus = q->gpus[q->size_count - 1];
    if (v.best < 0) {
        text_append(out, "\nNo policy can run on %d GPUs of %.0f GiB.\n", gpus, a->gpu_gib);
        return;
    }
    const whatif_point *best = &a->points[v.best][q->size_count - 1];
    int cause = largest_cause(best);
    text_append(out, "\nBest on %d GPUs: %s, %s samples/s", gpus, name_of(q, v.best),
                report_value(CELL_RATE, best->samples_per_s).text);
    if (cause >= 0)
        text_append(out, ". It loses most by %s, %.1f %% of a step", lost_causes[cause].name,
                    100 * best->lost.of[cause] / best->lost.step_s);
    text_append(out, ".\n");
    if (v.next >= 0) next_lines(q, &v, out);
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
    with_limits(one, sizeof one, " to ", a->one_gpu.step_ms, a->one_gpu.low_ms, a->one_gpu.high_ms);
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
                         "estimate, --step-ms MS or --samples-per-s N.\n");
    table(q, a, out);
    if (q->stages == 1) lost_table(q, a, out);
    best_lines(q, a, out);
    text_append(
        out,
        "\nEfficiency: samples/s over those of as many GPUs alone. Steps are means over ranks and steps.\n"
        "In brackets: limits over %d draws of the profile's constants from their ranges.\n"
        "Limited by: the largest part of the lost time, as a share of the step.\n",
        q->draws);
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
            if (x->refused[0]) {
                text_append(out, "\"%s\",%s,%lld,%s,%d,,,,,,,,,,,,0\n", q->profile, model, (long long)batch,
                            q->policies.names[p], q->gpus[i]);
                continue;
            }
            text_append(out, "\"%s\",%s,%lld,%s,%d,%.9g,%.9g,%.9g,%.9g,%.9g,%lld,%.9g,%.9g,%.9g,%.9g,",
                        q->profile, model, (long long)batch, q->policies.names[p], q->gpus[i],
                        x->step_ms / 1e3, x->exposed_ms / 1e3, x->waiting_ms / 1e3, x->efficiency,
                        x->samples_per_s, (long long)x->most_bytes, x->low_ms / 1e3, x->high_ms / 1e3,
                        x->least_efficiency, x->most_efficiency);
            if (report_find(x->algorithms, "algorithm", "tree")) text_append(out, "%.9g", x->step_ms / 1e3);
            text_append(out, ",%d\n", x->fits);
        }
}

/* Returns the verdict, or null if no policy can run on the largest number of GPUs. */
static json_t *verdict_to_json(const whatif_question *q, const whatif_answer *a)
{
    verdict v = make_verdict(q, a);
    if (v.best < 0) return json_null();
    int cause = largest_cause(&a->points[v.best][q->size_count - 1]);
    json_t *next = json_null();
    if (v.next >= 0)
        next = json_pack("{s:s, s:f, s:f, s:f}", "policy", q->policies.names[v.next], "ratio", v.ratio,
                         "ratio_low", v.low, "ratio_high", v.high);
    return json_pack("{s:s, s:i, s:s?, s:b, s:o}", "policy", q->policies.names[v.best], "gpus",
                     q->gpus[q->size_count - 1], "limited_by", cause < 0 ? NULL : lost_causes[cause].key,
                     "undecided", (int)is_undecided(&v), "next", next);
}

json_t *whatif_json(const whatif_question *q, const whatif_answer *a)
{
    json_t *rows = json_array(), *options = json_array();
    for (int i = 0; i < q->word_count; i++) json_array_append_new(options, json_string(q->words[i]));
    for (int p = 0; p < q->policies.count; p++)
        for (int i = 0; i < q->size_count; i++) {
            const whatif_point *x = &a->points[p][i];
            json_array_append_new(
                rows,
                json_pack(
                    "{s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:b, s:s?, s:o, s:o}",
                    "policy", q->policies.names[p], "gpus", q->gpus[i], "step_s",
                    report_json_number(x->step_ms / 1e3), "step_low_s", report_json_number(x->low_ms / 1e3),
                    "step_high_s", report_json_number(x->high_ms / 1e3), "exposed_communication_s",
                    report_json_number(x->exposed_ms / 1e3), "waiting_s",
                    report_json_number(x->waiting_ms / 1e3), "lost", lost_time_to_json(&x->lost),
                    "weak_scaling_efficiency", report_json_number(x->efficiency),
                    "weak_scaling_efficiency_low", report_json_number(x->least_efficiency),
                    "weak_scaling_efficiency_high", report_json_number(x->most_efficiency), "samples_per_s",
                    report_json_number(x->samples_per_s), "memory_peak_bytes", (json_int_t)x->most_bytes,
                    "fits", (int)x->fits, "refused", x->refused[0] ? x->refused : NULL, "tree_step_s",
                    report_find(x->algorithms, "algorithm", "tree") ? json_real(x->step_ms / 1e3)
                                                                    : json_null(),
                    "algorithms", x->algorithms ? json_incref(x->algorithms) : json_null()));
        }
    return json_pack("{s:i, s:b, s:s, s:b, s:o, s:O, s:b, s:f, s:f, s:f, s:b, s:o, s:o, s:O?}",
                     "schema_version", WHATIF_SCHEMA_VERSION, "simulated", 1, "profile", q->profile,
                     "efficiencies_estimated", (int)a->estimated, "options", options, "workload", a->workload,
                     "one_gpu_fits", (int)a->one_gpu.fits, "one_gpu_step_s", a->one_gpu.step_ms / 1e3,
                     "one_gpu_step_low_s", a->one_gpu.low_ms / 1e3, "one_gpu_step_high_s",
                     a->one_gpu.high_ms / 1e3, "server_per_rank", (int)q->server_per_rank, "points", rows,
                     "verdict", verdict_to_json(q, a), "next", a->next);
}
