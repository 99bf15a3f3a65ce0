#include "harness/launch/progress.h"

#include "common/base/clock.h"
#include "common/base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define WRITTEN_EVERY_NS (10 * NS_PER_S) /* if stderr is not a terminal */

run_progress run_progress_begin(const run_config *config, const run_plan *plan, const int *numbers)
{
    const run_options *o = &config->run;
    /* Lines of ranks on the same terminal would mix with lines that are drawn again and again. */
    bool lines = o->epochs > 0 || o->print_steps || o->print_shapes || o->eval_every.count > 0;
    return (run_progress){.config = config,
                          .plan = plan,
                          .numbers = numbers,
                          .is_terminal = isatty(STDERR_FILENO) && !(lines && isatty(STDOUT_FILENO))};
}

static int64_t steps_of(const launch_view *view, int j)
{
    const launch_job *job = &view->jobs[j];
    int64_t least = INT64_MAX;
    for (int r = 0; r < job->world - job->servers; r++) {
        rank_status s;
        status_table_read(view->tables[j], r, &s);
        if (s.step + 1 < least) least = s.step + 1;
    }
    return least;
}

/* Returns the samples of a step of all ranks of the job. */
static double samples_of_step(const run_progress *p, int job)
{
    return (double)(run_config_batch(p->config, job) * p->config->run.accumulate *
                    run_config_replicas(p->config, job));
}

static job_view look_at(run_progress *p, const launch_view *view, int j)
{
    int number = p->numbers[j];
    job_view v = {.name = view->jobs[j].name,
                  .steps = steps_of(view, j),
                  .total = p->plan->total_steps[number],
                  .left_s = NAN,
                  .loss = job_loss(view->tables[j]),
                  .samples_per_s = NAN};
    if (v.steps > v.total) v.total = v.steps; /* a run with --load counts from step 0 of the training */
    bool trains = (view->turn == j || view->turn < 0) && v.steps < v.total;
    if (p->first[j] == 0)
        p->first[j] = v.steps;
    else if (trains)
        p->active_ns[j] += view->elapsed_ns - p->seen_ns;
    int64_t done = v.steps - p->first[j];
    if (done <= 0 || p->active_ns[j] <= 0) return v;
    double step_s = (double)p->active_ns[j] * 1e-9 / (double)done;
    v.left_s = step_s * (double)(v.total - v.steps);
    v.samples_per_s = samples_of_step(p, number) / step_s;
    return v;
}

char *run_progress_line(char *buffer, size_t size, int columns, const job_view *v)
{
    enum { BAR = 14 };
    char counted[48], left[32] = "", of_loss[32] = "", rate[32] = "", bar[BAR + 1], duration[24];
    int filled = v->total > 0 ? (int)(BAR * v->steps / v->total) : 0;
    memset(bar, '-', BAR);
    memset(bar, '#', (size_t)filled);
    bar[BAR] = '\0';
    snprintf(counted, sizeof counted, "%lld/%lld", (long long)v->steps, (long long)v->total);
    if (!isnan(v->left_s))
        snprintf(left, sizeof left, "%s left",
                 text_format_duration(duration, sizeof duration, 1e9 * v->left_s));
    if (!isnan(v->loss)) snprintf(of_loss, sizeof of_loss, "loss %.3g", v->loss);
    if (!isnan(v->samples_per_s))
        snprintf(rate, sizeof rate, "%.*f samples/s", v->samples_per_s < 100 ? 1 : 0, v->samples_per_s);
    snprintf(buffer, size, "%-9.9s [%s] %-9s %-12s %-11s %s", v->name, bar, counted, left, of_loss, rate);
    size_t length = strlen(buffer);
    while (length > 0 && buffer[length - 1] == ' ') buffer[--length] = '\0';
    if (length > (size_t)columns) buffer[columns] = '\0';
    return buffer;
}

