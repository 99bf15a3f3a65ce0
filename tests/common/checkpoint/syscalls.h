/* Wrappers of the system calls that save a file; the linker puts them in place of the C library's functions
 * (CMakeLists.txt). Each call is counted. A plan can make one call fail, write less than asked, or be the
 * last call of the process. */
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
    int kill_before; /* Number of the call, from 1, before which SIGKILL ends the process, or 0 to kill at no
                        call. */
    /* True if a write at which the process is killed first writes half of its bytes. */
    bool half;
    /* For each name, number of the call, from 1, that fails, or 0 if none fails. */
    int fail_at[SYSCALL_COUNT];
    int error;        /* The errno of a call that fails. */
    size_t most;      /* Largest number of bytes that one write accepts, or 0 for no limit. */
    bool interrupted; /* True if every second write and fsync fails with EINTR. */
} syscall_plan;

/* Sets the plan, and starts to count from the beginning. */
void syscalls_plan(const syscall_plan *plan);
int syscalls_so_far(void);
int syscalls_named(syscall_name name);

#endif
