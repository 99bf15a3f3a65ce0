/* Preloaded into the processes of a job. One process is chosen: rank FAIL_RANK, or the launcher if FAIL_RANK
 * is "launcher". Allocation number FAIL_AT of this process fails, once. If FAIL_LIST is set, no allocation
 * fails. Instead the process writes the numbers of its allocations to that file, one number for each chain of
 * callers. */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static atomic_long calls;
static atomic_int chosen; /* 0 if it is not yet known whether this process is the chosen one. */
static long fail_at;
static int list = -1;
static _Thread_local bool inside; /* Set while backtrace() runs, which allocates at its first call. */

static void choose(void)
{
    const char *rank = getenv("RANK"), *wanted = getenv("FAIL_RANK"), *at = getenv("FAIL_AT");
    const char *path = getenv("FAIL_LIST");
    fail_at = at ? atol(at) : 0;
    bool here = wanted && strcmp(wanted, rank ? rank : "launcher") == 0;
    if (here && path) list = open(path, O_WRONLY | O_TRUNC | O_CREAT | O_CLOEXEC, 0600);
    atomic_store(&chosen, here ? 1 : -1);
}

/* Adds the allocation to the list, unless an allocation with the same callers is in it. */
static void add_to_list(long number)
{
    enum { DEPTH = 24, CHAINS = 1 << 17 };
    static _Atomic uint64_t seen[CHAINS];
    void *callers[DEPTH];
    uint64_t hash = 14695981039346656037u;
    inside = true;
    int depth = backtrace(callers, DEPTH);
    for (int i = 0; i < depth; i++) hash = (hash ^ (uintptr_t)callers[i]) * 1099511628211u;
    if (atomic_exchange(&seen[hash % CHAINS], hash) != hash) dprintf(list, "%ld\n", number);
    inside = false;
}

static void print_callers(void)
{
    void *callers[40];
    inside = true;
    backtrace_symbols_fd(callers, backtrace(callers, 40), STDERR_FILENO);
    inside = false;
}

static bool refuse(void)
{
    if (atomic_load(&chosen) == 0) choose();
    if (atomic_load(&chosen) < 0 || inside) return false;
    long number = atomic_fetch_add(&calls, 1) + 1;
    if (list >= 0) add_to_list(number);
    if (number != fail_at) return false;
    if (getenv("FAIL_TRACE")) print_callers();
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes)
{
    return refuse() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return refuse() ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
    return refuse() ? NULL : __libc_realloc(old, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    return refuse() ? NULL : __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    void *got = memalign(alignment, bytes);
    if (!got) return ENOMEM;
    *out = got;
    return 0;
}

void *mmap(void *where, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    static void *(*next)(void *, size_t, int, int, int, off_t);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "mmap");
    return (flags & MAP_ANONYMOUS) && refuse() ? MAP_FAILED
                                               : next(where, bytes, protection, flags, fd, offset);
}
