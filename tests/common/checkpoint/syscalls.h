/* The system calls with which a file is saved, wrapped by the linker (CMakeLists.txt): each is counted, and
 * one of them can fail, write less than asked, or be the last that the process makes. */
#ifndef TESTS_COMMON_CHECKPOINT_SYSCALLS_H
#define TESTS_COMMON_CHECKPOINT_SYSCALLS_H

#include <stdbool.h>
#include <stddef.h>

typedef enum syscall_name {
    SYSCALL_OPEN,
    SYSCALL_LSTAT,
    SYSCALL_OPENAT,
    SYSCALL_FLOCK,
    SYSCALL_FSTAT,
    SYSCALL_FSTATAT,
    SYSCALL_UNLINKAT,
    SYSCALL_WRITE,
    SYSCALL_PWRITE,
    SYSCALL_FSYNC,
    SYSCALL_RENAMEAT,
    SYSCALL_CLOSE,
    SYSCALL_COUNT
} syscall_name;

typedef struct syscall_plan {
    int kill_before; /* Number of the call, from 1, at which SIGKILL ends the process, or 0 for none. */
    bool half; /* True if that call, in case it is a write, writes half of its bytes before the process is
                  killed. */
    int fail_at[SYSCALL_COUNT]; /* Number of the call of each name, from 1, that fails, or 0 for none. */
    int error;                  /* The errno of a call that fails. */
    size_t most;                /* Most bytes that one write accepts, or 0 for no limit. */
    bool interrupted;           /* True if every second write and fsync fails with EINTR. */
} syscall_plan;

/* Sets the plan, and starts to count from the beginning. */
void syscalls_plan(const syscall_plan *plan);
int syscalls_so_far(void);
int syscalls_named(syscall_name name);

#endif
