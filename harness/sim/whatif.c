#include "harness/sim/whatif.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "harness/report/report.h"
#include "harness/sim/next.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Appends the numbers of steps, unless the user's words have them. */
static void set_length(const whatif_question *q, int warmup, int steps, virtual_workload *w)
{
    size_t used = strlen(w->options);
    used += (size_t)snprintf(w->options + used, sizeof w->options - used, " --warmup %d", warmup);
    if (!q->has_length) snprintf(w->options + used, sizeof w->options - used, " --steps %d", steps);
}

static virtual_workload workload_of(const whatif_question *q, const char *policy, int gpus, int draw,
                                    double efficiency)
{
    virtual_workload w = {.profile = q->profile,
                          .policy = policy,
                          .gpus = gpus,
                          .words = q->words,
                          .word_count = q->word_count,
                          .draw = draw,
                          .efficiency = efficiency,
                          .variant = {.by_symmetry = true,
                                      .may_be_one_machine = true,
                                      .splits_python = true,
                                      .overrides = q->overrides,
                                      .override_count = q->override_count}};
    if (policy && q->server_per_rank && strcmp(policy, "sync") == 0)
        snprintf(w.options, sizeof w.options, "--servers %d", gpus);
    /* The first steps use batches that a slow loader has made before. */
    bool loads = run_config_loader_workers(q->config, 1) > 0;
    set_length(q, loads ? VIRTUAL_FREE_WARMUP : VIRTUAL_WARMUP, loads ? VIRTUAL_FREE_STEPS : VIRTUAL_STEPS,
               &w);
    return w;
}

/* Measures a workload. If a GPU has too little memory, measures the same workload on GPUs with enough. If
 * ranks do not wait for each other, takes more steps. */
static status measure(const whatif_question *q, const virtual_workload *w, virtual_figures *figures,
                      bool *fits)
{
    virtual_workload again = *w;
    status rc = virtual_measure(w, figures);
    *fits = rc != STATUS_SYSTEM;
    if (!*fits) {
        error_clear();
        again.variant.unlimited_memory = true;
        rc = virtual_measure(&again, figures);
    }
    TRY(rc);
    if (strcmp(report_text_at(figures->job, "throughput.over"), "steps") == 0) return STATUS_OK;
    set_length(q, VIRTUAL_FREE_WARMUP, VIRTUAL_FREE_STEPS, &again);
    return virtual_measure(&again, figures);
}

/* Runs a point. `alone` is the point of one GPU and `alone_job` its job. Both are NULL for this point itself.
 */
static status ask_point(const virtual_workload *w, const whatif_question *q, const whatif_point *alone,
                        const json_t *alone_job, virtual_figures *figures, whatif_point *out)
{
    bool fits;
    TRY(measure(q, w, figures, &fits));
    if (!isfinite(figures->step_ms))
        return fail(STATUS_CONFIG, "--warmup: expected fewer steps than %d GPUs train, got all of them",
                    w->gpus);
    if (!isfinite(figures->samples_per_s))
        return fail(STATUS_CONFIG,
                    "--steps: expected more steps, got so few that no time has all %d GPUs at work", w->gpus);
    double one = alone ? alone->samples_per_s : figures->samples_per_s;
    int gpus = alone ? w->gpus * run_config_devices(q->config) : 1;
    double step_s = report_number_at(figures->job, "phases.step_s.mean_s");
    *out = (whatif_point){.step_ms = 1e3 * step_s * figures->error,
                          .exposed_ms =
                              1e3 * report_number_at(figures->job, "phases.exposed_communication_s.mean_s"),
                          .waiting_ms = 1e3 * report_number_at(figures->job, "phases.waiting_s.mean_s"),
                          .efficiency = figures->samples_per_s / one / gpus,
                          .samples_per_s = figures->samples_per_s,
                          .lost = {.step_s = NAN},
                          .between_hosts_s = NAN,
                          .most_bytes = figures->most_bytes,
                          .fits = fits};
    if (q->config->run.stages == 1)
        out->lost = lost_time_between(figures->job, alone ? alone_job : figures->job, NULL, true);
    json_t *algorithms = json_object_get(figures->job, "algorithms");
    if (w->draw == 0 && json_is_array(algorithms)) out->algorithms = json_incref(algorithms);
    return STATUS_OK;
}

