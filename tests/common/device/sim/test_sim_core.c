/* Tests a machine that computes on its processor. If it has fewer cores than threads, agents slow down the
 * compute threads. The kernel takes 100 us if nothing slows it down. Times are exact. */
#include "common/device/sim/agent_sim.h"
#include "common/sim/fiber.h"
#include "tests/common/device/sim/bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { KERNEL_US = 100 };

typedef struct core_case {
    int ranks, cores;
    int64_t agent_at_us, agent_us; /* rank 0's agent works from agent_at_us for agent_us */
    int64_t from_us, to_us;        /* begin and end of a collective's transfer */
    int64_t expected_us;
} core_case;

typedef struct machine {
    bench b;
    const core_case *c;
    sim_agent *agent;
    sim_event begin, end;
    int64_t finished_us;
    bool worked;
} machine;

static status compute(void *context)
{
    machine *m = context;
    bench_launch(&m->b, m->b.streams[0], KERNEL_US);
    m->finished_us = sim_device_host(m->b.devices[0])->time / SIM_US;
    simulation_stop(m->b.s);
    return STATUS_OK;
}

static status progress(void *context, int64_t now_ns, int64_t *deadline_ns, bool *worked)
{
    machine *m = context;
    int64_t at_ns = m->c->agent_at_us * 1000;
    if (m->c->agent_us == 0 || m->worked) return STATUS_OK;
    if (now_ns < at_ns) {
        *deadline_ns = at_ns;
        return STATUS_OK;
    }
    m->worked = *worked = true;
    sim_actor_spend(sim_device_actor(m->b.devices[0]), m->c->agent_us * SIM_US);
    return STATUS_OK;
}

static void failed(void *context, const error_record *error)
{
    (void)context;
    fail_msg("%s", error->message);
}

static void begin_communication(void *context)
{
    sim_device_begin_communication(((machine *)context)->b.devices[0], (sim_load){0});
}

static void end_communication(void *context)
{
    sim_device_end_communication(((machine *)context)->b.devices[0], (sim_load){0});
}

static void set_cores(bench *b, int cores)
{
    bench_set(b->s, SIM_HOST_CORES, cores);
    b->s->profile->provenance[SIM_HOST_CORES].tag = "assumed";
}

static int64_t run(const core_case *c)
{
    static const sim_agent_ops ops = {progress, failed};
    machine m = {.c = c};
    bench_open(&m.b, "cpu", c->ranks);
    bench_set(m.b.s, SIM_LAUNCH_TIME, 0);
    if (c->cores) set_cores(&m.b, c->cores);
    bench_start(&m.b);
    must(sim_agent_open(m.b.devices[0], "agent", &ops, &m, &m.agent));
    must(sim_event_init(&m.b.s->queue, &m.begin, 0, begin_communication, &m));
    must(sim_event_init(&m.b.s->queue, &m.end, 0, end_communication, &m));
    if (c->to_us) {
        sim_event_schedule(&m.b.s->queue, &m.begin, c->from_us * SIM_US);
        sim_event_schedule(&m.b.s->queue, &m.end, c->to_us * SIM_US);
    }
    must(sim_fiber_open(sim_device_host(m.b.devices[0]), compute, &m));
    sim_actor_wake(sim_device_host(m.b.devices[0]), 0);
    must(simulation_run(m.b.s));
    sim_fiber_close(sim_device_host(m.b.devices[0]));
    sim_event_deinit(&m.b.s->queue, &m.begin);
    sim_event_deinit(&m.b.s->queue, &m.end);
    sim_agent_close(&m.agent);
    bench_close(&m.b);
    return m.finished_us;
}

static void a_compute_thread_loses_to_agents_what_cores_are_missing(void **context)
{
    (void)context;
    static const core_case cases[] = {
        {1, 1, 0, 0, 0, 0, 100},
        {1, 1, 20, 30, 0, 0, 130}, /* one core for both threads */
        {1, 2, 20, 30, 0, 0, 100}, /* a core for each thread */
        {1, 0, 20, 30, 0, 0, 100}, /* the profile has no number of cores */
        {2, 3, 20, 30, 0, 0, 115}, /* one core for two agents */
        {2, 2, 20, 30, 0, 0, 130},
        {2, 1, 20, 30, 0, 0, 230}, /* two compute threads on one core */
        /* The agent works, and a collective transfers. */
        {1, 1, 20, 30, 30, 70, 170},
        {1, 1, 0, 0, 20, 60, 140},
        {2, 3, 0, 0, 20, 60, 120},
        {1, 2, 0, 0, 20, 60, 100},
        {1, 1, 0, 0, 90, 200, 210},    /* 10 us of the kernel remain when the transfer ends */
        {1, 1, 120, 30, 110, 140, 100} /* the agent and the collective begin after the kernel */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t found = run(&cases[i]);
        if (found != cases[i].expected_us)
            fail_msg("case %zu: found %lld us, expected %lld", i, (long long)found,
                     (long long)cases[i].expected_us);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_compute_thread_loses_to_agents_what_cores_are_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
