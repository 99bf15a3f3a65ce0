/* A small program that launches itself, for test_launch.c.
 *
 *   rank_program SCENARIO WORLD [JOBS]
 *
 * As launcher it prints "exit=CODE cause=LINE" on stdout and ends with CODE. As rank it prints "rank JOB RANK
 * PID", and does steps of a few milliseconds that a barrier synchronizes. After some steps it prints "trains
 * JOB RANK". The scenario says what goes wrong. It concerns rank 1 of the first job unless the scenario names
 * another one. */
#include "common/base/log.h"
#include "common/net/rendezvous.h"
#include "harness/launch/environment.h"
#include "harness/launch/launch.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { STEPS = 40, STEP_OF_REPORT = 3, STEP_OF_TROUBLE = 5, BLOCK = 8 };

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    char line[1400];
    va_list args;
    va_start(args, format);
    int used = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    ssize_t written = write(STDOUT_FILENO, line, (size_t)used);
    (void)written;
}

static bool stop_now(void *b)
{
    return job_stop_requested(b) != 0;
}

/* Computes without progress until the process is killed. */
static void spin(void)
{
    volatile bool forever = true;
    while (forever) {
    }
}

static void *die_later(void *unused)
{
    (void)unused;
    clock_sleep_ns(600 * NS_PER_MS);
    raise(SIGKILL);
    return NULL;
}

/* Lets rank 1 take a while to end after its first thread has ended, like a process that uses a GPU. */
static void die_slowly(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, die_later, NULL) == 0) pthread_exit(NULL);
}

/* Runs the scenario on rank 1, in the middle of backward. Returns the status with which the rank ends, if it
 * ends. */
static status trouble(const char *scenario, const launch_environment *e)
{
    if (strcmp(scenario, "kill") == 0) raise(SIGKILL);
    if (strcmp(scenario, "abort") == 0) {
        prctl(PR_SET_DUMPABLE, 0); /* Prevents a core file. */
        abort();
    }
    if (strcmp(scenario, "zero") == 0) _exit(0);
    if (strcmp(scenario, "seven") == 0) _exit(7);
    if (strcmp(scenario, "spin") == 0) spin();
    if (strcmp(scenario, "die-slowly") == 0) die_slowly();
    if (strcmp(scenario, "freeze") == 0) raise(SIGSTOP);
    if (strcmp(scenario, "data") == 0) {
        job_fail(e->table, e->rank, STATUS_DATA, "train.bin: offset 4096: truncated");
        return STATUS_DATA;
    }
    if (strcmp(scenario, "record-and-hang") == 0) {
        job_fail(e->table, e->rank, STATUS_IO, "disk on fire");
        spin();
    }
    return STATUS_OK;
}

/* No rank makes progress. Rank 1 has enqueued fewer collectives than the others, but rank 0 is the first to
 * report that it waits, shortly before the stall limit of the launcher. */
static status wait_for_rank_1(const launch_environment *e)
{
    uint32_t enqueued = e->rank == 1 ? 8 : 9;
    rank_slot_collectives(e->slot, enqueued, enqueued, 8);
    rank_slot_enter(e->slot, RANK_WAIT, clock_now_ns());
    clock_sleep_ns((e->rank == 0 ? 2700 : 60000) * NS_PER_MS);
    job_fail(e->table, e->rank, STATUS_PEER, "no progress");
    spin();
    return STATUS_PEER;
}

/* Rank 1 hangs in a call of NCCL, and the others wait for their GPUs. The last progress of rank 1 is seen
 * later than that of the others, so the others are the first to reach the stall limit. */
static void hang_in_nccl(const launch_environment *e)
{
    uint32_t enqueued = e->rank == 1 ? 8 : 9;
    if (e->rank == 1) clock_sleep_ns(400 * NS_PER_MS);
    rank_slot_collectives(e->slot, enqueued, enqueued, 8);
    rank_slot_enter(e->slot, e->rank == 1 ? RANK_BACKWARD : RANK_LOAD_BATCH, clock_now_ns());
    spin();
}

static status step(const launch_environment *e, rendezvous *r, const char *scenario, int64_t s)
{
    rank_slot_step(e->slot, s, clock_now_ns());
    rank_slot_enter(e->slot, RANK_FORWARD, clock_now_ns());
    clock_sleep_ns(2 * NS_PER_MS);
    rank_slot_enter(e->slot, RANK_BACKWARD, clock_now_ns());
    rank_slot_agent(e->slot, RANK_ALL_REDUCE, 3, clock_now_ns());
    if (s == STEP_OF_TROUBLE && e->rank == 1 && strcmp(e->job, "first") == 0) TRY(trouble(scenario, e));
    if (s == STEP_OF_TROUBLE && e->rank == 0 && strcmp(scenario, "die-slowly") == 0) {
        clock_sleep_ns(100 * NS_PER_MS);
        return fail(STATUS_PEER, "connection closed by remote peer");
    }
    if (s == STEP_OF_TROUBLE && strcmp(scenario, "all-wait") == 0) TRY(wait_for_rank_1(e));
    if (s == STEP_OF_TROUBLE && strcmp(scenario, "nccl-hangs") == 0) hang_in_nccl(e);
    clock_sleep_ns(2 * NS_PER_MS);
    rank_slot_enter(e->slot, RANK_WAIT, clock_now_ns());
    TRY(rendezvous_barrier(r, "step", clock_now_ns() + 60 * NS_PER_S));
    rank_slot_agent(e->slot, RANK_START, RANK_NO_BUCKET, clock_now_ns());
    return STATUS_OK;
}

