/* Compares streams, fences and hosts with timelines written by hand. Times are in microseconds. A launch
 * costs the host 10. */
#include "tests/common/device/sim/bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void check_us(const char *what, double found, double expected)
{
    if (found != expected) fail_msg("%s: found %.3f us, expected %.3f", what, found, expected);
}

/* host    |launch a 10|launch b 20|launch c 30|       synchronize ...      | 310
 * stream              |a 10 ........ 110|b ......... 210|c ......... 310|        */
static void the_host_runs_ahead_and_waits_only_where_it_synchronizes(void **context)
{
    (void)context;
    bench b;
    bench_open(&b, NULL, 1);
    bench_start(&b);
    for (int i = 0; i < 3; i++) bench_launch(&b, b.streams[0], 100);
    check_us("the host after three launches", bench_host_us(&b, 0), 30);
    assert_int_equal(bench_synchronize(&b, 0, b.streams[0]), 2);
    check_us("the host after synchronize", bench_host_us(&b, 0), 310);
    assert_int_equal(bench_synchronize(&b, 0, b.streams[0]), 1);
    bench_close(&b);
}

/* host    |launch 10|launch 20|launch 30|
 * stream            |a 10 13| |b 20 23| |c 30 33|   kernels take 3, so the host is the bottleneck */
static void small_kernels_wait_for_the_host(void **context)
{
    (void)context;
    bench b;
    bench_open(&b, NULL, 1);
    bench_start(&b);
    for (int i = 0; i < 3; i++) bench_launch(&b, b.streams[0], 3);
    check_us("the end of the stream", bench_mark_us(&b, 0, b.streams[0], 0), 33);
    bench_close(&b);
}

static void what_a_wait_and_a_kernel_cost_beside_is_charged(void **context)
{
    (void)context;
    bench b;
    bench_open(&b, NULL, 1);
    bench_set(b.s, SIM_KERNEL_OVERHEAD, 2);
    bench_set(b.s, SIM_SYNCHRONIZE_TIME, 5);
    bench_start(&b);
    for (int i = 0; i < 3; i++) bench_launch(&b, b.streams[0], 100);
    bench_synchronize(&b, 0, b.streams[0]);
    check_us("the host", bench_host_us(&b, 0), 10 + 3 * 102 + 5);
    bench_close(&b);
}

static void marks_have_the_time_at_which_the_stream_passes_them(void **context)
{
    (void)context;
    bench b;
    bench_open(&b, NULL, 1);
    bench_start(&b);
    device_stream *s = b.streams[0];
    must(device_mark(s, 0));
    bench_launch(&b, s, 100);
    must(device_mark(s, 1));
    must(device_mark(s, 100));
    bench_launch(&b, s, 50);
    check_us("the last mark", bench_mark_us(&b, 0, s, 2), 160);
    assert_int_equal(device_mark_ns(s, 0), 0);
    assert_int_equal(device_mark_ns(s, 1), 110000);
    assert_int_equal(device_mark_ns(s, 100), 110000);
    assert_int_equal(device_mark_ns(s, DEVICE_MARKS - 1), 0);
    bench_close(&b);
}

/* stream a   |k 10 ........ 110| signal 1
 * stream b                     | wait 1 |k 110 ... 160|      launched by the host at 20 */
static void a_stream_waits_for_another(void **context)
{
    (void)context;
    bench b;
    bench_open(&b, NULL, 1);
    bench_start(&b);
    device_stream *second;
    device_fence *f;
    must(device_stream_open(b.devices[0], DEVICE_STREAM_COMMUNICATION, &second));
    must(device_fence_open(b.devices[0], &f));
    bench_launch(&b, b.streams[0], 100);
    must(device_stream_signal(b.streams[0], f, 1));
    must(device_stream_wait(second, f, 1));
    bench_launch(&b, second, 50);
    check_us("the host, which waits for neither", bench_host_us(&b, 0), 20);
    assert_false(device_fence_reached(f, 1));
    check_us("the end of the second stream", bench_mark_us(&b, 0, second, 0), 160);
    assert_true(device_fence_reached(f, 1));
    assert_false(device_fence_reached(f, 2));
    device_fence_close(&f);
    device_stream_close(&second);
    bench_close(&b);
}

/* The stream that waits is given the wait before the other stream is given the signal. */
static void a_wait_may_come_before_its_signal(void **context)
{
    (void)context;
    bench b;
    bench_open(&b, NULL, 1);
    bench_start(&b);
    device_stream *second;
    device_fence *f;
    must(device_stream_open(b.devices[0], DEVICE_STREAM_COMMUNICATION, &second));
    must(device_fence_open(b.devices[0], &f));
    must(device_stream_wait(second, f, 7));
    bench_launch(&b, second, 50); /* launched at 10, so it ends at 120 */
    bench_launch(&b, b.streams[0], 100);
    bench_launch(&b, b.streams[0], 30); /* launched at 20 */
    must(device_stream_signal(b.streams[0], f, 9));
    check_us("the end of the second stream", bench_mark_us(&b, 0, second, 0), 200);
    device_fence_close(&f);
    device_stream_close(&second);
    bench_close(&b);
}