/* Says that the efficiencies of the profile cannot give the measured step, and which precisions may. */
static status not_reached(const whatif_question *q, const virtual_figures *figures)
{
    const run_options *r = &q->config->run;
    double nearest = q->one_rate * q->step_ms / figures->step_ms;
    bool faster = q->one_rate > nearest, single = !r->tf32 && !r->bf16 && !r->fp16 && !r->workload;
    const char *add = "", *in = faster && single ? " in float32" : "";
    sim_profile *p = NULL;
    error_clear();
    TRY(sim_profile_load(q->profile, &p));
    if (*in && sim_profile_has(p, SIM_PEAK_HALF))
        add = sim_profile_has(p, SIM_PEAK_TF32) ? ": add --tf32, --bf16 or --fp16" : ": add --fp16";
    sim_profile_free(&p);
    return fail(
        STATUS_CONFIG,
        "--measured: expected at %s %s samples/s, which profile %s reaches%s at its %s efficiency, got %s%s",
        faster ? "most" : "least", report_value(CELL_RATE, nearest).text, q->profile, in,
        faster ? "highest" : "lowest", report_value(CELL_RATE, q->one_rate).text, add);
}

/* Runs one GPU, without the options of stages and, if several GPUs are compared with it, without --slow.
 * *efficiency is 0 if there is no measured step to fit. */
static status ask_one_gpu(const whatif_question *q, int draw, virtual_figures *figures, double *efficiency,
                          whatif_point *out)
{
    static const option others[] = {{"stages", OPTION_TEXT, .help = ""},
                                    {"stages-on", OPTION_TEXT, .help = ""},
                                    {"schedule", OPTION_TEXT, .help = ""},
                                    {"slow", OPTION_TEXT, .help = ""}};
    bool compares = q->slow_rank > 0 || !whatif_is_alone(q, q->size_count - 1);
    const option_table table = {"Several GPUs", others, compares ? 4 : 3};
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
    if (rc == STATUS_CONFIG && figures->job) rc = not_reached(q, figures);
    alone.efficiency = *efficiency;
    if (rc == STATUS_OK) rc = ask_point(&alone, q, NULL, NULL, figures, out);
    free(words);
    return rc;
}

/* Servers are all simulated, since each has other parameters, and many of them take minutes. */
static bool has_too_many_servers(const whatif_question *q, int p, int gpus)
{
    enum { MOST_SERVERS = 32 };
    return q->server_per_rank && strcmp(q->policies.names[p], "sync") == 0 && gpus > MOST_SERVERS;
}

/* Sets *added_ms to the time by which a measured step takes longer than the modeled one. */
static status ask_measured(const whatif_question *q, int draw, const whatif_point *one, const json_t *alone,
                           double efficiency, virtual_figures *figures, whatif_answer *out, double *added_ms)
{
    whatif_point point = {0};
    virtual_workload w = workload_of(q, q->measured_policy, q->measured_gpus, draw, efficiency);
    status rc = ask_point(&w, q, one, alone, figures, &point);
    json_decref(point.algorithms);
    TRY(rc);
    *added_ms = point.step_ms * (point.samples_per_s / q->measured_rate - 1);
    if (draw > 0) return STATUS_OK;
    out->modeled_rate = point.samples_per_s;
    out->added_ms = *added_ms;
    return STATUS_OK;
}

/* Adds what the measurement found. It is proportional to log2 of the GPUs below their measured number. If
 * it is negative, it makes no step shorter than a measured one may be.
 * Virtual ranks lose nothing to their neighbors, so it counts there. */
static void add_measured(const whatif_question *q, int gpus, double added_ms, whatif_point *point)
{
    if (!q->measured_gpus || gpus == 1) return;
    double part = fmin(1, log2(gpus) / log2(q->measured_gpus)), before = point->step_ms;
    double least_ms = before * fmin(1, point->efficiency / WHATIF_MOST_EFFICIENCY);
    added_ms = fmax(part * added_ms, least_ms - before);
    point->step_ms += added_ms;
    point->samples_per_s *= before / point->step_ms;
    point->efficiency *= before / point->step_ms;
    point->lost.of[LOST_NEIGHBORS] += 1e-3 * added_ms;
    point->lost.step_s += 1e-3 * added_ms;
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
                          .lost = {.step_s = NAN},
                          .between_hosts_s = NAN};
    snprintf(out->refused, sizeof out->refused, "%s", error_message());
    error_clear();
    return STATUS_OK;
}