static void draw(run_progress *p, const job_view *jobs, int count)
{
    struct winsize window;
    int columns =
        ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1 ? window.ws_col - 1 : 79;
    text_buffer out = {0};
    if (p->lines > 0) text_append(&out, "\033[%dA", p->lines);
    for (int j = 0; j < count; j++) {
        char line[256];
        text_append(&out, "\r\033[K%s\n", run_progress_line(line, sizeof line, columns, &jobs[j]));
    }
    if (out.data) fputs(out.data, stderr);
    p->lines = count;
    text_free(&out);
}

/* Writes "harness: progress: 20 s: none 51/51, ps 12/51 loss 0.5 1480 samples/s; about 30 s left". */
static void write_line(const run_progress *p, const launch_view *view, const job_view *jobs)
{
    text_buffer out = {0};
    char duration[24];
    double left = 0;
    text_append(&out, "harness: progress: %.0f s:", (double)view->elapsed_ns * 1e-9);
    if (p->config->run.repeat > 1)
        text_append(&out, " run %d of %lld:", p->config->repetition + 1, (long long)p->config->run.repeat);
    for (int j = 0; j < view->job_count; j++) {
        const job_view *v = &jobs[j];
        text_append(&out, "%s %s %lld/%lld", j ? "," : "", v->name, (long long)v->steps, (long long)v->total);
        if (!isnan(v->loss)) text_append(&out, " loss %.4g", v->loss);
        if (!isnan(v->samples_per_s)) text_append(&out, " %.0f samples/s", v->samples_per_s);
        if (v->steps < v->total) left += v->left_s; /* NaN if the job has not begun */
    }
    if (left > 0)
        text_append(&out, "; about %s left", text_format_duration(duration, sizeof duration, 1e9 * left));
    double part = 60 / (left + 1e-9 * (double)view->elapsed_ns), steps = (double)p->config->run.steps * part;
    if (left > 60 && steps >= 1 && !p->config->run.epochs)
        text_append(&out, "; with --steps %.0f about a minute", steps);
    text_append(&out, "\n");
    if (out.data) fputs(out.data, stderr);
    text_free(&out);
}

void run_progress_show(void *context, const launch_view *view)
{
    run_progress *p = context;
    job_view jobs[JOB_COUNT];
    for (int j = 0; j < view->job_count; j++) jobs[j] = look_at(p, view, j);
    p->seen_ns = view->elapsed_ns;
    if (p->is_terminal) {
        draw(p, jobs, view->job_count);
    } else if (view->elapsed_ns - p->written_ns >= WRITTEN_EVERY_NS) {
        p->written_ns = view->elapsed_ns;
        write_line(p, view, jobs);
    }
}

void run_progress_show_virtual(run_progress *p, int job, int64_t steps, int64_t total, double step_s)
{
    enum { DRAWN_EVERY_NS = NS_PER_S / 10 };
    int64_t now = clock_now_ns();
    job_view v = {.name = job_name(job),
                  .steps = steps,
                  .total = total,
                  .left_s = NAN,
                  .loss = NAN,
                  .samples_per_s = step_s > 0 ? samples_of_step(p, job) / step_s : NAN};
    if (steps == 0) {
        p->began_ns = now;
        if (p->begun_count < JOB_COUNT) p->begun_count++;
    } else if (steps < total) {
        v.left_s = 1e-9 * (double)(now - p->began_ns) / (double)steps * (double)(total - steps);
    }
    p->begun[p->begun_count - 1] = v;
    if (p->written_ns == 0) p->written_ns = now;
    if (p->is_terminal && (steps == 0 || now - p->seen_ns >= DRAWN_EVERY_NS)) {
        p->seen_ns = now;
        draw(p, p->begun, p->begun_count);
    } else if (!p->is_terminal && now - p->written_ns >= WRITTEN_EVERY_NS) {
        char line[256];
        p->written_ns = now;
        fprintf(stderr, "harness: progress: %s\n", run_progress_line(line, sizeof line, sizeof line - 1, &v));
    }
}

void run_progress_end(run_progress *p)
{
    if (p->lines > 0) fprintf(stderr, "\033[%dA\r\033[J", p->lines);
    p->lines = 0;
}
