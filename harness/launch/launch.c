/* The launcher's loop, which handles signals, ends of processes, notifications of the status tables, and
 * timers. */
#include "harness/launch/launch_impl.h"

#include "common/base/least.h"
#include "common/base/log.h"
#include "harness/launch/cgroup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    WATCH_NS = 100000000,    /* time between reads of the tables */
    SETTLE_NS = 100000000,   /* time between the first sign of a failure and the search for its cause */
    DEATH_NS = 3000000000,   /* limit of the wait for a dying process */
    PROGRESS_NS = 250000000, /* time between calls of `progress` */
    END_NS = 2000000000,     /* time between SIGTERM and SIGKILL after a failure */
    STOPPED_BY = 128,        /* exit code of a rank that a signal has stopped, less the signal */
};

static void kill_all(launcher *l)
{
    for (int i = 0; i < l->options.job_count; i++) launch_kill_job(&l->jobs[i], SIGKILL);
    l->killed = true;
    l->kill_ns = CLOCK_NEVER;
    if (!l->ending) log_warn("ended at once: without a report, and without a checkpoint of the last step");
}

void launch_end_all(launcher *l)
{
    if (l->ending) return;
    l->ending = true;
    l->kill_ns = clock_now_ns() + END_NS;
    /* A rank that takes signals itself would ask all nodes for an orderly stop. It loses a peer now. */
    for (int i = 0; i < l->options.job_count && !l->options.node; i++) {
        launch_kill_job(&l->jobs[i], SIGTERM);
        launch_kill_job(&l->jobs[i], SIGCONT); /* a stopped process handles no signal except SIGKILL */
    }
}

static void request_stop(launcher *l, int signal)
{
    int64_t now_ns = clock_now_ns();
    if (l->stop_signal && now_ns - l->stop_ns < STOP_SIGNALS_NS) return;
    bool again = l->stop_signal != 0;
    l->stop_signal = signal;
    if (again) {
        kill_all(l);
        return;
    }
    l->stop_ns = now_ns;
    l->turn = -1;
    if (signal != SIGINT) l->kill_ns = now_ns + l->options.grace_ns;
    log_info("%s: ending after this %s; a second signal after %d s ends the run at once", strsignal(signal),
             l->options.unit ? l->options.unit : "step", (int)(STOP_SIGNALS_NS / NS_PER_S));
    for (int i = 0; i < l->options.job_count; i++) {
        status_table *t = l->jobs[i].table;
        if (l->options.node) launch_kill_job(&l->jobs[i], signal);
        job_stop_decide(t, job_stop_hold(t, signal));
        job_turn_grant(t, UINT32_MAX);
    }
}

static rank_end judge(const launcher *l, const job_run *j, int rank, const siginfo_t *info)
{
    rank_status s;
    status_table_read(j->table, rank, &s);
    bool exited = info->si_code == CLD_EXITED;
    /* A rank that does not take signals yet dies of the signal that the launcher has passed on. */
    if (l->options.node && (exited ? info->si_status > (int)STOPPED_BY : info->si_status == l->stop_signal))
        return END_STOPPED;
    if (!exited) return END_SIGNAL;
    if (l->options.node) return info->si_status ? END_CODE : END_WELL;
    bool asked = l->stop_signal != 0;
    if (info->si_status == 0) return asked || s.state == RANK_FINISHED ? END_WELL : END_EARLY;
    return asked && info->si_status == status_exit_code(STATUS_STOPPED) ? END_STOPPED : END_CODE;
}

static void begin_to_fail(launcher *l)
{
    if (l->failing || l->ending) return;
    l->failing = true;
    l->failed_ns = clock_now_ns();
    l->settle_ns = l->failed_ns + SETTLE_NS;
}

/* Records the end of a process, but does not reap it, so that the kernel does not reuse the numbers of the
 * process and its group. */
static void note_end(launcher *l, job_run *j, int rank)
{
    rank_process *p = &j->ranks[rank];
    siginfo_t info = {0};
    if (waitid(P_PIDFD, (id_t)p->pidfd, &info, WEXITED | WNOWAIT | WNOHANG) != 0 || info.si_pid == 0) return;
    close(p->pidfd);
    p->pidfd = -1;
    p->end = judge(l, j, rank, &info);
    p->end_value = info.si_status;
    j->alive--;
    l->alive--;
    if (l->options.node && p->end == END_STOPPED && p->end_value > (int)STOPPED_BY)
        l->outcome->exit_code = p->end_value;
    if (p->end != END_WELL && p->end != END_STOPPED && !l->killed) begin_to_fail(l);
}

static int fill_poll(launcher *l)
{
    int count = 0;
    l->polled[count++] = (struct pollfd){.fd = l->signal_fd, .events = POLLIN};
    for (int i = 0; i < l->options.job_count; i++) {
        l->polled[count++] =
            (struct pollfd){.fd = status_table_notify_fd(l->jobs[i].table), .events = POLLIN};
        for (int r = 0; r < l->jobs[i].job->world; r++)
            l->polled[count++] = (struct pollfd){.fd = l->jobs[i].ranks[r].pidfd, .events = POLLIN};
    }
    return count;
}

static int sleep_ms(const launcher *l)
{
    int64_t next = least(l->watch_ns, l->kill_ns);
    if (l->failing && !l->ending) next = least(next, l->settle_ns);
    if (l->options.progress) next = least(next, l->progress_ns);
    int64_t left = next - clock_now_ns();
    return left > 0 ? (int)((left + NS_PER_MS - 1) / NS_PER_MS) : 0;
}

