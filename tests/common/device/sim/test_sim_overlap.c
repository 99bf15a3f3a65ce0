/* Tests overlap. Communication slows down computation by its share of the GPU, copies share links, and
 * processes on one machine slow each other down by the factor kappa. Times are in microseconds. A launch
 * takes 10 of the host's time. */
#include "tests/common/device/sim/bench.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void check_us(const char *what, double found, double expected)
{
    if (fabs(found - expected) > 0.0011) fail_msg("%s: found %.3f us, expected %.3f", what, found, expected);
}

/* An actor that communicates from a given time until `end`. */
typedef struct talk {
    sim_actor actor;
    device *device;
    sim_time end;
    sim_load load;
    bool talking;
} talk;

static status talk_on(void *context)
{
    talk *t = context;
    if (t->talking)
        sim_device_end_communication(t->device, t->load);
    else
        sim_device_begin_communication(t->device, t->load);
    t->talking = !t->talking;
    if (t->talking) sim_actor_wake(&t->actor, t->end);
    return STATUS_OK;
}

static void open_talk(bench *b, talk *t, sim_load load, int64_t begin_us, int64_t end_us)
{
    *t = (talk){.device = b->devices[0], .end = end_us * SIM_US, .load = load};
    must(sim_actor_open(b->s, &t->actor, 0, "talk"));
    sim_actor_set_run(&t->actor, talk_on, t);
    sim_actor_wake(&t->actor, begin_us * SIM_US);
}

/* A kernel that takes 100 starts at 10, and needs only memory bandwidth. Communication runs from 50 to 90. In
 * these 40 the kernel loses the communication's share of the memory bandwidth. The communication's share of
 * the multiprocessors does not slow the kernel down. */
static void communication_takes_its_share_of_the_memory(void **context)
{
    (void)context;
    static const double shares[] = {0, 0.25, 0.5, 1};
    for (int i = 0; i < 4; i++) {
        bench b;
        talk t;
        bench_open(&b, NULL, 1);
        bench_start(&b);
        open_talk(&b, &t, (sim_load){.sms = 0.9, .memory = shares[i]}, 50, 90);
        bench_launch(&b, b.streams[0], 100);
        check_us("the end of the kernel", bench_mark_us(&b, 0, b.streams[0], 0), 110 + shares[i] * 40);
        check_us("the slowdown", (double)device_mark_slowed_ns(b.streams[0], 0) / 1000, shares[i] * 40);
        sim_actor_close(&t.actor);
        bench_close(&b);
    }
}

/* Two transfers use a quarter of the bandwidth each, from 50 to 90 and from 70 to 130. Kernel a takes 50 and
 * starts at 10; kernel b follows and takes 40. At 50, 40 of kernel a are done, and kernel a ends at 63.333.
 * At 70, 5 of kernel b are done, and at 90, 15. The remaining 25 take 33.333. */
static void transfers_at_the_same_time_take_their_shares_each(void **context)
{
    (void)context;
    bench b;
    talk first, second;
    bench_open(&b, NULL, 1);
    bench_start(&b);
    open_talk(&b, &first, (sim_load){.memory = 0.25}, 50, 90);
    open_talk(&b, &second, (sim_load){.memory = 0.25}, 70, 130);
    bench_launch(&b, b.streams[0], 50);
    must(device_mark(b.streams[0], 0));
    bench_launch(&b, b.streams[0], 40);
    check_us("the end of b", bench_mark_us(&b, 0, b.streams[0], 1), 123.333);
    check_us("the end of a", (double)device_mark_ns(b.streams[0], 0) / 1000, 63.333);
    sim_actor_close(&first.actor);
    sim_actor_close(&second.actor);
    bench_close(&b);
}

/* A copy of 1.2 MB over PCIe at 12 GB/s takes 100. It uses a quarter of the memory bandwidth of 48 GB/s. */
static void a_copy_engine_takes_memory_and_no_multiprocessor(void **context)
{
    (void)context;
    bench b;
    device_stream *copies;
    bench_open(&b, "v100-pcie-32g", 1);
    bench_set(b.s, SIM_MEMORY_BANDWIDTH, 48); /* 12 floats per ns, of which the copy uses a quarter */
    bench_start(&b);
    must(device_stream_open(b.devices[0], DEVICE_STREAM_COPY, &copies));
    /* Begins at 20, would take 100 alone; at 110, 67.5 are done. */
    must(device_upload(copies, NULL, NULL, DTYPE_F32, DTYPE_F32, 300000));
    bench_launch(&b, b.streams[0], 1200); /* takes 100 alone, from 20; 67.5 are done at 110 */
    check_us("the kernel", bench_mark_us(&b, 0, b.streams[0], 0), 110 + (100 - 90 * 0.75));
    device_stream_close(&copies);
    bench_close(&b);
}

