/* Tests fibers: their stacks, and how they end when a simulation fails. */
#include "common/sim/fiber.h"
#include "tests/support/check.h"

#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MORE_THAN_A_STACK = (1 << 20) + (1 << 16), PAGE = 4096 };

static status return_at_once(void *context)
{
    (void)context;
    return STATUS_OK;
}

/* Writes a byte into each page below its own stack frame, as deep calls would. */
static status outgrow_the_stack(void *context)
{
    (void)context;
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    for (uintptr_t depth = PAGE; depth < MORE_THAN_A_STACK; depth += PAGE)
        *(volatile char *)(here - depth) = 1;
    return STATUS_OK;
}

static void outgrow(void)
{
    struct rlimit none = {0};
    setrlimit(RLIMIT_CORE, &none);
    signal(SIGSEGV, SIG_DFL);
    simulation *s;
    sim_actor upper, lower; /* the kernel maps the second stack below the first */
    must(simulation_open(&(simulation_config){.world = 1}, &s));
    must(sim_actor_open(s, &upper, 0, "upper"));
    must(sim_actor_open(s, &lower, 0, "lower"));
    must(sim_fiber_open(&upper, outgrow_the_stack, NULL));
    must(sim_fiber_open(&lower, return_at_once, NULL));
    sim_actor_wake(&upper, 0);
    simulation_run(s);
}

/* An earlier version wrote into the stack of the next fiber. */
static void a_fiber_that_outgrows_its_stack_ends_the_process(void **context)
{
    (void)context;
    pid_t child = fork();
    if (child == 0) {
        outgrow();
        _exit(0);
    }
    int end;
    assert_int_equal(waitpid(child, &end, 0), child);
    assert_false(WIFEXITED(end) && WEXITSTATUS(end) == 0);
}

typedef struct sleeper {
    sim_actor actor;
    status woke_with;
    bool ended;
} sleeper;

static status sleep_for_ever(void *context)
{
    sleeper *s = context;
    s->woke_with = sim_fiber_yield(&s->actor);
    assert_int_equal(sim_fiber_catch_up(&s->actor), STATUS_OK); /* the fiber has nothing to wait for */
    sim_actor_spend(&s->actor, 2 * SIM_US);                     /* moves the fiber's time beyond the clock */
    assert_int_equal(sim_fiber_catch_up(&s->actor), STATUS_STOPPED);
    s->ended = true;
    return s->woke_with;
}

static status fail_on_purpose(void *context)
{
    (void)context;
    return (fail)(STATUS_PEER, "rank 1 fails on purpose");
}

/* An earlier version freed the stack without unwinding it. */
static void when_a_rank_fails_the_fibers_of_the_others_unwind(void **context)
{
    (void)context;
    simulation *s;
    sim_actor broken, late;
    sleeper waits = {0};
    must(simulation_open(&(simulation_config){.world = 3}, &s));
    must(sim_actor_open(s, &waits.actor, 0, "waits"));
    must(sim_actor_open(s, &broken, 1, "broken"));
    must(sim_actor_open(s, &late, 2, "late"));
    must(sim_fiber_open(&waits.actor, sleep_for_ever, &waits));
    must(sim_fiber_open(&broken, fail_on_purpose, NULL));
    must(sim_fiber_open(&late, fail_on_purpose, NULL)); /* This fiber must not begin. */
    sim_actor_wake(&waits.actor, 0);
    sim_actor_wake(&broken, SIM_US);
    assert_int_equal(simulation_run(s), STATUS_PEER);
    assert_false(waits.ended);
    sim_fiber_close(&waits.actor);
    sim_fiber_close(&broken);
    sim_fiber_close(&late);
    assert_true(waits.ended);
    assert_int_equal(waits.woke_with, STATUS_STOPPED);
    assert_string_equal(error_message(), "rank 1 fails on purpose");
    error_clear();
    sim_actor_close(&waits.actor);
    sim_actor_close(&broken);
    sim_actor_close(&late);
    simulation_close(&s);
}

static status wait_with_memory(void *context)
{
    sim_actor *a = context;
    char *memory = malloc(100);
    assert_non_null(memory);
    status rc = sim_fiber_yield(a);
    free(memory);
    return rc;
}

/* The address sanitizer checks that memory that the fibers allocated is freed. */
static void when_one_of_1024_ranks_fails_nothing_leaks(void **context)
{
    (void)context;
    enum { RANKS = 1024, BROKEN = 700 };
    static sim_actor actors[RANKS];
    simulation *s;
    must(simulation_open(&(simulation_config){.profile = "dgx1-v100-4xib100", .world = RANKS}, &s));
    for (int r = 0; r < RANKS; r++) {
        must(sim_actor_open(s, &actors[r], r, "rank"));
        must(sim_fiber_open(&actors[r], r == BROKEN ? fail_on_purpose : wait_with_memory, &actors[r]));
        sim_actor_wake(&actors[r], r);
    }
    assert_int_equal(simulation_run(s), STATUS_PEER);
    for (int r = 0; r < RANKS; r++) {
        sim_fiber_close(&actors[r]);
        sim_actor_close(&actors[r]);
    }
    assert_string_equal(error_message(), "rank 1 fails on purpose");
    error_clear();
    simulation_close(&s);
}

/* Fails, waits, and then checks that its own error is still recorded. Other fibers must not see this
 * error. */
static status handle_a_failure(void *context)
{
    sleeper *s = context;
    assert_string_equal(error_message(), "");
    s->woke_with = (fail)(STATUS_DATA, "of %s", s->actor.name);
    sim_actor_spend(&s->actor, SIM_US);
    TRY(sim_fiber_catch_up(&s->actor));
    char own[32];
    snprintf(own, sizeof own, "of %s", s->actor.name);
    assert_string_equal(error_message(), own);
    error_clear();
    s->ended = true;
    return STATUS_OK;
}

static void each_fiber_has_its_own_error(void **context)
{
    (void)context;
    static const char *const names[] = {"one", "two"};
    simulation *s;
    sleeper fibers[2] = {0};
    must(simulation_open(&(simulation_config){.world = 2}, &s));
    for (int i = 0; i < 2; i++) {
        must(sim_actor_open(s, &fibers[i].actor, i, names[i]));
        must(sim_fiber_open(&fibers[i].actor, handle_a_failure, &fibers[i]));
        sim_actor_wake(&fibers[i].actor, 0);
    }
    must(simulation_run(s));
    assert_string_equal(error_message(), "");
    for (int i = 0; i < 2; i++) {
        assert_true(fibers[i].ended);
        sim_fiber_close(&fibers[i].actor);
        sim_actor_close(&fibers[i].actor);
    }
    simulation_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fiber_that_outgrows_its_stack_ends_the_process),
        cmocka_unit_test(when_a_rank_fails_the_fibers_of_the_others_unwind),
        cmocka_unit_test(each_fiber_has_its_own_error),
        cmocka_unit_test(when_one_of_1024_ranks_fails_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
