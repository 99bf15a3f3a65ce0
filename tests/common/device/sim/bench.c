#include "tests/common/device/sim/bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

void bench_set(simulation *s, sim_constant c, double value)
{
    for (int i = 0; i < sim_constant_table[c].count; i++) s->profile->values[c][i] = value;
}

void bench_open(bench *b, const char *profile, int world)
{
    memset(b, 0, sizeof *b);
    simulation_config config = {.profile = profile, .world = world};
    must(simulation_open(&config, &b->s));
    b->world = world;
    bench_set(b->s, SIM_LAUNCH_TIME, BENCH_LAUNCH_US);
    bench_set(b->s, SIM_KERNEL_OVERHEAD, 0);
    bench_set(b->s, SIM_SYNCHRONIZE_TIME, 0);
    bench_set(b->s, SIM_COPY_LATENCY, 0);
    bench_set(b->s, SIM_KAPPA, 1);
    bench_set(b->s, SIM_ELEMENTWISE, 1);
    bench_set(b->s, SIM_MEMORY_BANDWIDTH, 4); /* the bandwidth of one float32 per nanosecond */
}

void bench_start(bench *b)
{
    for (int r = 0; r < b->world; r++) {
        device_config config = {
            .name = "sim", .rank = r, .world = b->world, .threads = 1, .simulation = b->s};
        must(device_open(&config, &b->devices[r]));
        must(device_stream_open(b->devices[r], DEVICE_STREAM_COMPUTE, &b->streams[r]));
    }
}

void bench_close(bench *b)
{
    for (int k = 0; k < b->kernel_count; k++) device_release(&b->kernels[k].kernel);
    for (int r = 0; r < b->world; r++) {
        device_stream_close(&b->streams[r]);
        device_close(&b->devices[r]);
    }
    simulation_close(&b->s);
}

void bench_launch(bench *b, device_stream *s, int64_t us)
{
    int k = 0;
    while (k < b->kernel_count && b->kernels[k].us != us) k++;
    if (k == b->kernel_count) {
        assert_true(k < BENCH_KERNELS);
        op_desc op = {.kind = OP_fill, .type = DTYPE_F32, .u.elementwise = {.count = us * 1000}};
        b->kernels[k].us = us;
        must(device_prepare(b->devices[0], &op, NULL, &b->kernels[k].kernel));
        b->kernel_count++;
    }
    must(device_launch(s, b->kernels[k].kernel, NULL, NULL, NULL));
}

int bench_synchronize(bench *b, int rank, device_stream *s)
{
    int tries = 1;
    for (status rc = device_stream_synchronize(s); rc != STATUS_OK;
         rc = device_stream_synchronize(s), tries++) {
        if (rc != STATUS_AGAIN) must(rc);
        must(simulation_run_until_woken(b->s, sim_device_host(b->devices[rank])));
    }
    return tries;
}

double bench_mark_us(bench *b, int rank, device_stream *s, int slot)
{
    must(device_mark(s, slot));
    bench_synchronize(b, rank, s);
    return (double)device_mark_ns(s, slot) / 1000;
}

double bench_host_us(bench *b, int rank)
{
    return (double)device_now_ns(b->devices[rank]) / 1000;
}
