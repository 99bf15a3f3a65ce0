/* Finds ranks without progress, and gives turns to jobs. The launcher reads the tables several times per
 * second. */
#include "common/base/log.h"
#include "common/base/text.h"
#include "harness/launch/launch_impl.h"

#include <stdio.h>
#include <string.h>

#define STALLED_PART 0.75 /* ranks begin to count at different times */

/* Reads after the last ')', because the process name in parentheses may contain any character. */
char launch_process_state(pid_t pid, unsigned *flags)
{
    char path[64], text[512], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    const char *end = fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
    fclose(file);
    return end && sscanf(end + 1, " %c %*d %*d %*d %*d %*d %u", &state, flags) == 2 ? state : 0;
}

bool launch_is_dying(const rank_process *p)
{
    const unsigned exiting = 4; /* PF_EXITING of the kernel */
    unsigned flags = 0;
    char state = p->pidfd < 0 ? 0 : launch_process_state(p->pid, &flags);
    return state == 'Z' || (state && flags & exiting);
}

static bool is_stopped(const rank_process *p)
{
    unsigned flags;
    char state = p->pidfd < 0 ? 0 : launch_process_state(p->pid, &flags);
    return state == 'T' || state == 't';
}

static void look(launcher *l, int job, int64_t now_ns)
{
    job_run *j = &l->jobs[job];
    for (int r = 0; r < j->job->world; r++) {
        rank_process *p = &j->ranks[r];
        rank_status before = p->status;
        status_table_read(j->table, r, &p->status);
        bool serves = r >= j->job->world - j->job->servers;
        bool parked = p->status.state == RANK_SLEEPING && l->turn != job; /* during another job's turn */
        /* A rank that fails has made no progress by that: it may only be the first to report a stall. */
        bool changed = p->status.state != before.state && p->status.state != RANK_FAILED;
        p->owes = p->end == END_NOT_YET && !serves && !parked;
        if (l->options.node) changed = !is_stopped(p); /* the ranks have no slots in the table */
        if (!p->owes || p->status.progress != before.progress || changed) p->changed_ns = now_ns;
        p->age_ns = now_ns - p->changed_ns;
        p->stopped = p->owes && p->age_ns >= STRAGGLER_NS && is_stopped(p);
    }
}

static bool works(const rank_process *p)
{
    return p->stopped || !rank_operation_waits(p->status.operation);
}

/* Compares two ranks without progress. Returns true if the other ranks more likely wait for `a` than for
 * `b`. */
static bool more_likely(const rank_process *a, const rank_process *b)
{
    if (a->stopped != b->stopped) return a->stopped;
    if (rank_status_is_behind(&a->status, &b->status) != rank_status_is_behind(&b->status, &a->status))
        return rank_status_is_behind(&a->status, &b->status);
    if (works(a) != works(b)) return works(a);
    if (a->status.step != b->status.step) return a->status.step < b->status.step;
    return a->status.time_ns < b->status.time_ns;
}

/* Returns the time for which a rank may make no progress. Before the first step this time is at least the
 * time limit for a connection. */
static int64_t limit_of(const launcher *l, const job_run *j)
{
    for (int r = 0; r < j->job->world; r++)
        if (j->ranks[r].status.step >= 0) return l->options.stall_timeout_ns;
    return l->options.stall_timeout_ns > l->options.connect_timeout_ns ? l->options.stall_timeout_ns
                                                                       : l->options.connect_timeout_ns;
}

/* Returns the rank for which the others most likely wait, of the ranks that have made no progress for the
 * time, or NULL. A rank that waits does not count while any other rank makes progress. */
static rank_process *most_likely(const job_run *j, double limit_ns)
{
    rank_process *found = NULL;
    bool all = true;
    for (int r = 0; r < j->job->world; r++)
        if (j->ranks[r].owes && (double)j->ranks[r].age_ns < limit_ns) all = false;
    for (int r = 0; r < j->job->world; r++) {
        rank_process *p = &j->ranks[r];
        if (!p->owes || (double)p->age_ns < limit_ns || (!all && !works(p))) continue;
        if (!found || more_likely(p, found)) found = p;
    }
    return found;
}

/* If a rank of the job has made no progress for `part` of the limit, names this rank, or another one that has
 * made no progress for STALLED_PART of the limit, or a stopped server. Returns false if every rank has made
 * progress. */