static status ask_all(const whatif_question *q, int draw, virtual_figures *figures, whatif_answer *out)
{
    whatif_point one, point;
    double efficiency, added_ms = 0;
    TRY(ask_one_gpu(q, draw, figures, &efficiency, &one));
    put(&out->one_gpu, &one, draw);
    if (draw == 0) out->efficiency = efficiency;
    json_t *alone = json_incref(figures->job);
    status rc = STATUS_OK, refusal = STATUS_OK;
    bool any = false;
    if (!out->workload) out->workload = json_incref(figures->workload);
    if (q->measured_gpus)
        TRY_GOTO(rc, ask_measured(q, draw, &one, alone, efficiency, figures, out, &added_ms), done);
    for (int p = 0; p < q->policies.count; p++) {
        for (int i = 0; i < q->size_count; i++) {
            virtual_workload w = workload_of(q, q->policies.names[p], q->gpus[i], draw, efficiency);
            point = one;
            if (has_too_many_servers(q, p, w.gpus))
                rc = fail(STATUS_CONFIG,
                          "%d servers take minutes to simulate: --policy sync --servers %d does it", w.gpus,
                          w.gpus);
            else if (!whatif_is_alone(q, i))
                rc = ask_point(&w, q, &one, alone, figures, &point);
            /* If there are several policies, the row of a job that cannot run says why. */
            if ((rc == STATUS_CONFIG || rc == STATUS_USAGE) && q->policies.count > 1) {
                refusal = rc;
                rc = refuse(&point);
            }
            TRY_GOTO(rc, rc, done);
            add_measured(q, q->gpus[i], added_ms, &point);
            any = any || !point.refused[0];
            put(&out->points[p][i], &point, draw);
            if (draw == 0 && figures->hardware[0])
                snprintf(out->hardware, sizeof out->hardware, "%s", figures->hardware);
        }
    }
    if (!any) rc = fail(refusal, "%s", out->points[0][0].refused);
done:
    json_decref(alone);
    return rc;
}

static status describe_gpu(const whatif_question *q, whatif_answer *out)
{
    sim_profile *p = NULL;
    TRY(sim_profile_load(q->profile, &p));
    out->gpu_gib = sim_profile_get(p, SIM_GPU_MEMORY);
    bool overlaps = sim_profile_has(p, SIM_COLLECTIVE_SHARE);
    for (int c = SIM_CONVOLUTION_FORWARD; c <= SIM_OPTIMIZER; c++)
        if (sim_profile_has(p, (sim_constant)c) && strcmp(p->provenance[c].tag, "assumed") == 0)
            out->estimated = true;
    sim_profile_free(&p);
    return overlaps || !q->unknown_stack
               ? STATUS_OK
               : fail(STATUS_CONFIG, "--stack unknown: expected a profile of GPUs, got %s", q->profile);
}

/* Returns the policy with the most samples/s on a number of GPUs, or -1 if none fits. */
static int best_policy(const whatif_question *q, const whatif_answer *a, int size)
{
    int best = -1;
    for (int p = 0; p < q->policies.count; p++)
        if (a->points[p][size].fits &&
            (best < 0 || a->points[p][size].samples_per_s > a->points[best][size].samples_per_s))
            best = p;
    return best;
}

/* Compares the best policy with another policy that fits. */
static whatif_verdict compare(const whatif_question *q, const whatif_answer *a, int size, int best, int other)
{
    const double *mine = a->points[best][size].drawn, *others = a->points[other][size].drawn;
    whatif_verdict v = {size, best, other, mine[0] / others[0], INFINITY, 0, false};
    for (int d = 0; d <= q->draws; d++) {
        v.low = fmin(v.low, mine[d] / others[d]);
        v.high = fmax(v.high, mine[d] / others[d]);
    }
    v.undecided = v.low <= 1;
    return v;
}

/* Compares the policies that fit on the largest number of GPUs on which one fits. The next policy is the
 * fastest of those that are not slower than the best policy in some draw. If all others are slower in every
 * draw, it is the fastest of the others. */
static whatif_verdict make_verdict(const whatif_question *q, const whatif_answer *a)
{
    whatif_verdict v = {.size = q->size_count - 1, .best = -1, .next = -1};
    while (v.size > 0 && best_policy(q, a, v.size) < 0) v.size--;
    if (whatif_is_alone(q, v.size)) return v;
    v.best = best_policy(q, a, v.size);
    for (int p = 0; p < q->policies.count && v.best >= 0; p++) {
        if (p == v.best || !a->points[p][v.size].fits) continue;
        whatif_verdict other = compare(q, a, v.size, v.best, p);
        bool nearer = other.undecided == v.undecided ? other.ratio < v.ratio : other.undecided;
        if (v.next < 0 || nearer) v = other;
    }
    return v;
}

