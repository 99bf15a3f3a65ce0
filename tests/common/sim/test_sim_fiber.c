/* Fibers: stacks of their own. */
#include "common/sim/fiber.h"
#include "tests/support/check.h"

#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MORE_THAN_A_STACK = (1 << 20) + (1 << 16), PAGE = 4096 };

static status return_at_once(void *context)
{
    (void)context;
    return STATUS_OK;
}

/* Writes a byte into each page below its own, as deep calls would. */
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

/* Before, it wrote into the stack of the next fiber. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fiber_that_outgrows_its_stack_ends_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
