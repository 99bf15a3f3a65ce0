/* Tests the virtual device through device.h: description, memory, kernels, shared kernels, and times. */
#include "common/memory/piece.h"
#include "common/sim/price.h"
#include "tests/common/device/sim/bench.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void its_figures_are_marked_as_a_model_s(void **context)
{
    (void)context;
    device_config config = {.name = "sim:dgx1-p100", .world = 1, .threads = 1};
    device *d;
    must(device_open(&config, &d));
    const device_info *info = device_get_info(d);
    assert_string_equal(info->name, "sim");
    assert_true(info->simulated);
    assert_false(info->real);
    assert_false(info->host_addressable);
    assert_int_equal(info->compute_type, DTYPE_F32);
    assert_string_equal(info->description,
                        "virtual, profile dgx1-p100: DGX-1 with 8 Tesla P100-SXM2, NVLink hybrid cube mesh");
    assert_string_equal(sim_device_simulation(d)->profile->name, "dgx1-p100");
    device_close(&d);
    device_config cpu = {.name = "cpu", .world = 1, .threads = 1};
    must(device_open(&cpu, &d));
    assert_null(sim_device_simulation(d));
    device_close(&d);
}

static void names_that_are_wrong_are_refused(void **context)
{
    (void)context;
    static const struct {
        device_config config;
        status code;
    } cases[] = {{{.name = "sim:v200", .world = 1}, STATUS_USAGE},
                 {{.name = "simulated", .world = 1}, STATUS_USAGE},
                 {{.name = "sim", .world = 2}, STATUS_INTERNAL}};
    for (int i = 0; i < 3; i++) {
        device *d;
        assert_int_equal(device_open(&cases[i].config, &d), cases[i].code);
        assert_null(d);
        error_clear();
    }
}

static void memory_has_addresses_and_an_end(void **context)
{
    (void)context;
    bench b;
    bench_open(&b, "v100-pcie-32g", 2);
    bench_start(&b);
    device_memory a, c, other, large, staging;
    const size_t gib = (size_t)1 << 30;
    must(device_allocate(b.devices[0], DEVICE_MEMORY_PRIVATE, 10 * gib, &a));
    must(device_allocate(b.devices[0], DEVICE_MEMORY_SHARED, 20 * gib, &c));
    must(device_allocate(b.devices[1], DEVICE_MEMORY_PRIVATE, 30 * gib, &other));
    assert_true((char *)a.data + a.bytes <= (char *)c.data);
    assert_ptr_not_equal(a.data, other.data);
    assert_int_equal((uintptr_t)a.data % 64, 0);
    assert_int_equal(c.fd, -1);
    assert_int_equal(device_allocate(b.devices[0], DEVICE_MEMORY_PRIVATE, 3 * gib, &large), STATUS_SYSTEM);
    assert_string_equal(
        error_message(),
        "rank 0: no memory for 3.00 GiB: 30.00 GiB of the GPU's 32 GiB (v100-pcie-32g) are in use");
    error_clear();
    /* Staging buffers are in host memory, which is larger. */
    must(device_allocate(b.devices[0], DEVICE_MEMORY_STAGING, 100 * gib, &staging));
    device_free(b.devices[0], &a);
    must(device_allocate(b.devices[0], DEVICE_MEMORY_PRIVATE, 12 * gib, &large));
    device_free(b.devices[0], &large);
    device_free(b.devices[0], &c);
    device_free(b.devices[0], &staging);
    device_free(b.devices[1], &other);
    bench_close(&b);
}

static void memory_may_be_without_end(void **context)
{
    (void)context;
    simulation *s;
    simulation_config config = {.world = 1, .unlimited_memory = true};
    must(simulation_open(&config, &s));
    device_config of_rank = {.name = "sim", .world = 1, .threads = 1, .simulation = s};
    device *d;
    device_memory m;
    must(device_open(&of_rank, &d));
    must(device_allocate(d, DEVICE_MEMORY_PRIVATE, (size_t)1 << 39, &m));
    device_free(d, &m);
    device_close(&d);
    simulation_close(&s);
}

static void ranks_share_their_kernels(void **context)
{
    (void)context;
    bench b;
    bench_open(&b, NULL, 2);
    bench_start(&b);
    op_desc op = {.kind = OP_linear_forward, .type = DTYPE_F32, .u.linear = {.m = 64, .in = 100, .out = 10}};
    op_desc another = op;
    another.u.linear.m = 63;
    device_kernel *first, *second, *third;
    must(device_prepare(b.devices[0], &op, NULL, &first));
    must(device_prepare(b.devices[1], &op, NULL, &second));
    must(device_prepare(b.devices[1], &another, NULL, &third));
    assert_ptr_equal(first, second);
    assert_ptr_not_equal(first, third);
    assert_int_equal(device_kernel_workspace(first), 0);
    op.type = DTYPE_F64;
    assert_int_equal(device_prepare(b.devices[0], &op, NULL, &second), STATUS_INTERNAL);
    error_clear();
    device_release(&first);
    must(device_launch(b.streams[1], third, NULL, NULL,
                       NULL)); /* rank 0 has released its kernel, and the kernel of rank 1 still works */
    bench_synchronize(&b, 1, b.streams[1]);
    bench_close(&b);
}

static double price_us(bench *b, device_kernel *k, const op_scalars *scalars)
{
    device_stream *s;
    must(device_stream_open(b->devices[0], DEVICE_STREAM_COMPUTE, &s));
    must(device_mark(s, 0));
    double before = bench_host_us(b, 0);
    must(device_launch(s, k, NULL, scalars, NULL));
    double end = bench_mark_us(b, 0, s, 1);
    device_stream_close(&s);
    return end - before - BENCH_LAUNCH_US;
}

