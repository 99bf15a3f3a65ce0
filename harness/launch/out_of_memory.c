#include "harness/launch/out_of_memory.h"

#include "common/base/log.h"
#include "harness/launch/environment.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static status_table *reported_to;
static int reporting_rank;

void out_of_memory_report_to(status_table *table, int rank)
{
    reporting_rank = rank;
    reported_to = table;
}

/* Ends the process without allocating. A rank without a table is silent, because its launcher explains the
 * exit code. */
static _Noreturn void end(const char *what)
{
    errno = ENOMEM;
    error_clear();
    status code = fail(STATUS_SYSTEM, "no memory for %s", what);
    if (reported_to)
        job_fail(reported_to, reporting_rank, code, error_message());
    else if (!launch_environment_is_rank())
        log_error("%s", error_message());
    _exit(status_exit_code(code));
}

static void end_new(void)
{
    end("an object of a library (operator new)");
}

static void *allocate_json(size_t bytes)
{
    void *out = malloc(bytes);
    if (!out) end("a value of JSON");
    return out;
}

static void end_exit(int exit_code, void *unused)
{
    (void)unused;
    if (exit_code != 0 && errno == ENOMEM) end("a library, which ended the process");
}

/* If errno is ENOMEM at a crash, ends the process with the message about memory. If a crash has another
 * errno, or if another process sent the signal, ends the process as if there were no handler. */
static void end_crash(int number, siginfo_t *info, void *unused)
{
    char what[96];
    (void)unused;
    bool own = info->si_code > 0 || info->si_pid == getpid();
    snprintf(what, sizeof what, "a library, which then crashed: signal %d (%s)", number, sigdescr_np(number));
    if (own && errno == ENOMEM) end(what);
    /* A fault needs no raise(): it occurs again when the handler returns. */
    if (info->si_code <= 0) raise(number);
}

/* std::set_new_handler() under its mangled name, because the build may have no C++ compiler. NULL if no
 * library is written in C++. */
extern void *_ZSt15set_new_handlerPFvvE(void (*handler)(void)) __attribute__((weak));

void out_of_memory_watch(void)
{
    const struct sigaction action = {.sa_sigaction = end_crash, .sa_flags = SA_SIGINFO | SA_RESETHAND};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGABRT, &action, NULL);
    if (_ZSt15set_new_handlerPFvvE) _ZSt15set_new_handlerPFvvE(end_new);
    json_set_alloc_funcs(allocate_json, free);
    on_exit(end_exit, NULL);
}
