/* Ranks as processes: the test starts its own program again, once per rank. */
#include "common/base/clock.h"
#include "tests/common/collectives/collective_case.h"
#include "tests/support/status_name.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 4, VICTIM = 1, COUNT = 20011 };

extern char **environ;

/* ---- the rank --------------------------------------------------------------------------------- */

static status run_cases(collective_group *group, case_arena *arena)
{
    for (int kind = 0; kind < COLLECTIVE_KIND_COUNT; kind++) {
        if (kind == COLLECTIVE_RECEIVE) continue;
        for (int memory = 0; memory < CASE_MEMORY_COUNT; memory++) {
            collective_case c = {(collective_kind)kind,
                                 REDUCE_MEAN,
                                 DTYPE_F32,
                                 COUNT,
                                 2,
                                 memory % 2 == 0 && kind != COLLECTIVE_ALL_TO_ALL,
                                 (case_memory)memory};
            TRY(case_run(group, arena, &c));
        }
    }
    return STATUS_OK;
}

static status run_rank(const char *mode, rank_context *context)
{
    case_arena arena = {0};
    collective_world *world = NULL;
    collective_group *group = NULL;
    status rc;
    TRY_GOTO(rc, case_arena_open(COUNT, &arena), out);
    collective_window window = {arena.window.data, arena.window.bytes, arena.window.fd};
    collective_config config = ranks_config(context);
    config.windows = &window;
    config.window_count = 1;
    if (strcmp(mode, "stop") == 0) config.stall_timeout_ns = 2 * NS_PER_S;
    TRY_GOTO(rc, ranks_open_world("ring", &config, &world), out);
    TRY_GOTO(rc, ranks_group(context, world, &group), out);
    TRY_GOTO(rc, run_cases(group, &arena), out);
    if (context->rank == VICTIM && strcmp(mode, "kill") == 0) raise(SIGKILL);
    if (context->rank == VICTIM && strcmp(mode, "stop") == 0) raise(SIGSTOP);
    rc = run_cases(group, &arena);
out:
    collective_group_close(&group);
    collective_close(&world);
    case_arena_close(&arena);
    return rc;
}

static int rank_main(char **arguments)
{
    rank_context context = {
        .rank = atoi(arguments[1]), .world = WORLD, .token = strtoull(arguments[2], NULL, 16)};
    status rc = run_rank(arguments[0], &context);
    if (rc != STATUS_OK) printf("%s: %s\n", status_name(rc), error_message());
    return status_exit_code(rc);
}

/* ---- the test --------------------------------------------------------------------------------- */

typedef struct child {
    pid_t pid;
    int output;
    int end; /* Wait status, as waitpid() returns it. */
    char text[512];
} child;

static void start(child *c, const char *mode, int rank, const char *token)
{
    char number[16], program[] = "test", flag[] = "--rank", mode_text[8], token_text[24];
    int ends[2];
    posix_spawn_file_actions_t actions;
    snprintf(number, sizeof number, "%d", rank);
    snprintf(mode_text, sizeof mode_text, "%s", mode);
    snprintf(token_text, sizeof token_text, "%s", token);
    char *arguments[] = {program, flag, mode_text, number, token_text, NULL};
    assert_int_equal(pipe(ends), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    assert_int_equal(posix_spawn(&c->pid, "/proc/self/exe", &actions, NULL, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    c->output = ends[0];
}

static void finish(child *c)
{
    ssize_t used = 0, got;
    while ((got = read(c->output, c->text + used, sizeof c->text - 1 - (size_t)used)) > 0) used += got;
    c->text[used] = '\0';
    close(c->output);
    while (waitpid(c->pid, &c->end, 0) < 0 && errno == EINTR) {
    }
}

static void run_processes(const char *mode, child *children)
{
    char token[24];
    snprintf(token, sizeof token, "%llx",
             (unsigned long long)clock_now_ns() ^ (unsigned long long)getpid() << 40);
    for (int r = 0; r < WORLD; r++) start(&children[r], mode, r, token);
    for (int r = 0; r < WORLD; r++)
        if (r != VICTIM) finish(&children[r]);
    if (strcmp(mode, "well") != 0) kill(children[VICTIM].pid, SIGKILL);
    finish(&children[VICTIM]);
}

static void processes_agree_with_a_plain_loop(void **state)
{
    (void)state;
    child children[WORLD];
    run_processes("well", children);
    for (int r = 0; r < WORLD; r++)
        if (children[r].end != 0)
            fail_msg("rank %d ended with 0x%x: %s", r, children[r].end, children[r].text);
}

/* Checks that the message of every remaining rank contains both texts. */
static void expect_end(const char *mode, const char *text, const char *other_text)
{
    child children[WORLD];
    run_processes(mode, children);
    for (int r = 0; r < WORLD; r++) {
        if (r == VICTIM) {
            assert_true(WIFSIGNALED(children[r].end));
            continue;
        }
        if (!WIFEXITED(children[r].end) || WEXITSTATUS(children[r].end) != 75 ||
            !strstr(children[r].text, text) || !strstr(children[r].text, other_text))
            fail_msg("rank %d ended with 0x%x, found '%s', expected '%s' and '%s'", r, children[r].end,
                     children[r].text, text, other_text);
    }
}

static void a_killed_process_is_named(void **state)
{
    (void)state;
    char text[64];
    snprintf(text, sizeof text, "rank %d (process ", VICTIM);
    expect_end("kill", text, " is gone");
}

static void a_stopped_process_is_named_at_the_stall_timeout(void **state)
{
    (void)state;
    expect_end("stop", "no progress for 2.00 s", "rank 1");
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "--rank") == 0) return rank_main(argv + 2);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_agree_with_a_plain_loop),
        cmocka_unit_test(a_killed_process_is_named),
        cmocka_unit_test(a_stopped_process_is_named_at_the_stall_timeout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