static status train(const launch_environment *e, rendezvous *r, const char *scenario)
{
    bool stubborn = strcmp(scenario, "stubborn") == 0, turns = strstr(scenario, "turns") != NULL;
    bool endless = strncmp(scenario, "endless", 7) == 0 || stubborn;
    int64_t began_ns = 0;
    for (int64_t s = 0; endless || s < STEPS; s++) {
        if (!stubborn && job_stop_here(e->table, e->rank, s, false)) {
            say("stopped %s %d %" PRId64 "\n", e->job, e->rank, s);
            return STATUS_STOPPED;
        }
        if (turns && s % BLOCK == 0) {
            job_turn_wait(e->table, e->rank, (uint32_t)(s / BLOCK));
            began_ns = clock_now_ns();
        }
        if (s == STEP_OF_REPORT) say("trains %s %d\n", e->job, e->rank);
        TRY(step(e, r, scenario, s));
        if (turns && s % BLOCK == BLOCK - 1) {
            say("block %s %d %" PRId64 " %" PRId64 " %" PRId64 "\n", e->job, e->rank, s / BLOCK, began_ns,
                clock_now_ns());
            job_turn_done(e->table, e->rank, (uint32_t)(s / BLOCK));
        }
    }
    return STATUS_OK;
}

static status be_rank(const char *scenario, launch_environment *e)
{
    char prefix[48];
    snprintf(prefix, sizeof prefix, "%s rank %d", e->job, e->rank);
    log_set_prefix(prefix);
    say("rank %s %d %d %s\n", e->job, e->rank, (int)getpid(), e->rendezvous);
    if (strcmp(scenario, "die-early") == 0 && e->rank == 1) raise(SIGKILL);
    if (strcmp(scenario, "never-attach") == 0 && e->rank == 1) spin();
    rendezvous *r = NULL;
    const rendezvous_options options = {
        .url = e->rendezvous,
        .rank = e->rank,
        .world = e->world,
        .token = e->token,
        .key = e->key,
        .program = "test",
        .connect_limit_ns = 60 * NS_PER_S,
        .slot = e->slot,
        .canceled = stop_now,
        .context = e->table,
    };
    status result = rendezvous_open(&options, &r);
    if (result == STATUS_OK) result = train(e, r, scenario);
    rendezvous_close(&r);
    if (result == STATUS_OK)
        rank_slot_finish(e->slot);
    else if (result != STATUS_STOPPED)
        job_fail(e->table, e->rank, result, error_message());
    return result;
}

static void draw(void *context, const launch_view *view)
{
    (void)view;
    ++*(int *)context;
}

static int64_t milliseconds(const char *name, int64_t otherwise_ns)
{
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) * NS_PER_MS : otherwise_ns;
}

static int be_launcher(char **argv, int world, int jobs)
{
    const launch_job all[] = {
        {.name = "first", .world = world}, {.name = "second", .world = world}, {.name = "third", .world = 1}};
    launch_options options = {0};
    launch_outcome outcome;
    int draws = 0;
    options.jobs = all;
    options.job_count = jobs;
    options.argv = argv;
    options.take_turns = strstr(argv[1], "turns") != NULL;
    options.stall_timeout_ns = milliseconds("STALL_MS", 60 * NS_PER_S);
    options.grace_ns = milliseconds("GRACE_MS", 0);
    options.progress = draw;
    options.context = &draws;
    status result = launch_run(&options, &outcome);
    if (result != STATUS_OK) {
        say("launch failed: %s\n", error_message());
        return status_exit_code(result);
    }
    say("exit=%d job=%d rank=%d draws=%d cause=%s\n", outcome.exit_code, outcome.job, outcome.rank, draws,
        outcome.cause);
    return outcome.exit_code;
}

int main(int argc, char **argv)
{
    if (argc < 3) return status_exit_code(STATUS_USAGE);
    if (!launch_environment_is_rank()) return be_launcher(argv, atoi(argv[2]), argc > 3 ? atoi(argv[3]) : 1);
    launch_environment e;
    status result = launch_environment_open(false, &e);
    if (result == STATUS_OK)
        result = be_rank(argv[1], &e);
    else
        say("environment: %s\n", error_message());
    launch_environment_close(&e);
    return status_exit_code(result);
}