static void read_events(launcher *l)
{
    int count = 1;
    struct signalfd_siginfo info;
    while (l->polled[0].revents && read(l->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (!l->ending && !l->failing) request_stop(l, (int)info.ssi_signo); /* later signals are ignored */
    for (int i = 0; i < l->options.job_count; i++) {
        job_run *j = &l->jobs[i];
        if (l->polled[count++].revents) {
            uint64_t notices;
            ssize_t got = read(status_table_notify_fd(j->table), &notices, sizeof notices);
            (void)got;
        }
        for (int r = 0; r < j->job->world; r++)
            if (l->polled[count++].revents) note_end(l, j, r);
    }
}

static void keep_time(launcher *l)
{
    int64_t now_ns = clock_now_ns();
    if (l->failing && !l->ending && now_ns >= l->settle_ns) {
        if (now_ns - l->failed_ns < DEATH_NS && launch_awaits_death(l)) {
            l->settle_ns = now_ns + SETTLE_NS;
        } else {
            launch_find_cause(l);
            launch_end_all(l);
        }
    }
    if (now_ns >= l->kill_ns) kill_all(l);
    if (now_ns >= l->watch_ns) {
        launch_watch(l, now_ns);
        l->watch_ns = now_ns + WATCH_NS;
    }
    if (l->options.progress && now_ns >= l->progress_ns && !l->ending) {
        const launch_view view = {l->options.jobs, l->tables, l->options.job_count, l->turn,
                                  now_ns - l->begin_ns};
        l->options.progress(l->options.context, &view);
        l->progress_ns = now_ns + PROGRESS_NS;
    }
}

static status loop(launcher *l)
{
    while (l->alive > 0) {
        int count = fill_poll(l);
        if (poll(l->polled, (nfds_t)count, sleep_ms(l)) < 0 && errno != EINTR)
            return fail_errno(STATUS_SYSTEM, "launch: waiting for ranks");
        read_events(l);
        /* A recorded failure ends the run at once. The rank that failed may hang, so the run does not wait
         * for its end. */
        for (int i = 0; i < l->options.job_count; i++) {
            job_failure failure;
            if (job_first_failure(l->jobs[i].table, &failure)) begin_to_fail(l);
        }
        launch_turns_advance(l);
        keep_time(l);
    }
    if (l->failing && !l->ending && !l->killed) launch_find_cause(l);
    if (l->stop_signal && l->outcome->exit_code == 0) l->outcome->exit_code = 128 + l->stop_signal;
    return STATUS_OK;
}

static status open_launcher(launcher *l)
{
    const launch_options *o = &l->options;
    int ranks = 0;
    if (l->options.grace_ns == 0) l->options.grace_ns = 30 * NS_PER_S;
    l->pid = getpid();
    l->signal_fd = -1;
    l->turn = -1;
    l->kill_ns = CLOCK_NEVER;
    l->begin_ns = l->watch_ns = l->progress_ns = clock_now_ns();
    l->oom_kills = cgroup_oom_kills("");
    gethostname(l->host, sizeof l->host - 1);
    l->jobs = calloc((size_t)o->job_count, sizeof *l->jobs);
    l->tables = calloc((size_t)o->job_count, sizeof *l->tables);
    if (!l->jobs || !l->tables) return fail(STATUS_SYSTEM, "launch: no memory");
    for (int i = 0; i < o->job_count; i++) {
        job_run *j = &l->jobs[i];
        j->job = &o->jobs[i];
        j->ranks = calloc((size_t)j->job->world, sizeof *j->ranks);
        if (!j->ranks) return fail(STATUS_SYSTEM, "launch: no memory for %d ranks", j->job->world);
        for (int r = 0; r < j->job->world; r++) j->ranks[r].pidfd = -1;
        ranks += j->job->world;
    }
    l->polled = calloc(1 + (size_t)o->job_count + (size_t)ranks, sizeof *l->polled);
    if (!l->polled) return fail(STATUS_SYSTEM, "launch: no memory for %d ranks", ranks);
    stop_signals_block(&l->signals, &l->original_mask);
    /* If SIGCHLD were ignored, children would leave no exit status. */
    sigaction(SIGCHLD, &(const struct sigaction){.sa_handler = SIG_DFL}, &l->original_child_action);
    l->signal_fd = signalfd(-1, &l->signals, SFD_CLOEXEC | SFD_NONBLOCK);
    return l->signal_fd >= 0 ? STATUS_OK : fail_errno(STATUS_SYSTEM, "launch: a descriptor for signals");
}

static void close_launcher(launcher *l)
{
    for (int i = 0; l->jobs && i < l->options.job_count; i++) {
        launch_reap_job(&l->jobs[i]);
        status_table_close(&l->jobs[i].table);
        free(l->jobs[i].ranks);
    }
    if (l->signal_fd >= 0) {
        close(l->signal_fd);
        sigaction(SIGCHLD, &l->original_child_action, NULL);
        if (!l->stop_signal) /* after a stop, signals must not end the report */
            sigprocmask(SIG_SETMASK, &l->original_mask, NULL);
    }
    free(l->jobs);
    free(l->tables);
    free(l->polled);
}

status launch_run(const launch_options *options, launch_outcome *out)
{
    launcher l = {.options = *options, .outcome = out};
    *out = (launch_outcome){.job = -1, .rank = -1};
    status result;
    TRY_GOTO(result, open_launcher(&l), done);
    for (int i = 0; i < options->job_count; i++) {
        TRY_GOTO(result, launch_spawn_job(&l, &l.jobs[i]), done);
        l.tables[i] = l.jobs[i].table;
    }
    result = loop(&l);
done:
    close_launcher(&l);
    return result;
}

status launch_run_and_log(const launch_options *options, int *exit_code)
{
    launch_outcome outcome;
    TRY(launch_run(options, &outcome));
    if (outcome.cause[0]) log_error("%s", outcome.cause);
    *exit_code = outcome.exit_code;
    return STATUS_OK;
}
