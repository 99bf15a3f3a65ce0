/* Tests the reduction of gradients in buckets. The all-reduce of a bucket is a task on a second stream and
 * waits for a fence that the compute stream signals. There are four GPUs over PCIe. The expected timelines
 * are written by hand. */
#include "common/sim/group.h"
#include "tests/common/device/sim/bench.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { RANKS = 4, BUCKETS = 3, BACKWARD_US = 100 };

typedef struct bucket {
    sim_task task;
    struct rank_state *owner;
} bucket;

typedef struct rank_state {
    struct job *job;
    int rank;
    device_stream *communication;
    device_fence *ready, *reduced;
    bucket buckets[BUCKETS];
    sim_group_member member;
    int running; /* index of the next bucket to finish */
} rank_state;

typedef struct job {
    bench b;
    sim_group *group;
    rank_state ranks[RANKS];
    double bytes;
    sim_load load; /* load that a collective puts on its GPU */
} job;

static void on_moving(void *context)
{
    rank_state *r = context;
    sim_device_begin_communication(r->job->b.devices[r->rank], r->job->load);
}

static void on_finished(void *context)
{
    rank_state *r = context;
    sim_device_end_communication(r->job->b.devices[r->rank], r->job->load);
    sim_task_finish(&r->buckets[r->running++].task);
}

static void start_bucket(sim_task *task)
{
    rank_state *r = ((bucket *)task->context)->owner;
    must(sim_group_join(r->job->group, r->rank, 0, SIM_ALL_REDUCE, SIM_RING, r->job->bytes, &r->member));
}

/* Enqueues a backward pass: one kernel per bucket, then a wait for all reductions. Rank 0's first kernel
 * takes `late_us` longer. */
static void enqueue_backward(rank_state *r, int64_t late_us)
{
    bench *b = &r->job->b;
    device_stream *compute = b->streams[r->rank];
    for (int k = 0; k < BUCKETS; k++) {
        bench_launch(b, compute, BACKWARD_US + (k == 0 && r->rank == 0 ? late_us : 0));
        must(device_stream_signal(compute, r->ready, (uint64_t)k + 1));
        must(device_stream_wait(r->communication, r->ready, (uint64_t)k + 1));
        must(sim_task_enqueue(r->communication, &r->buckets[k].task));
        must(device_stream_signal(r->communication, r->reduced, (uint64_t)k + 1));
    }
    must(device_stream_wait(compute, r->reduced, BUCKETS));
}

static void open_rank(job *j, int rank)
{
    rank_state *r = &j->ranks[rank];
    device *d = j->b.devices[rank];
    *r = (rank_state){.job = j, .rank = rank, .member = {on_moving, on_finished, r}};
    must(device_stream_open(d, DEVICE_STREAM_COMMUNICATION, &r->communication));
    must(device_fence_open(d, &r->ready));
    must(device_fence_open(d, &r->reduced));
    for (int k = 0; k < BUCKETS; k++) {
        r->buckets[k] = (bucket){.task = {.start = start_bucket}, .owner = r};
        r->buckets[k].task.context = &r->buckets[k];
    }
}

static void close_rank(rank_state *r)
{
    device_fence_close(&r->ready);
    device_fence_close(&r->reduced);
    device_stream_close(&r->communication);
}

/* Runs one backward pass. end_us[] and stalled_us[] become the end and the waiting time of each rank's
 * compute stream, *reduce_us the time of one all-reduce. */
static void run(double bytes, double load, int64_t late_us, double *end_us, double *stalled_us,
                double *reduce_us)
{
    static const int all[RANKS] = {0, 1, 2, 3};
    job j = {.bytes = bytes, .load = {.memory = load}};
    bench_open(&j.b, "v100-pcie-32g", RANKS);
    bench_set(j.b.s, SIM_LAUNCH_TIME, 0);
    bench_start(&j.b);
    must(sim_group_open(j.b.s, NULL, all, RANKS, &j.group));
    for (int r = 0; r < RANKS; r++) open_rank(&j, r);
    for (int r = 0; r < RANKS; r++) enqueue_backward(&j.ranks[r], late_us);
    for (int r = 0; r < RANKS; r++) {
        end_us[r] = bench_mark_us(&j.b, r, j.b.streams[r], 0);
        stalled_us[r] = (double)sim_stream_stalled_ns(j.b.streams[r]) / 1000;
    }
    sim_time time;
    sim_nccl_choose(j.group->rings, SIM_ALL_REDUCE, SIM_RING, bytes, &time);
    *reduce_us = (double)time / (double)SIM_US;
    for (int r = 0; r < RANKS; r++) close_rank(&j.ranks[r]);
    sim_group_close(&j.group);
    bench_close(&j.b);
}

static void check_us(const char *what, double found, double expected)
{
    if (fabs(found - expected) > 0.003) fail_msg("%s: found %.3f us, expected %.3f", what, found, expected);
}

/* compute |k1 100|k2 200|k3 300|            wait             |
 * second         |r1 100+T     |r2 100+2T   |r3 100+3T        with T > 100 */
static void buckets_hide_behind_backward_as_far_as_they_can(void **context)
{
    (void)context;
    double end[RANKS], stalled[RANKS], t;
    run(2e6, 0, 0, end, stalled, &t);
    assert_true(t > BACKWARD_US);
    for (int r = 0; r < RANKS; r++) {
        check_us("large buckets", end[r], 100 + 3 * t);
        check_us("what nothing hid", stalled[r], 100 + 3 * t - 300);
    }
    run(1e3, 0, 0, end, stalled, &t);
    assert_true(t < BACKWARD_US);
    for (int r = 0; r < RANKS; r++) check_us("small buckets", end[r], 300 + t);
}

/* Collectives that use the whole memory bandwidth stop the kernels, so overlap gains nothing. At half the
 * bandwidth, overlap gains half. */
static void what_overlaps_costs_the_memory_that_it_takes(void **context)
{
    (void)context;
    double end[RANKS], stalled[RANKS], t;
    run(2e6, 1, 0, end, stalled, &t);
    for (int r = 0; r < RANKS; r++) check_us("all of the memory", end[r], 300 + 3 * t);
    run(1e3, 0.5, 0, end, stalled, &t);
    for (int r = 0; r < RANKS; r++) check_us("half of it", end[r], 300 + 2 * 0.5 * t + t);
}

/* Rank 0 is 40 us late for the first bucket and delays all ranks. */
static void all_wait_for_the_slowest(void **context)
{
    (void)context;
    double end[RANKS], stalled[RANKS], t;
    run(2e6, 0, 40, end, stalled, &t);
    for (int r = 0; r < RANKS; r++) check_us("next to a straggler", end[r], 140 + 3 * t);
    check_us("a punctual rank's waiting", stalled[1], 140 + 3 * t - 300);
    check_us("the straggler's", stalled[0], 140 + 3 * t - 340);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_hide_behind_backward_as_far_as_they_can),
        cmocka_unit_test(what_overlaps_costs_the_memory_that_it_takes),
        cmocka_unit_test(all_wait_for_the_slowest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