typedef struct agent {
    sim_actor actor;
    device_fence *fence;
    uint64_t value;
    double saw_us;
    error_record *error;
} agent;

static status reach(void *context)
{
    agent *a = context;
    a->saw_us = (double)sim_to_ns(a->actor.time) / 1000;
    sim_actor_spend(&a->actor, 20 * SIM_US); /* work of the agent */
    if (a->error)
        device_fence_fail(a->fence, a->error);
    else
        device_fence_reach(a->fence, a->value);
    return STATUS_OK;
}

/* agent              asleep            | 500 works | 520 reaches
 * stream |k 10 . 110| wait                              |k 520 .. 620|
 * host   20, and free */
static void a_stream_waits_for_an_agent_while_the_host_goes_on(void **context)
{
    (void)context;
    bench b;
    agent a = {.value = 3};
    bench_open(&b, NULL, 1);
    bench_start(&b);
    must(device_fence_open(b.devices[0], &a.fence));
    must(sim_actor_open(b.s, &a.actor, 0, "agent"));
    sim_actor_set_run(&a.actor, reach, &a);
    sim_actor_wake(&a.actor, 500 * SIM_US);
    bench_launch(&b, b.streams[0], 100);
    must(device_stream_wait(b.streams[0], a.fence, 3));
    bench_launch(&b, b.streams[0], 100);
    check_us("the host", bench_host_us(&b, 0), 20);
    check_us("the end of the stream", bench_mark_us(&b, 0, b.streams[0], 0), 620);
    check_us("the agent", a.saw_us, 500);
    sim_actor_close(&a.actor);
    device_fence_close(&a.fence);
    bench_close(&b);
}

static void one_fence_serves_every_step(void **context)
{
    (void)context;
    bench b;
    bench_open(&b, NULL, 1);
    bench_start(&b);
    device_stream *s = b.streams[0];
    device_fence *f;
    must(device_fence_open(b.devices[0], &f));
    for (uint64_t step = 1; step <= 6; step++) {
        bench_launch(&b, s, 100);
        must(device_stream_signal(s, f, step));
        must(device_stream_wait(s, f, step));
    }
    bench_synchronize(&b, 0, s);
    assert_true(device_fence_reached(f, 6));
    check_us("the host", bench_host_us(&b, 0), 610);
    /* The fence reached this value long ago, so the wait takes no time. */
    must(device_stream_wait(s, f, 1));
    bench_launch(&b, s, 1);
    check_us("after an old value", bench_mark_us(&b, 0, s, 0), 621);
    device_fence_close(&f);
    bench_close(&b);
}

/* The host sets the fence to 1, 2 and 3 at 10, 20 and 30. A stream that waits for value 2 goes on at 20. */
static void a_wait_for_an_older_value_knows_when_that_was(void **context)
{
    (void)context;
    bench b;
    bench_open(&b, NULL, 2);
    bench_start(&b);
    device_fence *f;
    must(device_fence_open(b.devices[0], &f));
    for (uint64_t v = 1; v <= 3; v++) {
        bench_launch(&b, b.streams[0], 1);
        device_fence_reach(f, v);
    }
    must(device_stream_wait(b.streams[1], f, 2)); /* the host of rank 1 is still at time 0 */
    check_us("the second stream", bench_mark_us(&b, 1, b.streams[1], 0), 20);
    device_fence_close(&f);
    bench_close(&b);
}

static void a_failed_fence_ends_every_wait_with_its_error(void **context)
{
    (void)context;
    bench b;
    error_record error = {.code = STATUS_PEER, .message = "rank 5 was lost"};
    agent a = {.error = &error};
    bench_open(&b, NULL, 1);
    bench_start(&b);
    device_stream *s = b.streams[0], *second;
    must(device_stream_open(b.devices[0], DEVICE_STREAM_COMPUTE, &second));
    must(device_fence_open(b.devices[0], &a.fence));
    must(sim_actor_open(b.s, &a.actor, 0, "agent"));
    sim_actor_set_run(&a.actor, reach, &a);
    sim_actor_wake(&a.actor, 500 * SIM_US);
    device_fence_reach(a.fence, 1);
    bench_launch(&b, s, 100);
    must(device_stream_wait(s, a.fence, 2));
    bench_launch(&b, s, 100);
    assert_int_equal(device_stream_synchronize(s), STATUS_AGAIN);
    must(simulation_run_until_woken(b.s, sim_device_host(b.devices[0])));
    assert_int_equal(device_stream_synchronize(s), STATUS_PEER);
    assert_string_equal(error_message(), "rank 5 was lost");
    error_clear();
    assert_int_equal(device_stream_wait(s, a.fence, 1), STATUS_PEER);
    error_clear();
    must(device_stream_wait(second, a.fence, 1)); /* the fence reached this value before it failed */
    must(device_stream_wait(second, a.fence, 2));
    assert_int_equal(device_stream_synchronize(second), STATUS_PEER);
    error_clear();
    sim_actor_close(&a.actor);
    device_fence_close(&a.fence);
    device_stream_close(&second);
    bench_close(&b);
}

