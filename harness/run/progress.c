#include "harness/run/job.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static void put(const char *text, size_t length)
{
    ssize_t written = write(STDERR_FILENO, text, length);
    (void)written; /* a terminal that has gone shows nothing */
}

bool run_progress_begin(run_progress *p)
{
    return !p->config->run.quiet && isatty(STDERR_FILENO);
}

/* "ring 12/35 backward": the job's slowest rank. */
static int describe_job(char *buffer, size_t size, status_table *b, const launch_job *job, int64_t total, bool has_turn)
{
    rank_status slowest = {.step = INT64_MAX};
    for (int r = 0; r < job->world - job->servers; r++) {
        rank_status s;
        status_table_read(b, r, &s);
        if (s.step < slowest.step) slowest = s;
    }
    const char *what = slowest.state == RANK_SLEEPING ? "parked" : rank_operation_name(slowest.operation);
    return snprintf(buffer, size, "  %s%s %lld/%lld %s", has_turn ? "> " : "", job->name, (long long)(slowest.step + 1),
                    (long long)total, what);
}

void run_progress_show(void *context, const launch_view *view)
{
    run_progress *p = context;
    struct winsize window;
    char line[512];
    size_t width = ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 ? window.ws_col : 80;
    size_t used = (size_t)snprintf(line, sizeof line, "%4.0f s", (double)view->elapsed_ns * 1e-9);
    for (int j = 0; j < view->job_count && used < sizeof line; j++)
        used += (size_t)describe_job(line + used, sizeof line - used, view->tables[j], &view->jobs[j],
                                     p->plan->total_steps[p->engines[j]], view->turn == j);
    if (used >= sizeof line) used = sizeof line - 1;
    if (used >= width) used = width - 1;
    put("\r\033[K", 4);
    put(line, used);
    p->shown = true;
}

void run_progress_end(run_progress *p)
{
    if (p->shown) put("\r\033[K", 4);
    p->shown = false;
}
