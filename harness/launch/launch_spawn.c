#include "common/base/random.h"
#include "harness/launch/launch_impl.h"
#include "harness/launch/processors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((format(printf, 1, 2))) static bool put(const char *format, ...)
{
    char *variable;
    va_list args;
    va_start(args, format);
    int length = vasprintf(&variable, format, args);
    va_end(args);
    return length >= 0 && putenv(variable) == 0;
}

static bool set_environment(const launch_node *n, const job_run *j, int rank)
{
    for (const char *const *v = j->job->environment; v && *v; v++) putenv((char *)*v);
    bool placed = put("RANK=%d", n ? n->first_rank + rank : rank) && put("LOCAL_RANK=%d", rank) &&
                  put("WORLD_SIZE=%d", n ? n->world : j->job->world) &&
                  put("LOCAL_WORLD_SIZE=%d", j->job->world) && put("HARNESS_JOB=%s", j->job->name);
    if (n) return placed && put("MASTER_ADDR=%s", n->address) && put("MASTER_PORT=%d", n->port);
    return placed && put("HARNESS_TOKEN=%016" PRIx64, j->token) && put("HARNESS_KEY=%s", j->key) &&
           put("HARNESS_RENDEZVOUS=%s", j->rendezvous) &&
           put("HARNESS_STATUS_FD=%d", status_table_memory_fd(j->table)) &&
           put("HARNESS_NOTIFY_FD=%d", status_table_notify_fd(j->table)) &&
           (!j->job->processors || put("HARNESS_PROCESSORS=%d", processors_usable()));
}

/* Turns the child into a rank, between fork and exec. The launcher has one thread, so the child may
 * allocate. Returns only after a failure, with errno. */
static void become_rank(const launcher *l, const job_run *j, int rank)
{
    const cpu_set_t *processors = j->job->processors;
    setpgid(0, j->group);
    /* If the parent died before prctl(), nobody sends the signal. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return;
    if (getppid() != l->pid) _exit(1);
    if (!set_environment(l->options.node, j, rank)) return;
    /* Must precede the loading of libraries, because OpenMP reads the allowed processors when it is
     * loaded. */
    if (processors && sched_setaffinity(0, sizeof *processors, &processors[rank]) != 0) return;
    int null = open("/dev/null", O_RDONLY);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0) return;
    if (null != STDIN_FILENO) close(null);
    int flags = l->options.node ? FD_CLOEXEC : 0; /* a rank of a node creates a table */
    fcntl(status_table_memory_fd(j->table), F_SETFD, flags);
    fcntl(status_table_notify_fd(j->table), F_SETFD, flags);
    sigprocmask(SIG_UNBLOCK, &l->signals, NULL);
    execv("/proc/self/exe", l->options.argv);
}

static status spawn(launcher *l, job_run *j, int rank)
{
    char what[64];
    int report[2]; /* pipe that closes at exec. If exec fails, the pipe has the child's errno. */
    rank_process *p = &j->ranks[rank];
    snprintf(what, sizeof what, "%s rank %d", j->job->name, rank);
    if (pipe2(report, O_CLOEXEC) != 0) return fail_errno(STATUS_SYSTEM, "launch: %s: a pipe", what);
    pid_t pid = fork();
    int reason = pid < 0 ? errno : 0;
    if (pid == 0) {
        become_rank(l, j, rank);
        reason = errno;
        ssize_t written = write(report[1], &reason, sizeof reason);
        _exit(written == (ssize_t)sizeof reason ? 126 : 127);
    }
    close(report[1]);
    if (pid > 0) {
        p->pid = pid;
        if (j->group == 0) j->group = pid;
        setpgid(pid, j->group); /* the child makes the same call, in case the child runs first */
        j->alive++;
        l->alive++;
        while (read(report[0], &reason, sizeof reason) < 0 && errno == EINTR) {
        }
    }
    close(report[0]);
    errno = reason;
    if (reason != 0) return fail_errno(STATUS_SYSTEM, "launch: %s cannot be started", what);
    p->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    p->changed_ns = clock_now_ns();
    if (p->pidfd < 0) return fail_errno(STATUS_SYSTEM, "launch: %s: a process descriptor", what);
    fcntl(p->pidfd, F_SETFD, FD_CLOEXEC);
    return STATUS_OK;
}

status launch_spawn_job(launcher *l, job_run *j)
{
    j->token = random_token();
    TRY(net_key_draw(j->key));
    snprintf(j->rendezvous, sizeof j->rendezvous, "ipc://@psring-%016" PRIx64, random_token());
    TRY(status_table_create(j->token, j->job->world, &j->table));
    if (l->options.take_turns) job_turn_grant(j->table, 0);
    for (int rank = 0; rank < j->job->world; rank++) TRY(spawn(l, j, rank));
    return STATUS_OK;
}

void launch_kill_job(const job_run *j, int signal)
{
    if (j->group > 0) kill(-j->group, signal);
}

void launch_reap_job(job_run *j)
{
    launch_kill_job(j, SIGKILL);
    for (int rank = 0; j->ranks && rank < j->job->world; rank++) {
        rank_process *p = &j->ranks[rank];
        if (p->pidfd >= 0) close(p->pidfd);
        while (p->pid > 0 && waitpid(p->pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
}
