/* Preloaded into a program that gcc built with -finstrument-functions. Writes which functions the program
 * entered, and on which thread, during one part of its run (the "stretch"). Functions are given in
 * environment variables by their addresses, in hexadecimal as nm prints them:
 *
 *   FUNCTION_TRACE_BEGIN   a function; the stretch begins with its last call before the stretch ends
 *   FUNCTION_TRACE_CALL    a function; its next call ends the stretch, and is not written
 *   FUNCTION_TRACE_RETURN  a function; its next return ends the stretch
 *   FUNCTION_TRACE_COUNT   number of the stretch that is written, from 1: a process may have several
 *   FUNCTION_TRACE_OUT     file name, to which the process's number is appended: lines of "thread address" */
#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 16, SLOTS = 4096 };

static uintptr_t begin, end_call, end_return, base;
static int wanted;
static atomic_int stretches, threads;
static atomic_bool is_open;
static _Atomic(uintptr_t) entered[THREADS][SLOTS];
static _Thread_local int thread = -1;

void __cyg_profile_func_enter(void *function, void *from);
void __cyg_profile_func_exit(void *function, void *from);

static int first_object(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    *(uintptr_t *)data = info->dlpi_addr;
    return 1;
}

static uintptr_t address(const char *variable)
{
    const char *text = getenv(variable);
    return text ? strtoull(text, NULL, 16) : 0;
}

__attribute__((constructor)) static void start(void)
{
    const char *count = getenv("FUNCTION_TRACE_COUNT");
    if (!count || !getenv("FUNCTION_TRACE_OUT")) return;
    dl_iterate_phdr(first_object, &base);
    wanted = atoi(count);
    begin = address("FUNCTION_TRACE_BEGIN");
    end_call = address("FUNCTION_TRACE_CALL");
    end_return = address("FUNCTION_TRACE_RETURN");
}

static void record(uintptr_t at)
{
    if (thread < 0) thread = atomic_fetch_add(&threads, 1) % THREADS;
    for (unsigned slot = (unsigned)(at >> 2);; slot++) {
        uintptr_t none = 0;
        if (atomic_load(&entered[thread][slot % SLOTS]) == at) return;
        if (atomic_compare_exchange_strong(&entered[thread][slot % SLOTS], &none, at)) return;
    }
}

static void forget(void)
{
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < SLOTS; i++) atomic_store(&entered[t][i], 0);
}

static void write_all(void)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.%d", getenv("FUNCTION_TRACE_OUT"), (int)getpid());
    FILE *file = fopen(name, "we");
    for (int t = 0; file && t < THREADS; t++)
        for (int i = 0; i < SLOTS; i++)
            if (entered[t][i]) fprintf(file, "%d %lx\n", t, (unsigned long)entered[t][i]);
    if (file) fclose(file);
}

static void end(void)
{
    if (atomic_exchange(&is_open, false) && atomic_fetch_add(&stretches, 1) + 1 == wanted) write_all();
}

void __cyg_profile_func_enter(void *function, void *from)
{
    (void)from;
    uintptr_t at = (uintptr_t)function - base;
    if (begin && at == begin && atomic_load(&stretches) < wanted) {
        forget();
        atomic_store(&is_open, true);
    }
    if (!atomic_load(&is_open)) return;
    if (at == end_call)
        end();
    else
        record(at);
}

void __cyg_profile_func_exit(void *function, void *from)
{
    (void)from;
    if (atomic_load(&is_open) && (uintptr_t)function - base == end_return) end();
}
