/* at_operation PID OPERATION STEP SIGNAL: sends a rank a signal in the middle of an operation.
 *
 * Stops the rank as soon as its status slot shows the operation (of the compute thread or of the agent) at
 * this step or a later one. If the rank is still in the operation after it has stopped, sends the signal. So
 * the rank dies in this operation, and not elsewhere. Prints the content of the slot. If hold_rank.so has
 * stopped the rank at its start, at_operation continues it when it begins to watch, so that it sees even the
 * first steps. */
#include "common/net/status_table.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { LIMIT_S = 120, ENVIRONMENT_BYTES = 1 << 18 };

typedef struct target {
    pid_t pid;
    status_table *table;
    int rank;
    const char *operation;
    long step;
    bool held; /* True if hold_rank.so has stopped the rank before its main(). */
} target;

static const char *variable(const char *environment, size_t bytes, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = environment; at < environment + bytes; at += strlen(at) + 1)
        if (strncmp(at, name, length) == 0 && at[length] == '=') return at + length + 1;
    return NULL;
}

/* Opens the status table of the rank's job. The rank's environment has the name of the table. */
static status attach(target *t)
{
    static char environment[ENVIRONMENT_BYTES];
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)t->pid);
    FILE *file = fopen(path, "re");
    size_t bytes = file ? fread(environment, 1, sizeof environment - 1, file) : 0;
    if (file) fclose(file);
    const char *fd = variable(environment, bytes, "HARNESS_STATUS_FD"),
               *token = variable(environment, bytes, "HARNESS_TOKEN");
    const char *world = variable(environment, bytes, "WORLD_SIZE"),
               *rank = variable(environment, bytes, "RANK");
    if (!fd || !token || !world || !rank) return fail(STATUS_DATA, "process %d is no rank", (int)t->pid);
    const char *job = variable(environment, bytes, "HARNESS_JOB"),
               *held_job = variable(environment, bytes, "HOLD_JOB"),
               *held_rank = variable(environment, bytes, "HOLD_RANK");
    t->held = job && held_job && held_rank && strcmp(job, held_job) == 0 && strcmp(rank, held_rank) == 0;
    t->rank = atoi(rank);
    snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)t->pid, fd);
    int memory = open(path, O_RDWR | O_CLOEXEC);
    if (memory < 0) return fail_errno(STATUS_DATA, "%s", path);
    return status_table_attach(memory, eventfd(0, EFD_CLOEXEC), strtoull(token, NULL, 16), atoi(world),
                               &t->table);
}

static bool is_there(const target *t, rank_status *s)
{
    status_table_read(t->table, t->rank, s);
    if (s->pid != (int)t->pid || s->step < t->step) return false;
    return strcmp(rank_operation_name(s->operation), t->operation) == 0 ||
           (s->agent != RANK_START && strcmp(rank_operation_name(s->agent), t->operation) == 0);
}

/* Returns the third field of /proc/PID/stat, which comes after a name in parentheses, or '-' if the process
 * has ended. */
static char state_of(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file) return '-';
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    const char *end = strrchr(text, ')');
    return end && end[1] ? end[2] : '-';
}

static bool wait_until_stopped(pid_t pid)
{
    char state = state_of(pid);
    for (; state != 'T' && state != '-' && state != 'Z'; state = state_of(pid))
        clock_sleep_ns(50 * NS_PER_US);
    /* The process has stopped, but some of its threads may still run. Waits until all have stopped. */
    clock_sleep_ns(NS_PER_MS);
    return state == 'T';
}

static bool stop(pid_t pid)
{
    return kill(pid, SIGSTOP) == 0 && wait_until_stopped(pid);
}

static status strike(const target *t, int signal)
{
    rank_status s;
    char where[RANK_STATUS_TEXT];
    int64_t until = clock_now_ns() + LIMIT_S * NS_PER_S;
    if (t->held && wait_until_stopped(t->pid)) kill(t->pid, SIGCONT);
    while (clock_now_ns() < until) {
        if (!is_there(t, &s)) {
            if (state_of(t->pid) == '-') break;
            clock_sleep_ns(20 * NS_PER_US);
            continue;
        }
        if (!stop(t->pid)) break;
        if (is_there(t, &s)) {
            kill(t->pid, signal);
            if (signal != SIGSTOP) kill(t->pid, SIGCONT);
            printf("%s\n", rank_status_format(&s, where, sizeof where));
            return STATUS_OK;
        }
        kill(t->pid, SIGCONT);
        clock_sleep_ns(NS_PER_MS);
    }
    status_table_read(t->table, t->rank, &s);
    return fail(STATUS_PEER, "process %d never was in %s at step %ld; now %s", (int)t->pid, t->operation,
                t->step, rank_status_format(&s, where, sizeof where));
}

int main(int argc, char *argv[])
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc != 5) return status_exit_code(STATUS_USAGE);
    target t = {.pid = atoi(argv[1]), .operation = argv[2], .step = atol(argv[3])};
    status rc = attach(&t);
    if (rc == STATUS_OK) rc = strike(&t, atoi(argv[4]));
    if (rc != STATUS_OK) fprintf(stderr, "at_operation: %s\n", error_message());
    status_table_close(&t.table);
    return status_exit_code(rc);
}
