/* Runs random programs of kernels, signals, waits and marks on several streams. Compares the times with the
 * longest paths through the dependencies. */
#include "common/base/random.h"
#include "tests/common/device/sim/bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { STREAMS = 4, FENCES = 12, COMMANDS = 120, PROGRAMS = 400, UNKNOWN = -1 };

typedef enum kind { KERNEL, SIGNAL, WAIT, MARK } kind;

typedef struct command {
    kind kind;
    int stream, index; /* `index` is the number of a fence or of a mark's slot */
    int64_t us;
    int64_t host_us, end_us; /* time of enqueueing, and end or UNKNOWN */
} command;

typedef struct program {
    command commands[COMMANDS];
    int count;
    bool deadlock;
} program;

/* Makes a program that signals each fence at most once. Most waits come after their signal, some before
 * it. */
static void make_program(uint64_t seed, program *p)
{
    bool signaled[FENCES] = {false};
    int64_t host = 0;
    p->count = 20 + (int)random_below(seed, 0, COMMANDS - 20);
    p->deadlock = false;
    for (int i = 0; i < p->count; i++) {
        uint64_t at = 10 * (uint64_t)(i + 1);
        command *c = &p->commands[i];
        *c = (command){.stream = (int)random_below(seed, at, STREAMS),
                       .index = (int)random_below(seed, at + 1, FENCES)};
        uint64_t choice = random_below(seed, at + 2, 10);
        c->kind = choice < 5 ? KERNEL : choice < 7 ? SIGNAL : choice < 9 ? WAIT : MARK;
        if (c->kind == SIGNAL && signaled[c->index]) c->kind = MARK;
        if (c->kind == SIGNAL) signaled[c->index] = true;
        if (c->kind == WAIT && !signaled[c->index] && random_below(seed, at + 4, 8)) c->kind = MARK;
        if (c->kind == KERNEL) {
            c->us = 1 + (int64_t)random_below(seed, at + 3, 8) * 7;
            host += BENCH_LAUNCH_US;
        }
        c->host_us = host;
        c->end_us = UNKNOWN;
    }
    for (int i = 0; i < p->count; i++) {
        command *c = &p->commands[i];
        if (c->kind == WAIT && !signaled[c->index]) c->kind = MARK;
        if (c->kind == MARK) c->index = i;
    }
}

static int64_t signal_time(const program *p, int fence)
{
    for (int i = 0; i < p->count; i++)
        if (p->commands[i].kind == SIGNAL && p->commands[i].index == fence) return p->commands[i].end_us;
    return UNKNOWN;
}

/* Computes the end of every operation in passes over the program, until no end changes any more. */
static void find_ends(program *p)
{
    bool more = true;
    while (more) {
        more = false;
        int64_t last[STREAMS] = {0};
        for (int i = 0; i < p->count; i++) {
            command *c = &p->commands[i];
            int64_t start = last[c->stream];
            if (start != UNKNOWN && c->host_us > start) start = c->host_us;
            int64_t end = start == UNKNOWN ? UNKNOWN : start + c->us;
            if (c->kind == WAIT && end != UNKNOWN) {
                int64_t signaled = signal_time(p, c->index);
                end = signaled == UNKNOWN ? UNKNOWN : signaled > end ? signaled : end;
            }
            if (end != c->end_us) more = true;
            c->end_us = last[c->stream] = end;
        }
    }
    for (int i = 0; i < p->count; i++) p->deadlock = p->deadlock || p->commands[i].end_us == UNKNOWN;
}

static void enqueue(bench *b, device_stream **streams, device_fence **fences, const command *c)
{
    device_stream *s = streams[c->stream];
    switch (c->kind) {
    case KERNEL:
        bench_launch(b, s, c->us);
        break;
    case SIGNAL:
        must(device_stream_signal(s, fences[c->index], 1));
        break;
    case WAIT:
        must(device_stream_wait(s, fences[c->index], 1));
        break;
    case MARK:
        must(device_mark(s, c->index));
        break;
    }
}

static void check(uint64_t seed, const program *p, device_stream **streams)
{
    for (int i = 0; i < p->count; i++) {
        const command *c = &p->commands[i];
        if (c->kind != MARK) continue;
        int64_t found = device_mark_ns(streams[c->stream], c->index) / 1000;
        if (found != c->end_us)
            fail_msg("program %llu, mark %d on stream %d: found %lld us, expected %lld",
                     (unsigned long long)seed, i, c->stream, (long long)found, (long long)c->end_us);
    }
}

static void run_program(uint64_t seed, const program *p)
{
    bench b;
    device_stream *streams[STREAMS];
    device_fence *fences[FENCES];
    bench_open(&b, NULL, 1);
    bench_start(&b);
    for (int i = 0; i < STREAMS; i++)
        must(device_stream_open(b.devices[0], DEVICE_STREAM_COMPUTE, &streams[i]));
    for (int i = 0; i < FENCES; i++) must(device_fence_open(b.devices[0], &fences[i]));
    for (int i = 0; i < p->count; i++) enqueue(&b, streams, fences, &p->commands[i]);
    for (int i = 0; i < STREAMS; i++) bench_synchronize(&b, 0, streams[i]);
    check(seed, p, streams);
    for (int i = 0; i < FENCES; i++) device_fence_close(&fences[i]);
    for (int i = 0; i < STREAMS; i++) device_stream_close(&streams[i]);
    bench_close(&b);
}

static void random_programs_take_their_longest_path(void **context)
{
    (void)context;
    int run = 0;
    for (uint64_t seed = 1; seed <= PROGRAMS; seed++) {
        program p;
        make_program(seed, &p);
        find_ends(&p);
        if (p.deadlock) continue;
        run_program(seed, &p);
        run++;
    }
    if (run < PROGRAMS / 4) fail_msg("found %d programs of %d that can end", run, PROGRAMS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_programs_take_their_longest_path)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