/* Tries settings for the best policy. */
static status try_next(const whatif_question *q, whatif_answer *a)
{
    int engine, gpus = q->gpus[a->verdict.size], best = a->verdict.best;
    if (best < 0) return STATUS_OK;
    TRY(engine_of_policy(q->policies.names[best], &engine));
    virtual_workload w = workload_of(q, q->policies.names[best], gpus, 0, a->efficiency);
    command_words words = {0};
    TRY(virtual_words(&w, &words));
    status rc = virtual_next(words.words, words.count, engine, w.policy, &a->next);
    free(words.words);
    return rc;
}

whatif_range whatif_range_of(const whatif_question *q, const sim_profile *p, sim_constant c)
{
    const sim_constant_info *info = &sim_constant_table[c];
    if (q->unknown_stack && c == SIM_COLLECTIVE_SHARE)
        return (whatif_range){c, info->least, (info->least + info->most) / 2, info->most};
    sim_constant unknown = c == SIM_SEVERAL_GPUS    ? SIM_UNKNOWN_GPUS
                           : c == SIM_SEVERAL_HOSTS ? SIM_UNKNOWN_HOSTS
                                                    : c;
    if (q->unknown_stack && !q->measured_gpus && sim_profile_has(p, unknown)) c = unknown;
    return (whatif_range){c, p->low[c][0], sim_profile_get(p, c), p->high[c][0]};
}

/* Draws what differs between stacks: how much of their speed kernels lose while a collective runs, from
 * nothing, which is full overlap, to almost all, which is no overlap; and, unless a second point was
 * measured, what else a stack may lose. */
static status draw_stack(whatif_question *q, int draw)
{
    static const sim_constant constants[] = {SIM_COLLECTIVE_SHARE, SIM_SEVERAL_GPUS, SIM_SEVERAL_HOSTS};
    sim_profile *p = NULL;
    TRY(sim_profile_load(q->profile, &p));
    for (int i = 0; i < 3; i++) {
        whatif_range r = whatif_range_of(q, p, constants[i]);
        const char *name = sim_constant_table[r.from].name;
        if (sim_profile_has(p, constants[i]))
            q->overrides[q->override_count++] = (sim_override){
                .constant = constants[i], .value = sim_draw_between(name, draw, r.low, r.value, r.high)};
    }
    sim_profile_free(&p);
    return STATUS_OK;
}

status whatif_ask_points(const whatif_question *q, whatif_answer *out)
{
    virtual_figures figures = {0};
    status rc = describe_gpu(q, out);
    if (q->step_ms > 0 || q->config->run.workload) out->estimated = false;
    int64_t begin_ns = clock_now_ns();
    for (int draw = 0; draw <= q->draws && rc == STATUS_OK; draw++) {
        whatif_question drawn = *q;
        if (q->unknown_stack && draw > 0) rc = draw_stack(&drawn, draw);
        if (rc == STATUS_OK) rc = ask_all(&drawn, draw, &figures, out);
        double once_s = 1e-9 * (double)(clock_now_ns() - begin_ns);
        if (draw == 0 && once_s * q->draws > 5 && !q->config->run.quiet && rc == STATUS_OK)
            log_info("about %.0f s left for the ranges; --draws 0 leaves them out", once_s * q->draws);
    }
    virtual_figures_free(&figures);
    TRY(rc);
    out->verdict = make_verdict(q, out);
    return STATUS_OK;
}

static status check_link(const whatif_question *q)
{
    sim_profile *p = NULL;
    int most = q->gpus[q->size_count - 1] * run_config_devices(q->config);
    if (!q->config->shared.link || q->config->run.nodes > 1) return STATUS_OK;
    TRY(sim_profile_load(q->profile, &p));
    bool used = most > p->wiring.gpus || p->wiring.nics == 0; /* Without a network the jobs fail. */
    sim_profile_free(&p);
    return used ? STATUS_OK
                : fail(STATUS_CONFIG,
                       "--link: expected GPUs on several machines, got %d on one of profile %s: take --nodes",
                       most, q->profile);
}

bool whatif_is_alone(const whatif_question *q, int size)
{
    return q->gpus[size] * run_config_devices(q->config) == 1;
}

status whatif_ask(const whatif_question *q, whatif_answer *out)
{
    TRY(check_link(q));
    TRY(whatif_ask_points(q, out));
    if (q->why) TRY(whatif_explain(q, out));
    return try_next(q, out);
}

void whatif_answer_close(whatif_answer *a)
{
    json_decref(a->next);
    json_decref(a->workload);
    for (int p = 0; p < POLICY_LIST_MOST; p++)
        for (int i = 0; i < WHATIF_SIZES; i++) json_decref(a->points[p][i].algorithms);
    *a = (whatif_answer){0};
}
