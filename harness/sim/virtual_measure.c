#include "harness/sim/virtual_measure.h"

#include "harness/report/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the command line ------------------------------------------------------------------------- */

enum { OWN_WORDS = 12 }; /* --device, --mode, --policy, --gpus, --efficiency, --draw, and their values. */

static void add(command_words *w, const char *name, const char *value)
{
    w->words[w->count++] = (char *)name;
    w->words[w->count++] = (char *)value;
}

status virtual_words(const virtual_workload *of, command_words *w)
{
    int engine = ENGINE_NONE;
    if (of->policy) TRY(engine_of_policy(of->policy, &engine));
    snprintf(w->options, sizeof w->options, "%s", of->options);
    snprintf(w->device, sizeof w->device, "sim:%s", of->profile ? of->profile : SIM_DEFAULT_PROFILE);
    snprintf(w->gpus, sizeof w->gpus, "%d", of->gpus);
    w->words = calloc(sizeof w->options / 2 + (size_t)of->word_count + OWN_WORDS + 1, sizeof *w->words);
    if (!w->words) return fail(STATUS_SYSTEM, "no memory for a command line");
    add(w, "--device", w->device);
    add(w, "--mode", engine_table[engine]->name);
    if (of->policy) add(w, "--policy", of->policy);
    if (of->policy) add(w, "--gpus", w->gpus);
    char *rest = NULL;
    for (char *word = strtok_r(w->options, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        w->words[w->count++] = word;
    for (int i = 0; i < of->word_count; i++) w->words[w->count++] = of->words[i];
    snprintf(w->efficiency, sizeof w->efficiency, "%.17g", of->efficiency);
    snprintf(w->draw, sizeof w->draw, "%d", of->draw);
    if (of->efficiency > 0) add(w, "--efficiency", w->efficiency);
    if (of->draw > 0) add(w, "--draw", w->draw);
    return STATUS_OK;
}

status virtual_command(const virtual_workload *workload, text_buffer *out)
{
    command_words w = {0};
    TRY(virtual_words(workload, &w));
    text_append(out, "harness run");
    for (int i = 0; i < w.count; i++) text_append(out, " %s", w.words[i]);
    free(w.words);
    return STATUS_OK;
}

/* ---- the run ---------------------------------------------------------------------------------- */

static void on_step(void *context, const step_result *r)
{
    virtual_figures *f = context;
    int64_t reduced = r->reduced_ns > r->backward_end_ns ? r->reduced_ns : r->backward_end_ns;
    f->forward_ms = fmax(f->forward_ms, (double)(r->forward_end_ns - r->forward_begin_ns) / 1e6);
    f->backward_ms = fmax(f->backward_ms, (double)(reduced - r->backward_begin_ns) / 1e6);
}

static void read_figures(virtual_figures *f)
{
    double step_s = report_number_at(f->job, "step_time.median_s");
    /* The result has seconds; rounding restores the whole nanoseconds. */
    f->step_ms = isnan(step_s) ? NAN : (double)llround(1e9 * step_s) / 1e6 * f->error;
    f->most_bytes = json_integer_value(report_at(f->job, "memory_imbalance.maximum_bytes"));
    f->samples_per_s = report_number_at(f->job, "throughput.samples_per_s") / f->error;
}

status virtual_measure(const virtual_workload *workload, virtual_figures *out)
{
    command_words w = {0};
    run_plan plan = {0};
    run_job job = {0};
    virtual_variant variant = workload->variant;
    status rc;
    virtual_figures_free(out);
    run_config *config = calloc(1, sizeof *config);
    if (!config) return fail(STATUS_SYSTEM, "no memory for a configuration");
    TRY_GOTO(rc, virtual_words(workload, &w), done);
    TRY_GOTO(rc, run_config_init(config), done);
    TRY_GOTO(rc, run_config_parse(config, w.count, w.words), done);
    TRY_GOTO(rc, run_plan_make(config, &plan), done);
    variant.step = on_step;
    variant.context = out;
    variant.error = &out->error;
    TRY_GOTO(
        rc,
        virtual_run_job(config, &plan, config->run.mode, &variant, &job, out->hardware, sizeof out->hardware),
        done);
    free(job.trace);
    out->job = job.result;
    out->workload = run_workload_to_json(config, &plan);
    read_figures(out);
done:
    if (rc != STATUS_OK) virtual_figures_free(out);
    run_plan_free(&plan);
    free(w.words);
    free(config);
    return rc;
}

void virtual_figures_free(virtual_figures *f)
{
    json_decref(f->job);
    json_decref(f->workload);
    *f = (virtual_figures){0};
}

status virtual_fit(const virtual_workload *one_gpu, double step_ms, virtual_figures *scratch,
                   double *efficiency)
{
    enum { ROUNDS = 20, HALVINGS = 30 };
    virtual_workload w = *one_gpu;
    sim_profile *p = NULL;
    double least, most;
    TRY(sim_profile_load(w.profile ? w.profile : SIM_DEFAULT_PROFILE, &p));
    sim_profile_draw(p, w.draw);
    sim_efficiency_limits(p, &least, &most);
    sim_profile_free(&p);
    w.efficiency = 1;
    for (int i = 0; i < ROUNDS + HALVINGS; i++) {
        TRY(virtual_measure(&w, scratch));
        *efficiency = w.efficiency;
        if (fabs(scratch->step_ms / step_ms - 1) < 1e-4) return STATUS_OK;
        if (scratch->step_ms > step_ms)
            least = w.efficiency;
        else
            most = w.efficiency;
        /* Time is proportional to 1 / efficiency, except for launches. If launches take most of it, the
         * proportion converges too slowly, and the interval is halved. */
        w.efficiency = i < ROUNDS ? fmax(least, fmin(most, w.efficiency * (scratch->step_ms / step_ms)))
                                  : sqrt(least * most);
        if (w.efficiency == *efficiency) break;
    }
    return fail(
        STATUS_CONFIG,
        "profile %s: expected a step of %.3f ms on one GPU, the nearest that its compute gives is %.3f",
        one_gpu->profile, step_ms, scratch->step_ms);
}
