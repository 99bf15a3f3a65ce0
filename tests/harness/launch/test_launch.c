/* Tests with real processes. rank_program launches itself, fails in every way, and must still end properly.
 * Time limits are three times as long as the promised ones, since the machine may be busy. */
#include "harness/launch/launch.h"
#include "tests/common/net/net_test.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 8, TEXT_BYTES = 65536 };
#define GONE_NS (15 * NS_PER_S)              /* promised: 5 s after a failure */
#define GONE_WITH_LAUNCHER_NS (6 * NS_PER_S) /* promised: 2 s */

typedef struct run {
    pid_t pid; /* Process id of the launcher. */
    int out;   /* Pipe from stdout and stderr of the launcher. */
    char text[TEXT_BYTES];
    size_t length;
    int exit_code;
} run;

static void start(run *r, const char *scenario, const char *world, const char *jobs, const char *stall_ms)
{
    char program[512];
    int ends[2];
    snprintf(program, sizeof program, "%s/tests/rank_program", getenv("BUILD_DIR"));
    *r = (run){0};
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    r->pid = fork();
    if (r->pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        if (stall_ms) setenv("STALL_MS", stall_ms, 1);
        setenv("GRACE_MS", "500", 0);
        execl(program, program, scenario, world, jobs, NULL);
        _exit(127);
    }
    close(ends[1]);
    r->out = ends[0];
}

/* Reads until `text` has arrived. Returns false if the output ends or the deadline passes before that. */
static bool read_until(run *r, const char *text, int64_t deadline_ns)
{
    while (!text || !strstr(r->text, text)) {
        struct pollfd p = {.fd = r->out, .events = POLLIN};
        int64_t left = deadline_ns - clock_now_ns();
        if (left <= 0 || poll(&p, 1, (int)(left / NS_PER_MS) + 1) <= 0) return false;
        ssize_t got = read(r->out, r->text + r->length, sizeof r->text - 1 - r->length);
        if (got <= 0) return false;
        r->length += (size_t)got;
    }
    return true;
}

static void expect_text(run *r, const char *text)
{
    if (!read_until(r, text, clock_now_ns() + TEST_LIMIT_NS))
        fail_msg("expected '%s' in:\n%s", text, r->text);
}