static void waiting_for_what_nobody_will_reach_is_said(void **context)
{
    (void)context;
    bench b;
    bench_open(&b, NULL, 1);
    bench_start(&b);
    device_fence *f;
    must(device_fence_open(b.devices[0], &f));
    bench_launch(&b, b.streams[0], 100);
    must(device_stream_wait(b.streams[0], f, 1));
    bench_launch(&b, b.streams[0], 100);
    assert_int_equal(device_stream_synchronize(b.streams[0]), STATUS_AGAIN);
    assert_int_equal(simulation_run_until_woken(b.s, sim_device_host(b.devices[0])), STATUS_INTERNAL);
    assert_non_null(strstr(error_message(), "and 1 wait: rank 0's compute thread for its stream to drain"));
    error_clear();
    device_stream_close(&b.streams[0]);
    device_fence_close(&f);
    bench_close(&b);
}

/* The queue of a stream grows and keeps its order. */
static void thousands_of_launches_fit(void **context)
{
    (void)context;
    bench b;
    bench_open(&b, NULL, 1);
    bench_start(&b);
    for (int i = 0; i < 3000; i++) {
        bench_launch(&b, b.streams[0], 12);
        if (i == 1499) must(device_mark(b.streams[0], 0));
    }
    check_us("the end", bench_mark_us(&b, 0, b.streams[0], 1), 10 + 3000 * 12);
    check_us("the middle", (double)device_mark_ns(b.streams[0], 0) / 1000, 10 + 1500 * 12);
    bench_close(&b);
}

/* ---- launches are calls ----------------------------------------------------------------------- */

static void where_a_launch_is_a_call_the_host_does_the_work_and_the_waiting(void **context)
{
    (void)context;
    bench b;
    agent a = {.value = 1};
    bench_open(&b, "cpu", 1);
    bench_start(&b);
    must(device_fence_open(b.devices[0], &a.fence));
    must(sim_actor_open(b.s, &a.actor, 0, "agent"));
    sim_actor_set_run(&a.actor, reach, &a);
    sim_actor_wake(&a.actor, 480 * SIM_US);
    bench_launch(&b, b.streams[0], 100);
    check_us("the host after a call", bench_host_us(&b, 0), 110);
    assert_int_equal(bench_synchronize(&b, 0, b.streams[0]), 1);
    assert_int_equal(device_stream_wait(b.streams[0], a.fence, 1), STATUS_AGAIN);
    must(simulation_run_until_woken(b.s, sim_device_host(b.devices[0])));
    must(device_stream_wait(b.streams[0], a.fence, 1));
    check_us("the host after a wait", bench_host_us(&b, 0), 500);
    must(device_stream_wait(b.streams[0], a.fence, 1));
    check_us("the host after a wait for what was", bench_host_us(&b, 0), 500);
    must(device_stream_signal(b.streams[0], a.fence, 2));
    assert_true(device_fence_reached(a.fence, 2));
    sim_actor_close(&a.actor);
    device_fence_close(&a.fence);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_runs_ahead_and_waits_only_where_it_synchronizes),
        cmocka_unit_test(small_kernels_wait_for_the_host),
        cmocka_unit_test(what_a_wait_and_a_kernel_cost_beside_is_charged),
        cmocka_unit_test(marks_have_the_time_at_which_the_stream_passes_them),
        cmocka_unit_test(a_stream_waits_for_another),
        cmocka_unit_test(a_wait_may_come_before_its_signal),
        cmocka_unit_test(a_stream_waits_for_an_agent_while_the_host_goes_on),
        cmocka_unit_test(one_fence_serves_every_step),
        cmocka_unit_test(a_wait_for_an_older_value_knows_when_that_was),
        cmocka_unit_test(a_failed_fence_ends_every_wait_with_its_error),
        cmocka_unit_test(waiting_for_what_nobody_will_reach_is_said),
        cmocka_unit_test(thousands_of_launches_fit),
        cmocka_unit_test(where_a_launch_is_a_call_the_host_does_the_work_and_the_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
