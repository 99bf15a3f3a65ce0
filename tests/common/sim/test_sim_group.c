/* Tests collectives of a group. A call that runs alone takes the model's time, calls at the same time share
 * links, and all members begin and end a call together. */
#include "common/sim/group.h"
#include "tests/support/check.h"

#include <stdlib.h>

enum { MOST = 64 };

typedef struct player {
    struct stage *stage;
    int number;
    /* Number of calls that the player still joins. It joins a call when the previous call has ended. */
    int calls_left;
    sim_time moving, finished;
} player;

typedef struct stage {
    simulation *s;
    sim_group *group;
    player players[MOST];
    int count;
    double bytes;
} stage;

static void on_moving(void *context)
{
    player *p = context;
    p->moving = simulation_now(p->stage->s);
}

static void join(player *p);

static void on_finished(void *context)
{
    player *p = context;
    p->finished = simulation_now(p->stage->s);
    if (p->calls_left > 0) join(p);
}

static void join(player *p)
{
    sim_group_member told = {on_moving, on_finished, p};
    p->calls_left--;
    must(sim_group_join(p->stage->group, p->number, 0, SIM_ALL_REDUCE, SIM_RING, p->stage->bytes, &told));
}

static void open_stage(stage *st, simulation *s, const int *ranks, int count, double bytes, int calls)
{
    *st = (stage){.s = s, .count = count, .bytes = bytes};
    must(sim_group_open(s, NULL, ranks, count, &st->group));
    for (int i = 0; i < count; i++) st->players[i] = (player){.stage = st, .number = i, .calls_left = calls};
}

static simulation *open_simulation(const char *profile, int world)
{
    simulation *s;
    simulation_config config = {.profile = profile, .world = world};
    must(simulation_open(&config, &s));
    return s;
}

static const int all_ranks[MOST] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

static void alone_a_call_takes_the_time_of_the_model(void **context)
{
    (void)context;
    static const struct {
        const char *profile;
        int ranks;
        double bytes;
    } cases[] = {{"v100-pcie-32g", 8, 102228128}, {"v100-pcie-32g", 2, 100},      {"dgx1-v100", 8, 102228128},
                 {"dgx1-v100", 8, 5e6},           {"dgx1-v100-4xib100", 32, 3e7}, {"dgx-a100-80g", 16, 1e5},
                 {"v100-pcie-10gbe", 3, 1e6}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        simulation *s = open_simulation(cases[i].profile, cases[i].ranks);
        stage st;
        open_stage(&st, s, all_ranks, cases[i].ranks, cases[i].bytes, 3);
        for (int k = 0; k < st.count; k++) join(&st.players[k]);
        must(simulation_run(s));
        sim_time expected;
        sim_nccl_choose(st.group->rings, SIM_ALL_REDUCE, SIM_RING, cases[i].bytes, &expected);
        for (int k = 0; k < st.count; k++)
            if (llabs(st.players[k].finished - 3 * expected) > 10)
                fail_msg("%s, %d ranks, %.0f bytes, member %d: found %.6f ms, expected %.6f",
                         cases[i].profile, cases[i].ranks, cases[i].bytes, k,
                         sim_to_ms(st.players[k].finished), sim_to_ms(3 * expected));
        assert_int_equal(st.group->calls, 3);
        double sent = 3 * cases[i].bytes * 2 * (cases[i].ranks - 1) / cases[i].ranks;
        assert_true(fabs(st.group->bytes_sent - sent) < 1e-6 * sent);
        sim_group_close(&st.group);
        simulation_close(&s);
    }
}

/* An actor through which one member joins late. */
typedef struct latecomer {
    sim_actor actor;
    player *player;
} latecomer;

static status come(void *context)
{
    join(((latecomer *)context)->player);
    return STATUS_OK;
}

static void a_call_begins_when_the_last_member_has_come(void **context)
{
    (void)context;
    simulation *s = open_simulation("dgx1-v100", 4);
    stage st;
    open_stage(&st, s, all_ranks, 4, 1e6, 1);
    latecomer late = {.player = &st.players[2]};
    must(sim_actor_open(s, &late.actor, 2, "late"));
    sim_actor_set_run(&late.actor, come, &late);
    sim_actor_wake(&late.actor, 7 * SIM_MS);
    for (int k = 0; k < 4; k++)
        if (k != 2) join(&st.players[k]);
    must(simulation_run(s));
    for (int k = 0; k < 4; k++) {
        assert_int_equal(st.players[k].moving, 7 * SIM_MS);
        assert_int_equal(st.players[k].finished, st.players[0].finished);
        assert_true(st.players[k].finished > 7 * SIM_MS);
    }
    sim_actor_close(&late.actor);
    sim_group_close(&st.group);
    simulation_close(&s);
}

/* Two rings use the same PCIe links. While both run, each has half of the bandwidth. */
static void groups_share_the_links_that_they_have_in_common(void **context)
{
    (void)context;
    const double bytes = 50e6;
    simulation *s = open_simulation("v100-pcie-32g", 8);
    stage first, second;
    open_stage(&first, s, all_ranks, 8, bytes, 1);
    open_stage(&second, s, all_ranks, 8, bytes, 1);
    for (int k = 0; k < 8; k++) {
        join(&first.players[k]);
        join(&second.players[k]);
    }
    must(simulation_run(s));
    sim_nccl_cost cost;
    sim_nccl_cost_of(first.group->rings, SIM_ALL_REDUCE, SIM_RING, SIM_SIMPLE, &cost);
    double expected = 2 * bytes / cost.bandwidth + cost.latency;
    assert_true(fabs((double)first.players[0].finished - expected) < 10);
    assert_true(fabs((double)second.players[5].finished - expected) < 10);
    sim_group_close(&first.group);
    sim_group_close(&second.group);
    simulation_close(&s);
}

