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
    int kill_before;            /* SIGKILL instead of the n-th call, from 1; 0: never */
    bool half;                  /* if the n-th call writes, it writes half before that */
    int fail_at[SYSCALL_COUNT]; /* the n-th call of this name fails, from 1; 0: none */
    int error;                  /* with this errno */
    size_t most;                /* bytes that a write takes at once; 0: all */
    bool interrupted;           /* every second write and fsync fails with EINTR */
} syscall_plan;

/* Starts counting anew. */
void syscalls_plan(const syscall_plan *plan);
int syscalls_so_far(void);
int syscalls_named(syscall_name name);

#endif