static void finish(run *r)
{
    int state;
    read_until(r, NULL, clock_now_ns() + TEST_LIMIT_NS);
    close(r->out);
    if (waitpid(r->pid, &state, WNOHANG) == 0) {
        int64_t until = clock_now_ns() + TEST_LIMIT_NS;
        while (waitpid(r->pid, &state, WNOHANG) == 0 && clock_now_ns() < until)
            clock_sleep_ns(10 * NS_PER_MS);
    }
    r->exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

/* Reads the process ids and addresses of the ranks from their lines "rank JOB RANK PID URL". Returns the
 * number of ranks. */
static int ranks_of(const run *r, pid_t pids[RANKS_MAX], char urls[RANKS_MAX][64])
{
    int count = 0;
    for (const char *at = r->text; (at = strstr(at, "rank ")) && count < RANKS_MAX; at += 5) {
        char job[16];
        int rank, pid;
        if (sscanf(at, "rank %15s %d %d %63s", job, &rank, &pid, urls[count]) == 4) pids[count++] = pid;
    }
    return count;
}

static pid_t pid_of(const run *r, const char *job, int rank)
{
    char line[64];
    int pid = 0;
    snprintf(line, sizeof line, "rank %s %d ", job, rank);
    const char *at = strstr(r->text, line);
    if (!at || sscanf(at + strlen(line), "%d", &pid) != 1) fail_msg("no line '%s' in:\n%s", line, r->text);
    return pid;
}

static bool is_gone(pid_t pid)
{
    waitpid(pid, NULL, WNOHANG); /* This process has become the parent of orphaned ranks. */
    return kill(pid, 0) != 0;
}

/* Fails unless all processes and sockets of the run are gone within `limit_ns`. */
static void expect_nothing_left(const run *r, int64_t limit_ns)
{
    pid_t pids[RANKS_MAX];
    char urls[RANKS_MAX][64], line[512];
    int count = ranks_of(r, pids, urls), left;
    int64_t until = clock_now_ns() + limit_ns;
    assert_true(count > 0);
    for (;;) {
        left = 0;
        for (int i = 0; i < count; i++) left += !is_gone(pids[i]);
        if (left == 0 || clock_now_ns() >= until) break;
        clock_sleep_ns(5 * NS_PER_MS);
    }
    if (left > 0) fail_msg("%d ranks are left behind:\n%s", left, r->text);
    FILE *file = fopen("/proc/net/unix", "r");
    while (file && fgets(line, sizeof line, file))
        for (int i = 0; i < count; i++)
            if (strstr(line, urls[i] + strlen("ipc://"))) fail_msg("a socket is left behind: %s", line);
    if (file) fclose(file);
}

static void expect_end(const run *r, int exit_code, const char *const *texts)
{
    for (int i = 0; texts[i]; i++)
        if (!strstr(r->text, texts[i])) fail_msg("expected '%s' in:\n%s", texts[i], r->text);
    if (r->exit_code != exit_code)
        fail_msg("exit code %d, expected %d:\n%s", r->exit_code, exit_code, r->text);
}

static void a_failure_is_named_once_with_its_exit_code_and_nothing_is_left(void **state)
{
    (void)state;
    static const struct {
        const char *scenario, *stall_ms;
        int exit_code;
        const char *texts[4];
    } cases[] = {
        {"fine", NULL, 0, {"exit=0", "cause=\n"}},
        {"kill",
         NULL,
         75,
         {"cause=first rank 1 (host ",
          "at step 5 in backward, all_reduce of bucket 3 in flight: killed by signal 9"}},
        {"die-slowly", NULL, 75, {"cause=first rank 1 (host ", "killed by signal 9"}},
        {"abort", NULL, 75, {"cause=first rank 1 (host ", "killed by signal 6 (Aborted)"}},
        {"zero", NULL, 75, {"cause=first rank 1 (host ", "ended with exit code 0 before its work was done"}},
        {"seven", NULL, 7, {"cause=first rank 1 (host ", "ended with exit code 7"}},
        {"data",
         NULL,
         65,
         {"cause=first rank 1 (host ", "at step 5 in backward", ": train.bin: offset 4096: truncated"}},
        {"record-and-hang", NULL, 74, {"cause=first rank 1 (host ", ": disk on fire"}},
        {"die-early", NULL, 75, {"cause=first rank 1 (host ", "before step 0 in start: killed by signal 9"}},
        {"spin",
         "3000",
         75,
         {"cause=first rank 1 (host ", "at step 5 in backward",
          "no progress within the stall limit of 3.00 s"}},
        {"all-wait",
         "3000",
         75,
         {"cause=first rank 1 (host ", "in wait", "no progress within the stall limit of 3.00 s"}},
        {"nccl-hangs",
         "3000",
         75,
         {"cause=first rank 1 (host ", "at step 5 in backward",
          "no progress within the stall limit of 3.00 s"}},
        {"freeze",
         "4000",
         75,
         {"cause=first rank 1 (host ", ": stopped by a signal", "warning: first rank 1 (process "}},
        {"never-attach", "3000", 75, {"cause=first rank 1 (host ", "before step 0 in start: no progress"}},
    };
    enum { CASES = sizeof cases / sizeof cases[0] };
    static run runs[CASES]; /* All cases run at the same time, since they mostly wait. */
    for (int c = 0; c < CASES; c++) start(&runs[c], cases[c].scenario, "3", "1", cases[c].stall_ms);
    for (int c = 0; c < CASES; c++) {
        finish(&runs[c]);
        expect_end(&runs[c], cases[c].exit_code, cases[c].texts);
        expect_nothing_left(&runs[c], 0);
    }
}

static void a_failure_in_one_job_ends_the_others(void **state)
{
    (void)state;
    static const char *const texts[] = {"cause=first rank 1 (host ", "killed by signal 9", NULL};
    run r;
    start(&r, "kill", "2", "3", NULL);
    finish(&r);
    expect_end(&r, 75, texts);
    expect_nothing_left(&r, 0);
}

/* Waits until every rank has done some steps. */
static void wait_for_ranks(run *r, int world)
{
    char line[64];
    for (int i = 0; i < world; i++) {
        snprintf(line, sizeof line, "trains first %d\n", i);
        expect_text(r, line);
    }
}

static void a_rank_that_is_killed_from_outside_ends_the_run_in_time(void **state)
{
    (void)state;
    static const char *const texts[] = {"cause=first rank 2 (host ", "killed by signal 9 (Killed)", NULL};
    run r;
    start(&r, "endless", "3", "1", NULL);
    wait_for_ranks(&r, 3);
    int64_t begin = clock_now_ns();
    kill(pid_of(&r, "first", 2), SIGKILL);
    finish(&r);
    assert_true(clock_now_ns() - begin < GONE_NS);
    expect_end(&r, 75, texts);
    expect_nothing_left(&r, 0);
}

static void a_paused_rank_is_named_once_and_goes_on(void **state)
{
    (void)state;
    static const char behind[] = "is behind: no progress for ";
    run r;
    start(&r, "endless", "2", "1", NULL);
    wait_for_ranks(&r, 2);
    pid_t pid = pid_of(&r, "first", 1);
    kill(pid, SIGSTOP);
    expect_text(&r, behind);
    kill(pid, SIGCONT);
    clock_sleep_ns(200 * NS_PER_MS);
    kill(pid, SIGSTOP);
    clock_sleep_ns(2 * NS_PER_S); /* Waits as long as the delay that the first warning named. */
    kill(pid, SIGCONT);
    kill(r.pid, SIGINT);
    finish(&r);
    static const char *const texts[] = {"warning: first rank 1 (process ", "stopped by a signal", NULL};
    expect_end(&r, 130, texts);
    const char *first = strstr(r.text, behind);
    assert_true(atof(first + strlen(behind)) >= 1.0);
    assert_null(strstr(first + 1, "is behind"));
    expect_nothing_left(&r, 0);
}

static void killing_the_launcher_ends_all_ranks(void **state)
{
    (void)state;
    run r;
    start(&r, "endless", "3", "1", NULL);
    wait_for_ranks(&r, 3);
    kill(r.pid, SIGKILL);
    expect_nothing_left(&r, GONE_WITH_LAUNCHER_NS);
    finish(&r);
    assert_int_equal(r.exit_code, 128 + SIGKILL);
}

/* Checks that all ranks report that they stopped after the same step. */
static void expect_same_stop(const run *r, int ranks)
{
    int64_t first = -1, step;
    int count = 0, rank;
    char job[16];
    for (const char *at = r->text; (at = strstr(at, "stopped ")); at += 8) {
        if (sscanf(at, "stopped %15s %d %" SCNd64, job, &rank, &step) != 3) continue;
        if (first < 0) first = step;
        if (step != first)
            fail_msg("rank %d stopped before step %d, another before %d", rank, (int)step, (int)first);
        count++;
    }
    assert_int_equal(count, ranks);
    assert_true(first > 0);
}

static void one_signal_ends_all_ranks_after_the_same_step(void **state)
{
    (void)state;
    static const struct {
        int signal, exit_code;
        const char *text;
    } cases[] = {{SIGINT, 130, "Interrupt: ending after this step"},
                 {SIGTERM, 143, "Terminated: ending after this step"},
                 {SIGHUP, 129, "Hangup"},
                 {SIGUSR1, 138, "User defined signal 1"}};
    for (int c = 0; c < 4; c++) {
        const char *const texts[] = {cases[c].text, "cause=\n", NULL};
        run r;
        start(&r, "endless", "3", "1", NULL);
        wait_for_ranks(&r, 3);
        kill(r.pid, cases[c].signal);
        finish(&r);
        expect_end(&r, cases[c].exit_code, texts);
        expect_same_stop(&r, 3);
        expect_nothing_left(&r, 0);
    }
}

static void ranks_that_do_not_stop_are_ended_by_the_second_signal_or_by_the_grace_time(void **state)
{
    (void)state;
    static const struct {
        int first, second, exit_code;
    } cases[] = {{SIGINT, SIGINT, 130}, {SIGINT, SIGTERM, 143}, {SIGTERM, 0, 143}};
    static const char *const texts[] = {"cause=\n", NULL};
    for (int c = 0; c < 3; c++) {
        run r;
        setenv("GRACE_MS", cases[c].second ? "600000" : "500", 1);
        start(&r, "stubborn", "2", "1", NULL);
        unsetenv("GRACE_MS");
        wait_for_ranks(&r, 2);
        kill(r.pid, cases[c].first);
        expect_text(&r, "ending after this step");
        if (cases[c].second) {
            kill(r.pid, cases[c].second); /* The second signal counts like the first one. */
            clock_sleep_ns(STOP_SIGNALS_NS);
            /* The launcher waits for the end of the step. */
            assert_int_equal(waitpid(r.pid, NULL, WNOHANG), 0);
            kill(r.pid, cases[c].second);
        }
        finish(&r);
        expect_end(&r, cases[c].exit_code, texts);
        expect_nothing_left(&r, 0);
    }
}

static void an_interrupt_reaches_ranks_in_the_rendezvous(void **state)
{
    (void)state;
    run r;
    start(&r, "never-attach", "3", "1", NULL);
    expect_text(&r, "rank first 0 ");
    clock_sleep_ns(200 * NS_PER_MS);
    kill(r.pid, SIGINT);
    expect_text(&r, "ending after this step");
    clock_sleep_ns(STOP_SIGNALS_NS);
    kill(r.pid, SIGINT); /* One of the ranks never checks for signals. */
    finish(&r);
    assert_int_equal(r.exit_code, 130);
    expect_nothing_left(&r, 0);
}

typedef struct block {
    char job[16];
    int rank;
    int64_t number, begin_ns, end_ns;
} block;

static void blocks_of_jobs_that_take_turns_never_overlap(void **state)
{
    (void)state;
    enum { BLOCKS_MAX = 64, BLOCKS = 5 * 5 };
    block blocks[BLOCKS_MAX];
    int count = 0;
    run r;
    start(&r, "turns", "2", "3", NULL);
    finish(&r);
    static const char *const texts[] = {"exit=0", NULL};
    expect_end(&r, 0, texts);
    for (const char *at = r.text; (at = strstr(at, "block ")) && count < BLOCKS_MAX; at += 6) {
        block *b = &blocks[count];
        count += sscanf(at, "block %15s %d %" SCNd64 " %" SCNd64 " %" SCNd64, b->job, &b->rank, &b->number,
                        &b->begin_ns, &b->end_ns) == 5;
    }
    assert_int_equal(count, BLOCKS); /* five blocks of 2 + 2 + 1 ranks */
    for (int i = 0; i < count; i++)
        for (int k = 0; k < count; k++) {
            const block *a = &blocks[i], *b = &blocks[k];
            bool same_job = strcmp(a->job, b->job) == 0;
            if (!same_job && a->begin_ns < b->end_ns && b->begin_ns < a->end_ns)
                fail_msg("block %d of %s and block %d of %s overlap", (int)a->number, a->job, (int)b->number,
                         b->job);
            /* The jobs alternate: each job runs a block before any job runs its next one. */
            if (a->number < b->number && a->begin_ns > b->begin_ns)
                fail_msg("block %d of %s comes before block %d of %s", (int)b->number, b->job, (int)a->number,
                         a->job);
        }
    expect_nothing_left(&r, 0);
}

static void an_interrupt_during_turns_ends_every_job(void **state)
{
    (void)state;
    run r;
    start(&r, "endless turns", "2", "2", NULL);
    expect_text(&r, "block first 0 0 ");
    kill(r.pid, SIGINT);
    finish(&r);
    assert_int_equal(r.exit_code, 130);
    expect_nothing_left(&r, 0);
}

int main(void)
{
    /* Orphans become children of this process, so that it can wait for them. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_is_named_once_with_its_exit_code_and_nothing_is_left),
        cmocka_unit_test(a_failure_in_one_job_ends_the_others),
        cmocka_unit_test(a_rank_that_is_killed_from_outside_ends_the_run_in_time),
        cmocka_unit_test(a_paused_rank_is_named_once_and_goes_on),
        cmocka_unit_test(killing_the_launcher_ends_all_ranks),
        cmocka_unit_test(one_signal_ends_all_ranks_after_the_same_step),
        cmocka_unit_test(ranks_that_do_not_stop_are_ended_by_the_second_signal_or_by_the_grace_time),
        cmocka_unit_test(an_interrupt_reaches_ranks_in_the_rendezvous),
        cmocka_unit_test(blocks_of_jobs_that_take_turns_never_overlap),
        cmocka_unit_test(an_interrupt_during_turns_ends_every_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
