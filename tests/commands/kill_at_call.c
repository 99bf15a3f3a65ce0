/* Preloaded into a program. Counts, from 1, the system calls that make, write, move or remove a partial file
 * (common/checkpoint/atomic_file.h), and kills the process at call number KILL_AT. A write is killed in the
 * middle, any other call before it has an effect. A move counts twice, and the second time the process is
 * killed after the move. KILL_WITH is the signal, by default SIGKILL. If KILL_MEMORY is set, only the
 * creation of memory files counts. */
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_partial(const char *name)
{
    size_t length = strlen(name);
    return !getenv("KILL_MEMORY") && length > 8 && strcmp(name + length - 8, ".partial") == 0;
}

static int is_of_partial(int fd)
{
    char path[64], name[4096];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, name, sizeof name - 1);
    name[length > 0 ? length : 0] = '\0';
    return is_partial(name);
}

static int is_due(int counts)
{
    static int calls;
    const char *at = getenv("KILL_AT");
    return counts && at && ++calls == atoi(at);
}

static void strike(void)
{
    const char *with = getenv("KILL_WITH");
    raise(with ? atoi(with) : SIGKILL);
}

int memfd_create(const char *name, unsigned flags)
{
    if (is_due(getenv("KILL_MEMORY") != NULL)) strike();
    return (int)syscall(SYS_memfd_create, name, flags);
}

int openat(int folder, const char *name, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    if (is_due(is_partial(name))) strike();
    return (int)syscall(SYS_openat, folder, name, flags, mode);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    if (!is_due(is_of_partial(fd))) return syscall(SYS_write, fd, data, bytes);
    syscall(SYS_write, fd, data, bytes / 2);
    strike();
    return syscall(SYS_write, fd, (const char *)data + bytes / 2, bytes - bytes / 2) + (ssize_t)(bytes / 2);
}

int fsync(int fd)
{
    if (is_due(is_of_partial(fd))) strike();
    return (int)syscall(SYS_fsync, fd);
}

int renameat(int from, const char *name, int to, const char *new_name)
{
    if (is_due(is_partial(name))) strike();
    int result = (int)syscall(SYS_renameat, from, name, to, new_name);
    if (is_due(is_partial(name))) strike();
    return result;
}

int unlinkat(int folder, const char *name, int flags)
{
    if (is_due(is_partial(name))) strike();
    return (int)syscall(SYS_unlinkat, folder, name, flags);
}