/* A signal that follows a slowed kernel is also late, and so is the stream that waits for the signal. */
static void a_signal_behind_a_slowed_kernel_comes_later(void **context)
{
    (void)context;
    bench b;
    talk t;
    device_stream *second;
    device_fence *f;
    bench_open(&b, NULL, 1);
    bench_start(&b);
    must(device_stream_open(b.devices[0], DEVICE_STREAM_COMMUNICATION, &second));
    must(device_fence_open(b.devices[0], &f));
    open_talk(&b, &t, (sim_load){.memory = 1}, 50, 1050);
    bench_launch(&b, b.streams[0], 100);
    must(device_stream_signal(b.streams[0], f, 1));
    must(device_stream_wait(second, f, 1));
    bench_launch(&b, second, 7); /* a communication stream is not slowed down */
    check_us("the end of the second stream", bench_mark_us(&b, 0, second, 0), 1117);
    sim_actor_close(&t.actor);
    device_fence_close(&f);
    device_stream_close(&second);
    bench_close(&b);
}

static void kappa_slows_compute_where_processes_share_a_machine(void **context)
{
    (void)context;
    static const struct {
        int world, processes;
        double expected;
    } cases[] = {{1, 0, 110}, {2, 0, 121}, {8, 0, 121}, {8, 1, 110}};
    for (int i = 0; i < 4; i++) {
        bench b;
        bench_open(&b, NULL, cases[i].world);
        bench_set(b.s, SIM_KAPPA, 1.11);
        b.s->config.processes = cases[i].processes;
        bench_start(&b);
        bench_launch(&b, b.streams[0], 100);
        check_us("the kernel", bench_mark_us(&b, 0, b.streams[0], 0), cases[i].expected);
        bench_close(&b);
    }
}

/* A copy of 12 MB over PCIe at 12 GB/s takes 1000. Two GPUs at one switch share the link from their switch to
 * the socket. Two GPUs at different switches share only the memory of the socket, whose bandwidth suffices
 * for both. */
static void copies_share_the_links_that_they_have_in_common(void **context)
{
    (void)context;
    static const struct {
        int other; /* a second GPU that copies at the same time, or 0 */
        double expected;
    } cases[] = {{0, 1010}, {1, 2010}, {2, 1010}, {4, 1010}};
    for (int i = 0; i < 4; i++) {
        bench b;
        bench_open(&b, "v100-pcie-32g", 8);
        bench_start(&b);
        must(device_upload(b.streams[0], NULL, NULL, DTYPE_F32, DTYPE_F32, 3000000));
        int other = cases[i].other;
        if (other) must(device_upload(b.streams[other], NULL, NULL, DTYPE_F32, DTYPE_F32, 3000000));
        check_us("the host", bench_host_us(&b, 0), 10);
        check_us("the copy", bench_mark_us(&b, 0, b.streams[0], 0), cases[i].expected);
        if (other)
            check_us("the other copy", bench_mark_us(&b, other, b.streams[other], 0), cases[i].expected);
        bench_close(&b);
    }
}

static void uploads_and_downloads_go_opposite_ways(void **context)
{
    (void)context;
    bench b;
    static float host[3000000];
    bench_open(&b, "v100-pcie-32g", 2);
    bench_set(b.s, SIM_COPY_LATENCY, 25);
    bench_start(&b);
    host[0] = 3;
    must(device_upload(b.streams[0], NULL, NULL, DTYPE_F32, DTYPE_F32, 3000000));
    must(device_download(b.streams[1], host, NULL, DTYPE_F32, DTYPE_F32, 3000000));
    assert_true(host[0] == 0);
    check_us("the upload", bench_mark_us(&b, 0, b.streams[0], 0), 1035);
    check_us("the download", bench_mark_us(&b, 1, b.streams[1], 0), 1035);
    bench_close(&b);
}

/* One process drives two GPUs: a kernel of 100 starts at 10, then 12 MB are copied over a link of 12 GB/s,
 * then a kernel of 50 runs on the other GPU. */
