#include "tests/ps/processes.h"

#include "common/base/clock.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static size_t size_of(int count)
{
    return sizeof(processes) + (size_t)count * sizeof(process_outcome);
}

static void live(processes *all, int member, process_function function, void *context)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    process_outcome *me = &all->members[member];
    all->pids[member] = getpid(); /* Other members may need the process id before the parent has set it. */
    status rc = function(all, member, context);
    error_record record;
    error_copy(&record);
    memcpy(me->message, record.message, sizeof me->message);
    me->code = rc;
    _exit(rc == STATUS_OK ? 0 : 1);
}

/* Kills members that are stopped. The last running member may be one of them. */
static void kill_frozen(processes *all)
{
    for (int m = 0; m < all->count; m++) {
        siginfo_t info = {0};
        if (all->members[m].ended_ns) continue;
        if (waitid(P_PID, (id_t)all->pids[m], &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid)
            kill(all->pids[m], SIGKILL);
    }
}

static void wait_for_all(processes *all, int limit_s)
{
    int64_t until = clock_now_ns() + limit_s * NS_PER_S;
    for (int left = all->count; left > 0;) {
        for (int m = 0; m < all->count; m++) {
            process_outcome *o = &all->members[m];
            if (o->ended_ns || waitpid(all->pids[m], &o->wait_status, WNOHANG) != all->pids[m]) continue;
            o->ended_ns = clock_now_ns();
            left--;
            if (left == 1) kill_frozen(all);
        }
        if (clock_now_ns() > until) {
            for (int m = 0; m < all->count; m++)
                if (!all->members[m].ended_ns) kill(all->pids[m], SIGKILL);
            until = INT64_MAX;
        }
        clock_sleep_ns(NS_PER_MS);
    }
}

processes *processes_run(int count, process_function function, void *context, int limit_s)
{
    processes *all = mmap(NULL, size_of(count), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return NULL;
    all->count = count;
    for (int m = 0; m < count; m++) {
        all->members[m].code = STATUS_COUNT;
        pid_t pid = fork();
        if (pid == 0) live(all, m, function, context);
        all->pids[m] = pid;
    }
    wait_for_all(all, limit_s);
    return all;
}

void processes_free(processes *all)
{
    munmap(all, size_of(all->count));
}

status processes_barrier(processes *all)
{
    unsigned round = atomic_load(&all->round);
    int64_t until = clock_now_ns() + 60 * NS_PER_S;
    if (atomic_fetch_add(&all->waiting, 1) + 1 == all->count) {
        atomic_store(&all->waiting, 0);
        atomic_fetch_add(&all->round, 1);
        return STATUS_OK;
    }
    while (atomic_load(&all->round) == round) {
        if (clock_now_ns() > until) return fail(STATUS_PEER, "a member did not come to the barrier");
        clock_sleep_ns(20 * NS_PER_US);
    }
    return STATUS_OK;
}

status processes_exchange(processes *all, int member, sync_blob mine, sync_blob handshakes[PROCESSES_MAX])
{
    process_outcome *me = &all->members[member];
    if (mine.bytes > sizeof me->handshake)
        return fail(STATUS_INTERNAL, "a handshake of %zu bytes", mine.bytes);
    me->handshake_bytes = mine.bytes;
    memcpy(me->handshake, mine.data, mine.bytes);
    TRY(processes_barrier(all));
    for (int m = 0; m < all->count; m++)
        handshakes[m] = (sync_blob){all->members[m].handshake, all->members[m].handshake_bytes};
    return STATUS_OK;
}
