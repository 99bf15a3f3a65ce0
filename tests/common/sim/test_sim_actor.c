/* Tests actors that are ahead of the clock, the order in which actors are woken, and the error of a
 * simulation in which no actor can go on. */
#include "common/sim/simulation.h"
#include "tests/support/check.h"

static simulation *open_simulation(int world)
{
    simulation *s;
    simulation_config config = {.world = world};
    must(simulation_open(&config, &s));
    return s;
}

typedef struct worker {
    sim_actor actor;
    sim_time seen[8]; /* The actor's time when each run begins. */
    int runs, limit;
    sim_time works; /* Time that the actor works in each run, before it sleeps. */
    struct worker *tells;
    status ends_with;
} worker;

static status work(void *context)
{
    worker *w = context;
    assert_ptr_equal(w->actor.simulation->current, &w->actor);
    w->seen[w->runs++] = w->actor.time;
    sim_actor_spend(&w->actor, w->works);
    if (w->tells) sim_actor_wake(&w->tells->actor, w->actor.time);
    if (w->runs < w->limit) {
        sim_actor_wake(&w->actor, w->actor.time);
        return STATUS_AGAIN;
    }
    return w->ends_with;
}

static void open_worker(simulation *s, worker *w, int rank, const char *name)
{
    must(sim_actor_open(s, &w->actor, rank, name));
    sim_actor_set_run(&w->actor, work, w);
}

static void an_actor_is_woken_at_its_own_time(void **context)
{
    (void)context;
    simulation *s = open_simulation(1);
    worker w = {.works = 10, .limit = 3};
    open_worker(s, &w, 0, "worker");
    sim_actor_wake(&w.actor, 5);
    must(simulation_run(s));
    assert_int_equal(w.runs, 3);
    assert_int_equal(w.seen[0], 5);
    assert_int_equal(w.seen[1], 15);
    assert_int_equal(w.seen[2], 25);
    assert_int_equal(s->queue.now, 25);
    assert_int_equal(w.actor.time, 35);
    assert_null(s->current);
    sim_actor_close(&w.actor);
    simulation_close(&s);
}

static void whoever_is_told_wakes_at_the_time_of_the_telling(void **context)
{
    (void)context;
    simulation *s = open_simulation(2);
    worker listener = {.limit = 1}, speaker = {.works = 7, .limit = 2, .tells = &listener};
    open_worker(s, &listener, 0, "listener");
    open_worker(s, &speaker, 1, "speaker");
    sim_actor_wake(&speaker.actor, 100);
    must(simulation_run(s));
    assert_int_equal(listener.runs, 2);
    assert_int_equal(listener.seen[0], 107);
    assert_int_equal(listener.seen[1], 114);
    sim_actor_close(&listener.actor);
    sim_actor_close(&speaker.actor);
    simulation_close(&s);
}

static void the_earliest_of_several_wakes_counts(void **context)
{
    (void)context;
    simulation *s = open_simulation(1);
    worker w = {.limit = 1};
    open_worker(s, &w, 0, "worker");
    sim_actor_wake(&w.actor, 50);
    sim_actor_wake(&w.actor, 30);
    sim_actor_wake(&w.actor, 40);
    must(simulation_run(s));
    assert_int_equal(w.runs, 1);
    assert_int_equal(w.seen[0], 30);
    sim_actor_close(&w.actor);
    simulation_close(&s);
}

static void a_failure_stops_everything(void **context)
{
    (void)context;
    simulation *s = open_simulation(2);
    worker bad = {.limit = 1, .ends_with = STATUS_PEER}, other = {.limit = 5, .works = 10};
    open_worker(s, &bad, 0, "bad");
    open_worker(s, &other, 1, "other");
    sim_actor_wake(&bad.actor, 15);
    sim_actor_wake(&other.actor, 0);
    assert_int_equal(simulation_run(s), STATUS_PEER);
    assert_int_equal(other.runs, 2);
    assert_int_equal(simulation_run(s), STATUS_PEER);
    assert_int_equal(other.runs, 2);
    sim_actor_close(&bad.actor);
    sim_actor_close(&other.actor);
    simulation_close(&s);
}

static status stop_at_the_third(void *context)
{
    worker *w = context;
    if (++w->runs == 3) simulation_stop(w->actor.simulation);
    sim_actor_wake(&w->actor, w->actor.time + 10); /* Wakes itself forever. */
    return STATUS_AGAIN;
}

static void an_actor_may_end_the_run(void **context)
{
    (void)context;
    simulation *s = open_simulation(1);
    worker w = {.runs = 0};
    open_worker(s, &w, 0, "worker");
    sim_actor_set_run(&w.actor, stop_at_the_third, &w);
    sim_actor_wake(&w.actor, 0);
    must(simulation_run(s));
    assert_int_equal(w.runs, 3);
    assert_int_equal(simulation_now(s), 20);
    sim_actor_close(&w.actor);
    simulation_close(&s);
}