static void a_copy_between_gpus_of_a_process_takes_the_link_between_them(void **context)
{
    (void)context;
    bench b;
    device_fence *passed;
    bench_open(&b, "v100-pcie-32g", 2);
    b.s->config.per_process = 2;
    bench_set(b.s, SIM_COPY_LATENCY, 25);
    bench_start(&b);
    must(device_fence_open(b.devices[0], &passed));
    bench_launch(&b, b.streams[0], 100);
    must(device_stream_signal(b.streams[0], passed, 1));
    must(device_stream_wait(b.streams[1], passed, 1));
    must(device_copy_from(b.streams[1], NULL, b.devices[0], NULL, DTYPE_F32, 3000000));
    bench_launch(&b, b.streams[1], 50);
    check_us("the end", bench_mark_us(&b, 1, b.streams[1], 0), 110 + 25 + 1000 + 50);
    check_us("the first GPU", bench_mark_us(&b, 0, b.streams[0], 0), 110);
    device_fence_close(&passed);
    bench_close(&b);
}

/* A launch takes 10 us. Before it, a call holds the interpreter's lock for 4 us. If there are two threads,
 * one can call while the other launches. Five threads have to wait for the lock. */
static void threads_under_one_lock_call_one_after_another(void **context)
{
    (void)context;
    static const struct {
        int threads;
        double expected;
    } cases[] = {{0, 10}, {1, 14}, {2, 14}, {5, 20}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench b;
        bench_open(&b, NULL, 1);
        b.s->config.python = true;
        bench_set(b.s, SIM_PYTHON_CALL, 4);
        bench_start(&b);
        sim_device_share_interpreter(b.devices[0], cases[i].threads);
        bench_launch(&b, b.streams[0], 1);
        check_us("the host", bench_host_us(&b, 0), cases[i].expected);
        bench_close(&b);
    }
}

/* The thread of rank 0 makes the replicas, which takes 3 us per parameter, and all ranks wait for it. Without
 * an interpreter no rank waits. */
static void replicas_begin_when_they_are_wired(void **context)
{
    (void)context;
    for (int python = 0; python < 2; python++) {
        bench b;
        bench_open(&b, NULL, 2);
        b.s->config.python = python;
        bench_set(b.s, SIM_PYTHON_WIRE, 3);
        bench_start(&b);
        sim_device_wire(b.devices[0], 2, 10);
        for (int r = 0; r < 2; r++) {
            sim_device_await_wiring(b.devices[r]);
            check_us("a replica's thread", bench_host_us(&b, r), python ? 60 : 0);
        }
        bench_close(&b);
    }
}

/* ---- jitter ----------------------------------------------------------------------------------- */

static double jittered(uint64_t seed, int rank)
{
    bench b;
    bench_open(&b, NULL, 4);
    bench_set(b.s, SIM_JITTER_RANK, 0.1);
    bench_set(b.s, SIM_JITTER_KERNEL, 0.1);
    b.s->config.jitter_seed = seed;
    bench_start(&b);
    for (int i = 0; i < 20; i++) bench_launch(&b, b.streams[rank], 1000);
    double end = bench_mark_us(&b, rank, b.streams[rank], 0);
    bench_close(&b);
    return end;
}

static void jitter_is_the_same_for_the_same_seed(void **context)
{
    (void)context;
    assert_true(jittered(0, 0) == 20010 && jittered(0, 3) == 20010);
    assert_true(jittered(1, 0) == jittered(1, 0));
    assert_true(jittered(1, 0) != jittered(2, 0));
    assert_true(jittered(1, 0) != jittered(1, 3));
    double slow = jittered(1, 0);
    if (slow < 20010 || slow > 40000) fail_msg("with jitter: found %.1f us, expected 20010 to 40000", slow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(communication_takes_its_share_of_the_memory),
        cmocka_unit_test(transfers_at_the_same_time_take_their_shares_each),
        cmocka_unit_test(a_copy_engine_takes_memory_and_no_multiprocessor),
        cmocka_unit_test(a_signal_behind_a_slowed_kernel_comes_later),
        cmocka_unit_test(kappa_slows_compute_where_processes_share_a_machine),
        cmocka_unit_test(copies_share_the_links_that_they_have_in_common),
        cmocka_unit_test(uploads_and_downloads_go_opposite_ways),
        cmocka_unit_test(a_copy_between_gpus_of_a_process_takes_the_link_between_them),
        cmocka_unit_test(threads_under_one_lock_call_one_after_another),
        cmocka_unit_test(replicas_begin_when_they_are_wired),
        cmocka_unit_test(jitter_is_the_same_for_the_same_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
