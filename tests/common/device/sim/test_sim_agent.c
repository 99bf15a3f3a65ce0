/* Tests agents that the event queue drives, as it drives the agent of an engine. The compute thread posts
 * buckets in stream order with a fence. The agent reduces buckets that are ready, and advances the fence for
 * which the compute stream waits. */
#include "common/base/clock.h"
#include "common/device/sim/agent_sim.h"
#include "common/sim/group.h"
#include "common/sync/queue.h"
#include "tests/common/device/sim/bench.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 4, BUCKETS = 3, BACKWARD_US = 100 };

/* An engine that runs one all-reduce per bucket, one after another. */
typedef struct engine {
    struct job *job;
    int rank;
    sim_agent *agent;
    sync_queue posted;
    device_fence *ready, *done;
    sim_group_member member;
    uint64_t taken, finished;
    bool busy, over;     /* `busy` while a call runs, `over` if its end has not yet been handled */
    int64_t work_us;     /* time that the agent works before each call */
    int64_t deadline_ns; /* deadline that the agent reports, or 0 for none */
    int deadlines;
    status fails_with;
} engine;

typedef struct job {
    bench b;
    sim_group *group;
    engine engines[RANKS];
    double bytes;
} job;

static void on_moving(void *context)
{
    (void)context;
}

static void on_finished(void *context)
{
    engine *e = context;
    e->over = true;
    sim_agent_wake(e->agent); /* this function runs in an event, so the agent wakes at the present time */
}

static status progress(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    engine *e = context;
    sync_event event;
    if (e->fails_with != STATUS_OK) return (fail)(e->fails_with, "rank %d fails on purpose", e->rank);
    if (e->over) {
        e->busy = e->over = false;
        *worked = true;
        device_fence_reach(e->done, ++e->finished);
    }
    if (!e->busy && device_fence_reached(e->ready, e->taken + 1) && sync_queue_pop(&e->posted, &event)) {
        sim_actor *actor = sim_device_actor(e->job->b.devices[e->rank]);
        assert_int_equal(event.value, ++e->taken);
        sim_actor_spend(actor, e->work_us * SIM_US);
        TRY(sim_group_join(e->job->group, e->rank, actor->time, SIM_ALL_REDUCE, SIM_RING, e->job->bytes,
                           &e->member));
        e->busy = *worked = true;
    }
    if (e->deadline_ns && now_ns >= e->deadline_ns) {
        e->deadlines++;
        e->deadline_ns = 0;
    }
    if (e->deadline_ns) *deadline_ns = e->deadline_ns;
    return STATUS_OK;
}

static void failed(void *context, const error_record *error)
{
    engine *e = context;
    device_fence_fail(e->done, error);
}

static const sim_agent_ops ops = {progress, failed};

static void post(engine *e, uint64_t number)
{
    device_stream *compute = e->job->b.streams[e->rank];
    must(device_stream_signal(compute, e->ready, number));
    assert_true(sync_queue_push(&e->posted, &(sync_event){.value = (int64_t)number}));
    sim_agent_wake(e->agent);
}

/* Opens a job whose agents take `wake_us` to wake up. */
static void open_job_that_sleeps(job *j, double bytes, double wake_us)
{
    static const int all[RANKS] = {0, 1, 2, 3};
    memset(j, 0, sizeof *j);
    j->bytes = bytes;
    bench_open(&j->b, "v100-pcie-32g", RANKS);
    bench_set(j->b.s, SIM_LAUNCH_TIME, 0);
    if (wake_us > 0) bench_set(j->b.s, SIM_WAKE_TIME, wake_us);
    bench_start(&j->b);
    must(sim_group_open(j->b.s, NULL, all, RANKS, &j->group));
    for (int r = 0; r < RANKS; r++) {
        engine *e = &j->engines[r];
        *e = (engine){.job = j, .rank = r, .member = {on_moving, on_finished, e}};
        must(sync_queue_init(&e->posted, BUCKETS, sizeof(sync_event)));
        must(device_fence_open(j->b.devices[r], &e->ready));
        must(device_fence_open(j->b.devices[r], &e->done));
        must(sim_agent_open(j->b.devices[r], "agent", &ops, e, &e->agent));
    }
}

static void open_job(job *j, double bytes)
{
    open_job_that_sleeps(j, bytes, 0);
}

static void close_job(job *j)
{
    for (int r = 0; r < RANKS; r++) {
        engine *e = &j->engines[r];
        sim_agent_close(&e->agent);
        device_fence_close(&e->ready);
        device_fence_close(&e->done);
        sync_queue_deinit(&e->posted);
    }
    sim_group_close(&j->group);
    bench_close(&j->b);
}

static void backward(job *j)
{
    for (int r = 0; r < RANKS; r++) {
        for (uint64_t k = 1; k <= BUCKETS; k++) {
            bench_launch(&j->b, j->b.streams[r], BACKWARD_US);
            post(&j->engines[r], k);
        }
        must(device_stream_wait(j->b.streams[r], j->engines[r].done, BUCKETS));
    }
}