/* Machines have several GPUs. Group i has GPU i of every machine, and all groups communicate at the same
 * time. Each group uses the adapters of its GPUs, 24 GB/s, so no group is slower than alone. A rank sends 2
 * (4 - 1) / 4 of the bytes in 6 hops. */
static void groups_between_machines_do_not_share_adapters(void **context)
{
    (void)context;
    enum { MACHINES = 4, EACH = 8 };
    const double bytes = 64e6, sending_us = 1.5 * bytes / 24e3, latency_us = (8.4 + 6 * 14.0) * 1.4;
    simulation *s = open_simulation("dgx-a100-80g", MACHINES * EACH);
    stage *stages = calloc(EACH, sizeof *stages);
    assert_non_null(stages);
    for (int g = 0; g < EACH; g++) {
        int ranks[MACHINES];
        for (int m = 0; m < MACHINES; m++) ranks[m] = m * EACH + g;
        open_stage(&stages[g], s, ranks, MACHINES, bytes, 1);
        for (int m = 0; m < MACHINES; m++) join(&stages[g].players[m]);
    }
    must(simulation_run(s));
    for (int g = 0; g < EACH; g++) {
        double us = (double)stages[g].players[0].finished / (double)SIM_US;
        if (fabs(us - sending_us - latency_us) > 1e-3)
            fail_msg("GPUs %d: found %.3f us, expected %.3f", g, us, sending_us + latency_us);
        sim_group_close(&stages[g].group);
    }
    free(stages);
    simulation_close(&s);
}

/* A copy from the host to GPU 0 shares that GPU's PCIe link with the ring. The link between the sockets
 * limits the ring, and the copy gets all bandwidth that the ring leaves. */
static void a_copy_beside_a_ring_takes_what_it_leaves(void **context)
{
    (void)context;
    simulation *s = open_simulation("v100-pcie-32g", 8);
    stage st;
    open_stage(&st, s, all_ranks, 8, 50e6, 1);
    for (int k = 0; k < 8; k++) join(&st.players[k]);
    sim_route route;
    sim_flow copy;
    sim_topology_route(s->topology, simulation_host(s, 0), simulation_gpu(s, 0), &route);
    player unused = {.stage = &st};
    must(sim_flow_init(&s->network, &copy, 0, route.count, NULL, on_moving, &unused));
    sim_flow_start(&copy, 0, route.hops, route.count, 1e9, INFINITY, 0);
    for (int i = 0; i < 2; i++)
        assert_true(sim_queue_step(&s->queue)); /* the call begins, and its rates are computed */
    /* The ring passes the switch's link once at 1.2 * 5 GB/s, so 12 - 6 is left for the copy. */
    if (fabs(copy.rate / SIM_GB_PER_S - 6) > 1e-6)
        fail_msg("found %.6f GB/s, expected 6", copy.rate / SIM_GB_PER_S);
    sim_flow_deinit(&copy);
    sim_group_close(&st.group);
    simulation_close(&s);
}

static void ranks_that_make_different_calls_are_named(void **context)
{
    (void)context;
    simulation *s = open_simulation("dgx1-v100", 8);
    static const int ranks[] = {2, 5};
    stage st;
    open_stage(&st, s, ranks, 2, 100, 1);
    sim_group_member told = {on_moving, on_finished, &st.players[0]};
    must(sim_group_join(st.group, 0, 0, SIM_ALL_REDUCE, SIM_RING, 100, &told));
    assert_int_equal(sim_group_join(st.group, 1, 0, SIM_BROADCAST, SIM_RING, 100, &told), STATUS_PROTOCOL);
    assert_string_equal(error_message(), "rank 5 makes broadcast of 100 bytes, others all_reduce of 100");
    error_clear();
    assert_int_equal(sim_group_join(st.group, 0, 0, SIM_ALL_REDUCE, SIM_RING, 100, &told), STATUS_PROTOCOL);
    assert_string_equal(error_message(), "rank 2 makes a call (all_reduce) before its last one is done");
    error_clear();
    sim_group_close(&st.group);
    simulation_close(&s);
}

static void a_group_of_one_has_nothing_to_wait_for(void **context)
{
    (void)context;
    simulation *s = open_simulation("dgx1-v100", 1);
    stage st;
    open_stage(&st, s, all_ranks, 1, 1e9, 4);
    join(&st.players[0]);
    must(simulation_run(s));
    assert_int_equal(st.group->calls, 4);
    assert_int_equal(simulation_now(s), 0);
    sim_group_close(&st.group);
    simulation_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_a_call_takes_the_time_of_the_model),
        cmocka_unit_test(a_call_begins_when_the_last_member_has_come),
        cmocka_unit_test(groups_share_the_links_that_they_have_in_common),
        cmocka_unit_test(groups_between_machines_do_not_share_adapters),
        cmocka_unit_test(a_copy_beside_a_ring_takes_what_it_leaves),
        cmocka_unit_test(ranks_that_make_different_calls_are_named),
        cmocka_unit_test(a_group_of_one_has_nothing_to_wait_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
