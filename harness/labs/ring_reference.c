#include "harness/labs/ring_relay.h"

#include "common/base/clock.h"
#include "labs/runner/ring_direct.h"

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

status ring_reference_links(int ranks, int64_t count, int *fd)
{
    *fd = memfd_create("lab links", MFD_CLOEXEC);
    if (*fd < 0) return fail_errno(STATUS_SYSTEM, "lab: shared memory for the links");
    if (ftruncate(*fd, (off_t)(ring_link_bytes((size_t)count) * (size_t)ranks)) == 0) return STATUS_OK;
    close(*fd);
    return fail_errno(STATUS_SYSTEM, "lab: shared memory for the links");
}

enum { MOST_RANKS = 16 };

typedef struct race {
    _Atomic int ready, go;
    int64_t path_ns[MOST_RANKS];
} race;

/* Returns the start of chunk c of n. The first count % n chunks have one element more. */
static int64_t chunk_begin(int64_t count, int n, int c)
{
    int64_t more = count % n;
    return c * (count / n) + (c < more ? c : more);
}

static int64_t all_reduce(void *links, int rank, int n, float *x, float *scratch, int64_t count)
{
    ring_path path = ring_path_begin();
    ring_link *right = ring_link_at(links, (size_t)count, rank),
              *left = ring_link_at(links, (size_t)count, (rank + n - 1) % n);
    for (int step = 0; step < 2 * (n - 1); step++) {
        int out = (rank - step + 2 * n) % n, in = (rank - step - 1 + 2 * n) % n;
        int64_t out_begin = chunk_begin(count, n, out), in_begin = chunk_begin(count, n, in);
        int64_t in_size = chunk_begin(count, n, in + 1) - in_begin;
        ring_link_send(right, (size_t)count, x + out_begin,
                       (size_t)(chunk_begin(count, n, out + 1) - out_begin), &path);
        if (step >= n - 1) { /* all-gather */
            ring_link_receive(left, x + in_begin, (size_t)in_size, &path);
            continue;
        }
        ring_link_receive(left, scratch, (size_t)in_size, &path);
        for (int64_t i = 0; i < in_size; i++) x[in_begin + i] += scratch[i];
    }
    ring_path_advance(&path);
    return path.ns;
}

static void run_rank(race *all, void *links, int rank, int n, int64_t count)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    float *x = malloc((size_t)count * sizeof *x),
          *scratch = malloc((size_t)(count / n + 1) * sizeof *scratch);
    if (!x || !scratch) _exit(1);
    for (int64_t i = 0; i < count; i++) x[i] = (float)(i % 7);
    memset(scratch, 0, (size_t)(count / n + 1) * sizeof *scratch);
    all_reduce(links, rank, n, x, scratch, count); /* touches all memory */
    ring_link *left = ring_link_at(links, (size_t)count, (rank + n - 1) % n);
    left->path_ns = 0; /* the link is no longer in use */
    atomic_fetch_add(&all->ready, 1);
    while (!atomic_load(&all->go)) clock_sleep_ns(100 * NS_PER_US);
    all->path_ns[rank] = all_reduce(links, rank, n, x, scratch, count);
    _exit(0);
}

/* Releases the ranks when all are ready, and waits until they end. Returns false if a rank has died. */
static bool run_race(race *all, const pid_t *pid, int started, int ranks)
{
    bool good = started == ranks;
    while (good && atomic_load(&all->ready) < ranks) {
        clock_sleep_ns(NS_PER_MS);
        for (int r = 0; r < ranks; r++) good = good && waitpid(pid[r], NULL, WNOHANG) == 0;
    }
    atomic_store(&all->go, 1);
    for (int r = 0; r < started; r++) {
        int how;
        if (!good) kill(pid[r], SIGKILL);
        good = waitpid(pid[r], &how, 0) == pid[r] && how == 0 && good;
    }
    return good;
}

status ring_reference_time(int ranks, int64_t count, int64_t *ns)
{
    size_t bytes = ring_link_bytes((size_t)count) * (size_t)ranks;
    race *all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    void *links = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid[MOST_RANKS];
    int started = 0;
    if (all == MAP_FAILED || links == MAP_FAILED)
        return fail_errno(STATUS_SYSTEM, "lab: shared memory for the reference");
    for (; started < ranks; started++) {
        pid[started] = fork();
        if (pid[started] == 0) run_rank(all, links, started, ranks, count);
        if (pid[started] < 0) break;
    }
    bool good = run_race(all, pid, started, ranks);
    *ns = 0;
    for (int r = 0; r < ranks; r++)
        if (all->path_ns[r] > *ns) *ns = all->path_ns[r];
    munmap(links, bytes);
    munmap(all, sizeof *all);
    return good ? STATUS_OK : fail(STATUS_SYSTEM, "lab: the reference's processes cannot run");
}