static void waiting_for_ever_is_an_error_that_names_who_and_what(void **context)
{
    (void)context;
    simulation *s = open_simulation(3);
    sim_actor a;
    must(sim_actor_open(s, &a, 2, "compute"));
    assert_int_equal(simulation_check_finished(s), STATUS_OK);
    assert_int_equal(sim_actor_block(&a, "its stream to run dry"), STATUS_AGAIN);
    assert_int_equal(simulation_run_until_woken(s, &a), STATUS_INTERNAL);
    assert_string_equal(error_message(),
                        "at 0.000000 virtual ms nothing is left to happen, and 1 wait: rank 2's compute "
                        "thread for its stream to run dry");
    error_clear();
    assert_int_equal(simulation_check_finished(s), STATUS_INTERNAL);
    error_clear();
    sim_actor_wake(&a, 9);
    must(simulation_run_until_woken(s, &a));
    assert_int_equal(a.time, 9);
    assert_int_equal(simulation_check_finished(s), STATUS_OK);
    sim_actor_close(&a);
    simulation_close(&s);
}

static void what_a_machine_does_not_have_is_refused(void **context)
{
    (void)context;
    static const struct {
        simulation_config config;
        status code;
        const char *message;
    } cases[] = {
        {{.profile = "v100-pcie-32g", .world = 9},
         STATUS_CONFIG,
         "profile v100-pcie-32g: expected 1 to 8 ranks (8 GPUs on each of 1 machine), got 9"},
        {{.profile = "dgx1-v100-4xib100", .world = 17, .machines = 2},
         STATUS_CONFIG,
         "profile dgx1-v100-4xib100: expected 1 to 16 ranks (8 GPUs on each of 2 machines), got 17"},
        {{.profile = "v100-pcie-10gbe", .world = 5000},
         STATUS_CONFIG,
         "profile v100-pcie-10gbe: expected 1 to 4096 ranks (1 GPU on each of 4096 machines), got 5000"},
        {{.profile = "dgx1-v100", .world = 2, .machines = 2},
         STATUS_CONFIG,
         "profile dgx1-v100: expected 1 machine, got 2"},
        {{.profile = "dgx1-v100", .world = 2, .precision = SIM_TF32},
         STATUS_CONFIG,
         "profile dgx1-v100: expected precision fp32, got tf32"},
        {{.profile = "dgx1-v100", .world = 0},
         STATUS_CONFIG,
         "simulation: expected 1 to 1048575 ranks, got 0"},
        {{.profile = "v100-sxm2-ib100", .world = 2, .link_rate = 1e9},
         STATUS_CONFIG,
         "link: expected 0.0001 to 1000 GB/s, got 1e+09"},
        {{.profile = "dgx1-v100", .world = 2, .link_latency = 5},
         STATUS_CONFIG,
         "link: expected a profile with a network, got dgx1-v100"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        simulation *s;
        status rc = simulation_open(&cases[i].config, &s);
        if (rc != cases[i].code || strcmp(error_message(), cases[i].message) != 0)
            fail_msg("case %zu: found %s \"%s\", expected %s \"%s\"", i, status_name(rc), error_message(),
                     status_name(cases[i].code), cases[i].message);
        assert_null(s);
        error_clear();
    }
    assert_int_equal(status_exit_code(STATUS_CONFIG), 78);
}

static void another_link_replaces_that_of_the_profile(void **context)
{
    (void)context;
    simulation *s;
    simulation_config config = {
        .profile = "v100-sxm2-ib100", .world = 16, .link_rate = 1.25, .link_latency = 50};
    must(simulation_open(&config, &s));
    assert_true(sim_profile_get(s->profile, SIM_NIC) == 1.25);
    assert_true(sim_profile_get(s->profile, SIM_NETWORK_LATENCY) == 50);
    assert_string_equal(s->profile->provenance[SIM_NIC].source, "the command line");
    simulation_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_actor_is_woken_at_its_own_time),
        cmocka_unit_test(whoever_is_told_wakes_at_the_time_of_the_telling),
        cmocka_unit_test(the_earliest_of_several_wakes_counts),
        cmocka_unit_test(a_failure_stops_everything),
        cmocka_unit_test(an_actor_may_end_the_run),
        cmocka_unit_test(waiting_for_ever_is_an_error_that_names_who_and_what),
        cmocka_unit_test(what_a_machine_does_not_have_is_refused),
        cmocka_unit_test(another_link_replaces_that_of_the_profile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
