/* Finds the cause that ended a run. The launcher may see a consequence first: a rank that loses its peer
 * may report the loss before the kernel reports the peer's death. */
#include "harness/launch/launch_impl.h"

#include "common/base/clock.h"
#include "common/base/text.h"
#include "harness/launch/cgroup.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { EXIT_PEER = 75 }; /* status_exit_code(STATUS_PEER): the rank lost a peer, which is a consequence */

/* Kinds of causes. The later a kind stands in this list, the closer it is to the root cause. */
enum { NO_CAUSE, LOST_PEER_CODE, LOST_PEER_RECORD, OTHER_CODE, ENDED_EARLY, KILLED, OTHER_RECORD };

static int rank_of_end(const rank_process *p)
{
    static const int causes[] = {
        [END_NOT_YET] = NO_CAUSE, [END_SIGNAL] = KILLED, [END_EARLY] = ENDED_EARLY, [END_CODE] = OTHER_CODE};
    return p->end == END_CODE && p->end_value == EXIT_PEER ? LOST_PEER_CODE : causes[p->end];
}

/* Sets the outcome to "ring rank 1 (host a, process 71), at step 12 in backward: REASON". */
__attribute__((format(printf, 6, 7))) static void blame(launcher *l, int job, int rank, const rank_status *s,
                                                        int exit_code, const char *format, ...)
{
    char where[RANK_STATUS_TEXT];
    const job_run *j = &l->jobs[job];
    const launch_node *n = l->options.node;
    launch_outcome *o = l->outcome;
    int ranks = j->job->world - j->job->servers;
    bool serves = rank >= ranks;
    o->job = job;
    o->rank = rank;
    o->exit_code = exit_code;
    if (n) o->rank += n->first_rank;
    int used =
        snprintf(o->cause, sizeof o->cause, "%s %s %d (host %s, process %d)%s%s: ", j->job->name,
                 serves ? "server" : "rank", serves ? rank - ranks : o->rank, l->host,
                 (int)j->ranks[rank].pid, n ? "" : ", ", n ? "" : rank_status_format(s, where, sizeof where));
    va_list args;
    va_start(args, format);
    vsnprintf(o->cause + used, sizeof o->cause - (size_t)used, format, args);
    va_end(args);
}

static void blame_end(launcher *l, int job, int rank)
{
    const rank_process *p = &l->jobs[job].ranks[rank];
    rank_status s;
    status_table_read(l->jobs[job].table, rank, &s);
    if (p->end == END_SIGNAL) {
        bool oom = p->end_value == SIGKILL && cgroup_oom_kills("") > l->oom_kills;
        blame(l, job, rank, &s, oom ? status_exit_code(STATUS_SYSTEM) : EXIT_PEER,
              "killed by signal %d (%s)%s", p->end_value, strsignal(p->end_value),
              oom ? " as the kernel ran out of memory: fewer ranks or a smaller batch need less" : "");
    } else if (p->end == END_EARLY) {
        blame(l, job, rank, &s, EXIT_PEER, "ended with exit code 0 before its work was done");
    } else if (l->options.node) { /* the rank has printed the reason */
        *l->outcome = (launch_outcome){
            .exit_code = p->end_value, .job = job, .rank = l->options.node->first_rank + rank};
    } else {
        const char *why = ": the system refused memory, a thread or a descriptor";
        if (p->end_value != status_exit_code(STATUS_SYSTEM)) why = "";
        blame(l, job, rank, &s, p->end_value, "ended with exit code %d%s", p->end_value, why);
    }
}

/* Returns the text of a failure without "step N: ", because blame() names the step. */
static const char *text_of(const job_failure *f)
{
    char step[32];
    size_t length = (size_t)snprintf(step, sizeof step, "step %" PRId64 ": ", f->where.step);
    return strncmp(f->text, step, length) == 0 ? f->text + length : f->text;
}

/* Returns the known cause closest to the root. Sets `job`, and `rank` or `recorded`. */
static int nearest(const launcher *l, int *job, int *rank, job_failure *recorded)
{
    int best = NO_CAUSE;
    job_failure failure;
    for (int i = 0; i < l->options.job_count; i++) {
        const job_run *j = &l->jobs[i];
        if (job_first_failure(j->table, &failure)) {
            int found = failure.code == STATUS_PEER ? LOST_PEER_RECORD : OTHER_RECORD;
            if (found > best) {
                best = found;
                *job = i;
                *recorded = failure;
            }
        }
        for (int r = 0; r < j->job->world; r++) {
            int found = rank_of_end(&j->ranks[r]);
            if (found <= best) continue;
            best = found;
            *job = i;
            *rank = r;
        }
    }
    return best;
}

bool launch_awaits_death(const launcher *l)
{
    int job = 0, rank = 0;
    job_failure recorded;
    if (nearest(l, &job, &rank, &recorded) > LOST_PEER_RECORD) return false;
    for (int r = 0; r < l->jobs[job].job->world; r++)
        if (launch_is_dying(&l->jobs[job].ranks[r])) return true;
    return false;
}

void launch_find_cause(launcher *l)
{
    int job = -1, rank = -1;
    job_failure chosen = {0};
    int best = nearest(l, &job, &rank, &chosen);
    if (best == NO_CAUSE || (best <= LOST_PEER_RECORD && launch_blame_stalled(l, clock_now_ns()))) return;
    if (best == LOST_PEER_RECORD || best == OTHER_RECORD)
        blame(l, job, chosen.where.rank, &chosen.where, status_exit_code(chosen.code), "%s",
              text_of(&chosen));
    else
        blame_end(l, job, rank);
}

void launch_blame_stall(launcher *l, int job, int rank, int64_t limit_ns)
{
    char limit[32];
    const rank_process *p = &l->jobs[job].ranks[rank];
    blame(l, job, rank, &p->status, EXIT_PEER, "no progress within the %s limit of %s%s",
          limit_ns == l->options.stall_timeout_ns ? "stall" : "connect",
          text_format_duration(limit, sizeof limit, (double)limit_ns),
          p->stopped ? ": stopped by a signal" : "");
}