static bool blame_stalled(launcher *l, int job, int64_t now_ns, double part)
{
    const job_run *j = &l->jobs[job];
    look(l, job, now_ns);
    int64_t limit_ns = limit_of(l, j);
    if (!most_likely(j, part * (double)limit_ns)) return false;
    rank_process *found = most_likely(j, STALLED_PART * (double)limit_ns);
    for (int r = j->job->world - j->job->servers; r < j->job->world && !found->stopped; r++) {
        j->ranks[r].stopped = is_stopped(&j->ranks[r]);
        if (j->ranks[r].stopped) found = &j->ranks[r];
    }
    launch_blame_stall(l, job, (int)(found - j->ranks), limit_ns);
    return true;
}

/* Returns true if the rank is late. A rank is late if every other rank waits or has made more recent
 * progress. Before the first step ranks have unequal work, so only a rank that a signal has stopped is
 * late. */
static bool is_behind(const job_run *j, int rank)
{
    const rank_process *p = &j->ranks[rank];
    bool others = false;
    if (!p->owes || p->age_ns < STRAGGLER_NS || !works(p)) return false;
    if (p->status.step < 0 && !p->stopped) return false;
    for (int r = 0; r < j->job->world; r++) {
        const rank_process *other = &j->ranks[r];
        if (r == rank || !other->owes) continue;
        others = true;
        if (!p->stopped && works(other) && other->age_ns > p->age_ns - STRAGGLER_NS / 2) return false;
    }
    return others;
}

static void warn_once(const job_run *j, int rank)
{
    char where[RANK_STATUS_TEXT], age[32];
    rank_process *p = &j->ranks[rank];
    if (p->stopped ? p->warned_stopped : p->warned) return;
    p->warned = true;
    p->warned_stopped = p->stopped;
    log_warn("%s rank %d (process %d) is behind: no progress for %s, %s%s", j->job->name, rank, (int)p->pid,
             text_format_duration(age, sizeof age, (double)p->age_ns),
             rank_status_format(&p->status, where, sizeof where), p->stopped ? ", stopped by a signal" : "");
}

bool launch_blame_stalled(launcher *l, int64_t now_ns)
{
    for (int job = 0; job < l->options.job_count; job++)
        if (blame_stalled(l, job, now_ns, STALLED_PART)) return true;
    return false;
}

void launch_watch(launcher *l, int64_t now_ns)
{
    for (int job = 0; job < l->options.job_count && !l->ending; job++) {
        const job_run *j = &l->jobs[job];
        if (blame_stalled(l, job, now_ns, 1)) launch_end_all(l);
        for (int r = 0; r < j->job->world && !l->ending && !l->options.node; r++)
            if (is_behind(j, r)) warn_once(j, r);
    }
}

/* ---- turns: the next job gets the turn when every rank of the present job is parked again or has ended,
 * so that blocks of two jobs never run at the same time ---- */

static bool all_parked(const job_run *j, uint32_t blocks_done)
{
    rank_status s;
    for (int r = 0; r < j->job->world - j->job->servers; r++) {
        status_table_read(j->table, r, &s);
        if (j->ranks[r].end != END_NOT_YET) continue;
        if (s.state != RANK_SLEEPING || s.blocks_done < blocks_done) return false;
    }
    return true;
}

static void grant(launcher *l, int job)
{
    int64_t now_ns = clock_now_ns();
    l->turn = job;
    for (int r = 0; r < l->jobs[job].job->world; r++) l->jobs[job].ranks[r].changed_ns = now_ns;
    job_turn_grant(l->jobs[job].table, ++l->jobs[job].blocks);
}

void launch_turns_advance(launcher *l)
{
    if (!l->options.take_turns || l->stop_signal || l->ending) return;
    int jobs = l->options.job_count;
    if (l->turn < 0) { /* the first block waits until all ranks are set up */
        for (int job = 0; job < jobs; job++)
            if (!all_parked(&l->jobs[job], 0)) return;
    } else if (!all_parked(&l->jobs[l->turn], l->jobs[l->turn].blocks)) {
        return;
    }
    for (int i = 1; i <= jobs; i++) {
        int job = (l->turn + i) % jobs;
        if (l->jobs[job].alive == 0) continue;
        grant(l, job);
        return;
    }
}
