#include "tests/common/checkpoint/syscalls.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static syscall_plan plan;
static int total, named[SYSCALL_COUNT];

void syscalls_plan(const syscall_plan *p)
{
    plan = *p;
    total = 0;
    for (int i = 0; i < SYSCALL_COUNT; i++) named[i] = 0;
}

int syscalls_so_far(void)
{
    return total;
}

int syscalls_named(syscall_name name)
{
    return named[name];
}

/* Counts a call. Returns true if the call must fail with errno. */
static bool fails(syscall_name name)
{
    total++;
    named[name]++;
    if (plan.kill_before == total) raise(SIGKILL);
    bool now = plan.fail_at[name] > 0 && named[name] == plan.fail_at[name];
    bool interrupted = plan.interrupted &&
                       (name == SYSCALL_WRITE || name == SYSCALL_PWRITE || name == SYSCALL_FSYNC) &&
                       named[name] % 2 == 1;
    errno = now ? plan.error : interrupted ? EINTR : 0;
    return now || interrupted;
}

static size_t allowed(size_t size)
{
    if (plan.half && plan.kill_before == total + 1) return size / 2;
    return plan.most && size > plan.most ? plan.most : size;
}

int __real_open(const char *path, int flags, ...);
int __real_openat(int folder, const char *path, int flags, ...);
int __real_lstat(const char *path, struct stat *out);
int __real_flock(int fd, int operation);
int __real_fstat(int fd, struct stat *out);
int __real_fstatat(int folder, const char *path, struct stat *out, int flags);
int __real_unlinkat(int folder, const char *path, int flags);
ssize_t __real_write(int fd, const void *data, size_t size);
ssize_t __real_pwrite(int fd, const void *data, size_t size, off_t offset);
int __real_fsync(int fd);
int __real_renameat(int from_folder, const char *from, int to_folder, const char *to);
int __real_close(int fd);
int __wrap_open(const char *path, int flags, ...);
int __wrap_openat(int folder, const char *path, int flags, ...);
int __wrap_lstat(const char *path, struct stat *out);
int __wrap_flock(int fd, int operation);
int __wrap_fstat(int fd, struct stat *out);
int __wrap_fstatat(int folder, const char *path, struct stat *out, int flags);
int __wrap_unlinkat(int folder, const char *path, int flags);
ssize_t __wrap_write(int fd, const void *data, size_t size);
ssize_t __wrap_pwrite(int fd, const void *data, size_t size, off_t offset);
int __wrap_fsync(int fd);
int __wrap_renameat(int from_folder, const char *from, int to_folder, const char *to);
int __wrap_close(int fd);

int __wrap_open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return fails(SYSCALL_OPEN) ? -1 : __real_open(path, flags, mode);
}

int __wrap_openat(int folder, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return fails(SYSCALL_OPENAT) ? -1 : __real_openat(folder, path, flags, mode);
}

int __wrap_lstat(const char *path, struct stat *out)
{
    return fails(SYSCALL_LSTAT) ? -1 : __real_lstat(path, out);
}

int __wrap_flock(int fd, int operation)
{
    return fails(SYSCALL_FLOCK) ? -1 : __real_flock(fd, operation);
}

int __wrap_fstat(int fd, struct stat *out)
{
    return fails(SYSCALL_FSTAT) ? -1 : __real_fstat(fd, out);
}

int __wrap_fstatat(int folder, const char *path, struct stat *out, int flags)
{
    return fails(SYSCALL_FSTATAT) ? -1 : __real_fstatat(folder, path, out, flags);
}

int __wrap_unlinkat(int folder, const char *path, int flags)
{
    return fails(SYSCALL_UNLINKAT) ? -1 : __real_unlinkat(folder, path, flags);
}

ssize_t __wrap_write(int fd, const void *data, size_t size)
{
    size_t some = allowed(size);
    if (plan.half && plan.kill_before == total + 1 && __real_write(fd, data, some) < 0) return -1;
    return fails(SYSCALL_WRITE) ? -1 : __real_write(fd, data, some);
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t size, off_t offset)
{
    size_t some = allowed(size);
    if (plan.half && plan.kill_before == total + 1 && __real_pwrite(fd, data, some, offset) < 0) return -1;
    return fails(SYSCALL_PWRITE) ? -1 : __real_pwrite(fd, data, some, offset);
}

int __wrap_fsync(int fd)
{
    return fails(SYSCALL_FSYNC) ? -1 : __real_fsync(fd);
}

int __wrap_renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    return fails(SYSCALL_RENAMEAT) ? -1 : __real_renameat(from_folder, from, to_folder, to);
}

int __wrap_close(int fd)
{
    return fails(SYSCALL_CLOSE) ? -1 : __real_close(fd);
}
