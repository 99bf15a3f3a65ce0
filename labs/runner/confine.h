/* Limits the system calls of a process that runs a student's code to a list (seccomp(2)); all others fail
 * with EPERM. Before it executes the program, the grader installs a list that includes the calls of the
 * loader. Before it calls the student's function, the program installs a list without the calls of the
 * loader. The filter is raw BPF, so it needs only the headers of the C library. */
#ifndef LABS_RUNNER_CONFINE_H
#define LABS_RUNNER_CONFINE_H

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined __x86_64__
#define CONFINE_ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define CONFINE_ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "expected x86-64 or AArch64"
#endif

enum confine_stage { CONFINE_BEFORE_EXEC, CONFINE_SET_UP };

static const int confine_calls[] = {
    __NR_read,         __NR_write,          __NR_readv,        __NR_writev,      __NR_mmap,
    __NR_munmap,       __NR_mremap,         __NR_mprotect,     __NR_madvise,     __NR_brk,
    __NR_rt_sigaction, __NR_rt_sigprocmask, __NR_rt_sigreturn, __NR_sigaltstack, __NR_fstat,
    __NR_getpid,       __NR_gettid,         __NR_getuid,       __NR_geteuid,     __NR_getgid,
    __NR_getegid,      __NR_clock_gettime,  __NR_futex,        __NR_sched_yield, __NR_getrandom,
    __NR_exit,         __NR_exit_group,
};
/* Additional calls of the loader, the C library and the sanitizers, from the execution of the program until
 * main(). */
static const int confine_loader_calls[] = {
    __NR_execve,
    __NR_close,
    __NR_pread64,
    __NR_lseek,
    __NR_newfstatat,
    __NR_faccessat,
    __NR_readlinkat,
    __NR_prctl,
    __NR_seccomp,
    __NR_set_tid_address,
    __NR_set_robust_list,
    __NR_prlimit64,
    __NR_sysinfo,
    __NR_sched_getaffinity,
    __NR_uname,
    __NR_personality,
    __NR_getcwd,
#if defined __x86_64__
    __NR_arch_prctl,
    __NR_access,
    __NR_readlink,
    __NR_stat,
    __NR_getrlimit,
#endif
#if defined __NR_rseq
    __NR_rseq,
#endif
};

/* Restricts the process, and programs that it executes, to the list. Returns 0, or -1 if the kernel does not
 * support filters. */
static inline int confine(enum confine_stage stage)
{
    enum { MOST = 160 };
    struct sock_filter code[MOST];
    int n = 0;
    const uint32_t allow = SECCOMP_RET_ALLOW, refuse = SECCOMP_RET_ERRNO | EPERM;
#define LOAD(field)                                                                                          \
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(value) code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, value)
#define UNLESS(value, skip)                                                                                  \
    code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), 0, skip)
    LOAD(arch);
    UNLESS(CONFINE_ARCHITECTURE, 1);
    code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JA, 1, 0, 0);
    RETURN(refuse);
    LOAD(nr);
    for (size_t i = 0; i < sizeof confine_calls / sizeof confine_calls[0]; i++) {
        UNLESS(confine_calls[i], 1);
        RETURN(allow);
    }
    /* A process may send signals only to itself, as abort() does. */
    UNLESS(__NR_tgkill, 4);
    LOAD(args[0]);
    UNLESS(getpid(), 1);
    RETURN(allow);
    RETURN(refuse);
    if (stage == CONFINE_BEFORE_EXEC) {
        for (size_t i = 0; i < sizeof confine_loader_calls / sizeof confine_loader_calls[0]; i++) {
            UNLESS(confine_loader_calls[i], 1);
            RETURN(allow);
        }
        /* Files may be read, but not written, created or truncated. */
#define READ_ONLY(call, flags)                                                                               \
    UNLESS(call, 4);                                                                                         \
    LOAD(args[flags]);                                                                                       \
    code[n++] =                                                                                              \
        (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_ACCMODE | O_CREAT | O_TRUNC, 1, 0);       \
    RETURN(allow);                                                                                           \
    RETURN(refuse)
        READ_ONLY(__NR_openat, 2);
#if defined __x86_64__
        READ_ONLY(__NR_open, 1);
#endif
#undef READ_ONLY
    }
    RETURN(refuse);
#undef LOAD
#undef RETURN
#undef UNLESS
    struct sock_fprog program = {(unsigned short)n, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

#endif