static void check_us(const char *what, double found, double expected)
{
    if (fabs(found - expected) > 0.0011) fail_msg("%s: found %.3f us, expected %.3f", what, found, expected);
}

/* SGD without momentum moves 12 bytes per element, which takes 3 ns at 4 GB/s. */
static void a_launch_over_pieces_takes_what_they_hold(void **context)
{
    (void)context;
    bench b;
    bench_open(&b, NULL, 1);
    bench_set(b.s, SIM_OPTIMIZER, 1);
    bench_start(&b);
    op_desc op = {.kind = OP_sgd, .type = DTYPE_F32, .u.optimizer = {.count = 1000000}};
    device_kernel *k;
    must(device_prepare(b.devices[0], &op, NULL, &k));
    piece pieces[] = {{0, 100000}, {400000, 150000}};
    op_scalars scalars = {.pieces = pieces, .piece_count = 2};
    check_us("a quarter of the elements", price_us(&b, k, &scalars), 750);
    check_us("all of them", price_us(&b, k, NULL), 3000);
    device_release(&k);
    bench_close(&b);
}

static void a_launch_over_fewer_rows_takes_what_they_take(void **context)
{
    (void)context;
    bench b;
    bench_open(&b, NULL, 1);
    bench_start(&b);
    op_desc op = {
        .kind = OP_linear_forward, .type = DTYPE_F32, .u.linear = {.m = 4096, .in = 1024, .out = 1024}};
    op_desc less = op;
    less.u.linear.m = 600;
    device_kernel *k;
    must(device_prepare(b.devices[0], &op, NULL, &k));
    op_scalars scalars = {.rows = 600};
    check_us("600 rows", price_us(&b, k, &scalars),
             sim_price_op(b.s->profile, SIM_FP32, &less) / (double)SIM_US);
    scalars.rows = 0;
    check_us("all rows", price_us(&b, k, &scalars),
             sim_price_op(b.s->profile, SIM_FP32, &op) / (double)SIM_US);
    device_release(&k);
    bench_close(&b);
}

typedef struct launcher {
    sim_actor actor;
    bench *b;
    double saw_us;
} launcher;

static status launch_one(void *context)
{
    launcher *l = context;
    bench_launch(l->b, l->b->streams[0], 5);
    l->saw_us = bench_host_us(l->b, 0);
    return STATUS_OK;
}

static void whoever_runs_is_charged(void **context)
{
    (void)context;
    bench b;
    bench_open(&b, NULL, 1);
    bench_start(&b);
    launcher l = {.b = &b};
    must(sim_actor_open(b.s, &l.actor, 0, "agent"));
    sim_actor_set_run(&l.actor, launch_one, &l);
    sim_actor_wake(&l.actor, 100 * SIM_US);
    must(simulation_run(b.s));
    check_us("the agent", l.saw_us, 110);
    check_us("the compute thread", bench_host_us(&b, 0), 0);
    assert_ptr_equal(sim_device_actor(b.devices[0]), sim_device_host(b.devices[0]));
    sim_actor_close(&l.actor);
    bench_close(&b);
}

typedef struct watcher {
    sim_actor actor;
    sim_listener listener;
    device_fence *fence;
    double times_us[4];
    uint64_t values[4];
    int count;
} watcher;

static status watch(void *context)
{
    watcher *w = context;
    w->times_us[w->count] = (double)sim_to_ns(w->actor.time) / 1000;
    while (device_fence_reached(w->fence, w->values[w->count] + 1)) w->values[w->count]++;
    w->count++;
    return STATUS_OK;
}

static void an_agent_is_woken_when_a_fence_of_its_device_moves(void **context)
{
    (void)context;
    bench b;
    bench_open(&b, NULL, 1);
    bench_start(&b);
    watcher w = {.count = 0};
    must(device_fence_open(b.devices[0], &w.fence));
    must(sim_actor_open(b.s, &w.actor, 0, "agent"));
    sim_actor_set_run(&w.actor, watch, &w);
    w.listener.actor = &w.actor;
    sim_device_listen(b.devices[0], &w.listener);
    for (uint64_t v = 1; v <= 2; v++) {
        bench_launch(&b, b.streams[0], 100);
        must(device_stream_signal(b.streams[0], w.fence, v));
    }
    must(simulation_run(b.s));
    assert_int_equal(w.count, 2);
    check_us("the first time", w.times_us[0], 110);
    check_us("the second time", w.times_us[1], 210);
    assert_int_equal(w.values[0], 1);
    assert_int_equal(w.values[1], 2);
    sim_device_leave(b.devices[0], &w.listener);
    device_fence_reach(w.fence, 9);
    must(simulation_run(b.s));
    assert_int_equal(w.count, 2);
    sim_actor_close(&w.actor);
    device_fence_close(&w.fence);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_figures_are_marked_as_a_model_s),
        cmocka_unit_test(names_that_are_wrong_are_refused),
        cmocka_unit_test(memory_has_addresses_and_an_end),
        cmocka_unit_test(memory_may_be_without_end),
        cmocka_unit_test(ranks_share_their_kernels),
        cmocka_unit_test(a_launch_over_pieces_takes_what_they_hold),
        cmocka_unit_test(a_launch_over_fewer_rows_takes_what_they_take),
        cmocka_unit_test(whoever_runs_is_charged),
        cmocka_unit_test(an_agent_is_woken_when_a_fence_of_its_device_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