static double reduce_us(const job *j)
{
    sim_time time;
    sim_nccl_choose(j->group->rings, SIM_ALL_REDUCE, SIM_RING, j->bytes, &time);
    return (double)time / (double)SIM_US;
}

static void check_us(const char *what, double found, double expected)
{
    if (fabs(found - expected) > 0.003) fail_msg("%s: found %.3f us, expected %.3f", what, found, expected);
}

/* The host posts all buckets at time 0. An agent begins with a bucket when the gradients of the bucket are
 * ready. */
static void an_agent_acts_when_the_data_are_there(void **context)
{
    (void)context;
    for (int64_t work = 0; work <= 30; work += 30) {
        job j;
        open_job(&j, 2e6);
        for (int r = 0; r < RANKS; r++) j.engines[r].work_us = work;
        backward(&j);
        double t = reduce_us(&j) + (double)work;
        assert_true(t > BACKWARD_US);
        for (int r = 0; r < RANKS; r++)
            check_us("the end of backward", bench_mark_us(&j.b, r, j.b.streams[r], 0),
                     BACKWARD_US + BUCKETS * t);
        close_job(&j);
    }
}

/* An agent that sleeps needs time to wake up for the first bucket, and for the end of every call. */
static void an_agent_that_slept_has_to_wake_up_first(void **context)
{
    (void)context;
    enum { WAKE_US = 5 };
    job j;
    open_job_that_sleeps(&j, 2e6, WAKE_US);
    backward(&j);
    for (int r = 0; r < RANKS; r++)
        check_us("the end of backward", bench_mark_us(&j.b, r, j.b.streams[r], 0),
                 BACKWARD_US + WAKE_US + BUCKETS * (reduce_us(&j) + WAKE_US));
    close_job(&j);
}

static void a_deadline_wakes_an_agent_that_has_nothing_to_do(void **context)
{
    (void)context;
    job j;
    open_job(&j, 1e3);
    for (int r = 0; r < RANKS; r++) j.engines[r].deadline_ns = (r + 1) * NS_PER_MS;
    must(simulation_run(j.b.s));
    for (int r = 0; r < RANKS; r++) assert_int_equal(j.engines[r].deadlines, 1);
    assert_int_equal(simulation_now(j.b.s), RANKS * SIM_MS);
    close_job(&j);
}

static void an_agent_that_fails_ends_the_waits_of_its_rank(void **context)
{
    (void)context;
    job j;
    open_job(&j, 2e6);
    j.engines[2].fails_with = STATUS_PEER;
    backward(&j);
    device_stream *s = j.b.streams[2];
    assert_int_equal(device_stream_synchronize(s), STATUS_AGAIN);
    must(simulation_run_until_woken(j.b.s, sim_device_host(j.b.devices[2])));
    assert_int_equal(device_stream_synchronize(s), STATUS_PEER);
    assert_string_equal(error_message(), "rank 2 fails on purpose");
    error_clear();
    close_job(&j);
}

/* An agent with a list of tasks that take 10 us each. It runs the task with the lowest number first. */
typedef struct listener {
    device *device;
    sim_agent *agent;
    bool waits[BUCKETS];
    int order[BUCKETS], count;
} listener;

static status do_the_first(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    listener *l = context;
    (void)now_ns, (void)deadline_ns;
    for (int i = 0; i < BUCKETS && !*worked; i++) {
        if (!l->waits[i]) continue;
        l->waits[i] = false;
        l->order[l->count++] = i;
        sim_actor_spend(sim_device_actor(l->device), 10 * SIM_US);
        *worked = true;
    }
    return STATUS_OK;
}

static void ignore(void *context, const error_record *error)
{
    (void)context, (void)error;
}

static void what_is_urgent_arrives(void *context)
{
    listener *l = context;
    l->waits[0] = true;
    sim_agent_wake(l->agent);
}

/* Task 0 is posted at 5 us, while task 1 runs, and must run before task 2. */
static void an_agent_at_work_sees_what_arrives_meanwhile(void **context)
{
    (void)context;
    static const sim_agent_ops listens = {do_the_first, ignore};
    bench b;
    sim_event event;
    listener l = {.waits = {false, true, true}};
    bench_open(&b, "v100-pcie-32g", 1);
    bench_start(&b);
    l.device = b.devices[0];
    must(sim_agent_open(b.devices[0], "agent", &listens, &l, &l.agent));
    must(sim_event_init(&b.s->queue, &event, 0, what_is_urgent_arrives, &l));
    sim_event_schedule(&b.s->queue, &event, 5 * SIM_US);
    must(simulation_run(b.s));
    assert_int_equal(l.count, 3);
    assert_int_equal(l.order[0], 1);
    assert_int_equal(l.order[1], 0);
    assert_int_equal(l.order[2], 2);
    sim_event_deinit(&b.s->queue, &event);
    sim_agent_close(&l.agent);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_agent_acts_when_the_data_are_there),
        cmocka_unit_test(an_agent_that_slept_has_to_wake_up_first),
        cmocka_unit_test(a_deadline_wakes_an_agent_that_has_nothing_to_do),
        cmocka_unit_test(an_agent_that_fails_ends_the_waits_of_its_rank),
        cmocka_unit_test(an_agent_at_work_sees_what_arrives_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
