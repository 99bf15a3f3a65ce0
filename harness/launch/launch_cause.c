/* What ended the run. The first thing that the launcher sees need not be the first that happened: a rank
 * that loses its peer may say so before the kernel reports the peer's death. */
#include "harness/launch/launch_impl.h"

#include "common/base/clock.h"
#include "common/base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { EXIT_PEER = 75 }; /* as status_exit_code(STATUS_PEER): a consequence, rather than a cause */

int64_t launch_count_oom_kills(void)
{
    char line[128];
    int64_t count = 0;
    FILE *file = fopen("/proc/vmstat", "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "oom_kill %" SCNd64, &count) == 1) break;
    if (file) fclose(file);
    return count;
}

/* The higher, the nearer to the root. */
enum { NO_CAUSE, LOST_PEER_CODE, LOST_PEER_RECORD, OTHER_CODE, ENDED_EARLY, KILLED, OTHER_RECORD };

static int rank_of_end(const rank_process *p)
{
    switch (p->end) {
    case END_SIGNAL:
        return KILLED;
    case END_EARLY:
        return ENDED_EARLY;
    case END_CODE:
        return p->end_value == EXIT_PEER ? LOST_PEER_CODE : OTHER_CODE;
    default:
        return NO_CAUSE;
    }
}

/* "ring rank 1 (host a, process 71), at step 12 in backward: " */
static int put_who(const launcher *l, int job, const rank_status *s, int rank, char *out, size_t size)
{
    char where[128];
    const job_run *j = &l->jobs[job];
    int ranks = j->job->world - j->job->servers;
    bool serves = rank >= ranks;
    return snprintf(out, size, "%s %s %d (host %s, process %d), %s: ", j->job->name, serves ? "server" : "rank",
                    serves ? rank - ranks : rank, l->host, (int)j->ranks[rank].pid,
                    rank_status_format(s, where, sizeof where));
}

static void blame(launcher *l, int job, int rank, int exit_code)
{
    l->outcome->job = job;
    l->outcome->rank = rank;
    l->outcome->exit_code = exit_code;
}

static void blame_record(launcher *l, int job, const job_failure *f)
{
    launch_outcome *o = l->outcome;
    int used = put_who(l, job, &f->where, f->where.rank, o->cause, sizeof o->cause);
    snprintf(o->cause + used, sizeof o->cause - (size_t)used, "%s", f->text);
    blame(l, job, f->where.rank, status_exit_code(f->code));
}

static void blame_end(launcher *l, int job, int rank)
{
    const rank_process *p = &l->jobs[job].ranks[rank];
    launch_outcome *o = l->outcome;
    rank_status s;
    status_table_read(l->jobs[job].table, rank, &s);
    int used = put_who(l, job, &s, rank, o->cause, sizeof o->cause);
    char *out = o->cause + used;
    size_t size = sizeof o->cause - (size_t)used;
    if (p->end == END_SIGNAL) {
        bool oom = p->end_value == SIGKILL && launch_count_oom_kills() > l->oom_kills;
        snprintf(out, size, "killed by signal %d (%s)%s", p->end_value, strsignal(p->end_value),
                 oom ? " as the kernel ran out of memory: fewer ranks or a smaller batch need less" : "");
    } else if (p->end == END_EARLY) {
        snprintf(out, size, "ended with exit code 0 before its work was done");
    } else {
        snprintf(out, size, "ended with exit code %d", p->end_value);
    }
    blame(l, job, rank, p->end == END_CODE ? p->end_value : EXIT_PEER);
}

bool launch_find_cause(launcher *l)
{
    int best = NO_CAUSE, job = -1, rank = -1;
    job_failure failure, chosen = {0};
    for (int i = 0; i < l->options.job_count; i++) {
        const job_run *j = &l->jobs[i];
        if (job_first_failure(j->table, &failure)) {
            int found = failure.code == STATUS_PEER ? LOST_PEER_RECORD : OTHER_RECORD;
            if (found > best) {
                best = found;
                job = i;
                chosen = failure;
            }
        }
        for (int r = 0; r < j->job->world; r++) {
            int found = rank_of_end(&j->ranks[r]);
            if (found <= best) continue;
            best = found;
            job = i;
            rank = r;
        }
    }
    /* Ranks that stop on request may leave others alone: no failure of theirs. */
    if (best == NO_CAUSE || (l->stop_signal && best <= LOST_PEER_RECORD)) return false;
    if (best <= LOST_PEER_RECORD && launch_blame_stalled(l, clock_now_ns())) return true;
    if (best == LOST_PEER_RECORD || best == OTHER_RECORD)
        blame_record(l, job, &chosen);
    else
        blame_end(l, job, rank);
    return true;
}

void launch_blame_stall(launcher *l, int job, int rank, bool stopped)
{
    rank_status s;
    char limit[32];
    launch_outcome *o = l->outcome;
    status_table_read(l->jobs[job].table, rank, &s);
    int used = put_who(l, job, &s, rank, o->cause, sizeof o->cause);
    text_format_duration(limit, sizeof limit, (double)l->options.stall_timeout_ns);
    snprintf(o->cause + used, sizeof o->cause - (size_t)used, "no progress within the stall limit of %s%s",
             limit, stopped ? ": stopped by a signal" : "");
    blame(l, job, rank, EXIT_PEER);
}
