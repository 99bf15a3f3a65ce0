/* Compares all-reduces in virtual time with arithmetic, for each algorithm: bytes on every link, hops of
 * latency, and the time of a single call from the profile's constants. Large calls use NCCL's protocol
 * Simple. */
#include "common/sim/group.h"
#include "tests/support/check.h"

#include <stdlib.h>

enum { MOST = 64, SIMPLE = 2 };

typedef struct player {
    struct stage *stage;
    sim_time begun, ended;
} player;

typedef struct stage {
    simulation *s;
    sim_group *group;
    player players[MOST];
} stage;

static void on_moving(void *context)
{
    player *p = context;
    p->begun = simulation_now(p->stage->s);
}

static void on_finished(void *context)
{
    player *p = context;
    p->ended = simulation_now(p->stage->s);
}

static void open_stage(stage *st, const char *profile, int world, int machines)
{
    int ranks[MOST];
    simulation_config config = {.profile = profile, .world = world, .machines = machines};
    *st = (stage){0};
    must(simulation_open(&config, &st->s));
    for (int r = 0; r < world; r++) {
        ranks[r] = r;
        st->players[r].stage = st;
    }
    must(sim_group_open(st->s, NULL, ranks, world, &st->group));
}

static void close_stage(stage *st)
{
    sim_group_close(&st->group);
    simulation_close(&st->s);
}

/* Returns the time in us of one call that runs alone. */
static double time_of(const char *profile, int world, int machines, sim_algorithm a, double bytes)
{
    stage st;
    open_stage(&st, profile, world, machines);
    for (int r = 0; r < world; r++) {
        sim_group_member told = {on_moving, on_finished, &st.players[r]};
        must(sim_group_join(st.group, r, 0, SIM_ALL_REDUCE, a, bytes, &told));
    }
    must(simulation_run(st.s));
    sim_time took = st.players[0].ended - st.players[0].begun;
    for (int r = 0; r < world; r++) assert_true(st.players[r].ended - st.players[r].begun == took);
    double sent = bytes * 2 * (world - 1) / world;
    assert_true(fabs(st.group->bytes_sent - sent) <= 1e-9 * sent);
    close_stage(&st);
    return (double)took / (double)SIM_US;
}

/* Returns the algorithm that NCCL's model chooses, tree or ring, and the time in us of the call if it runs
 * alone. */
static sim_algorithm library_choice(const char *profile, int world, double bytes, double *us)
{
    stage st;
    open_stage(&st, profile, world, 0);
    for (int r = 0; r < world; r++) {
        sim_group_member told = {on_moving, on_finished, &st.players[r]};
        must(sim_group_join(st.group, r, 0, SIM_ALL_REDUCE, SIM_LIBRARY, bytes, &told));
    }
    must(simulation_run(st.s));
    sim_algorithm ran = st.group->ran;
    *us = (double)(st.players[0].ended - st.players[0].begun) / (double)SIM_US;
    close_stage(&st);
    return ran;
}

/* Returns a constant, for protocol Simple if the constant depends on the protocol. */
static double constant(const stage *st, sim_constant c)
{
    return sim_profile_at(st->s->profile, c, sim_constant_table[c].count == 3 ? SIMPLE : 0);
}

static void expect_us(const char *what, int world, double found, double expected)
{
    if (fabs(found - expected) > 1e-3 + 1e-6 * expected)
        fail_msg("%s, %d ranks: found %.6f us, expected %.6f", what, world, found, expected);
}

static const double large = 256e6, us_per_byte = 1e-3; /* bytes, and time per byte at 1 GB/s */
/* NCCL corrects a tree's bandwidth for calls below 1 GiB. */
static const double larger = 4e9;

/* Each machine has one GPU, so every hop crosses the network, and no latency is hidden. */
static void times_between_machines_follow_from_hops_and_the_adapter(void **context)
{
    (void)context;
    static const char profile[] = "v100-pcie-10gbe";
    for (int n = 2, levels = 1; n <= 32; n *= 2, levels++) {
        stage st;
        open_stage(&st, profile, n, 0);
        double hop = constant(&st, SIM_NCCL_TREE_NETWORK), base = constant(&st, SIM_NCCL_BASE_RING);
        double nic = constant(&st, SIM_NIC), plateau = constant(&st, SIM_NCCL_PLATEAU);
        double tree_base = constant(&st, SIM_NCCL_BASE_TREE);
        close_stage(&st);
        double wire = 2.0 * (n - 1) / n * large * us_per_byte / nic;
        expect_us("ring", n, time_of(profile, n, 0, SIM_RING, large),
                  plateau * (base + 2 * (n - 1) * hop) + wire);
        expect_us("two-shot", n, time_of(profile, n, 0, SIM_TWO_SHOT, large), base + 2 * hop + wire);
        expect_us("hierarchical", n, time_of(profile, n, 0, SIM_HIERARCHICAL, large),
                  base + 2 * (n - 1) * hop + wire);
        double pipelined =
            /* Each byte travels up and down once, whatever the number of ranks is. */
            2 * larger * us_per_byte / (0.92 * nic);
        expect_us("tree", n, time_of(profile, n, 0, SIM_TREE, larger),
                  tree_base + 2 * levels * hop + pipelined);
    }
}

/* In a machine with NVSwitch every GPU communicates with all others at the full rate of its links. */
static void times_in_a_machine_follow_from_hops_and_links(void **context)
{
    (void)context;
    static const char profile[] = "dgx-a100-80g";
    stage st;
    open_stage(&st, profile, 8, 0);
    double hop = constant(&st, SIM_NCCL_RING_NVLINK), base = constant(&st, SIM_NCCL_BASE_RING);
    double links = 12 * constant(&st, SIM_NVLINK);
    close_stage(&st);
    double wire = 2.0 * 7 / 8 * large * us_per_byte / links;
    expect_us("ring", 8, time_of(profile, 8, 0, SIM_RING, large), base + 14 * hop + wire);
    expect_us("two-shot", 8, time_of(profile, 8, 0, SIM_TWO_SHOT, large), base + 2 * hop + wire);
    expect_us("hierarchical", 8, time_of(profile, 8, 0, SIM_HIERARCHICAL, large), base + 14 * hop + wire);
}

/* The phases are a reduce-scatter within both machines, an all-reduce between the machines, and an all-gather
 * within them. In the second phase each GPU reduces an eighth over its own adapter. */
static void hierarchical_adds_its_three_phases(void **context)
{
    (void)context;
    static const char profile[] = "dgx-a100-80g";
    stage st;
    open_stage(&st, profile, 16, 0);
    double hop = constant(&st, SIM_NCCL_RING_NVLINK), base = constant(&st, SIM_NCCL_BASE_RING);
    double outer = constant(&st, SIM_NCCL_TREE_NETWORK), links = 12 * constant(&st, SIM_NVLINK),
           nic = constant(&st, SIM_NIC);
    close_stage(&st);
    double inside = 7.0 / 8 * large * us_per_byte / links, between = 2.0 / 2 * large / 8 * us_per_byte / nic;
    double found = time_of(profile, 16, 0, SIM_HIERARCHICAL, large);
    expect_us("hierarchical", 16, found, base + 14 * hop + 2 * outer + 2 * inside + between);
}

/* Returns the number of bytes that all adapters send for each byte of the buffer. */
static double between_machines(const char *profile, int world, sim_algorithm a)
{
    stage st;
    sim_plan plan;
    double sent = 0;
    open_stage(&st, profile, world, 0);
    must(sim_plan_open(st.group->rings, a, &plan));
    for (int p = 0; p < plan.count; p++)
        for (int i = 0; i < plan.phases[p].use_count; i++) {
            char name[64];
            sim_topology_resource_name(st.s->topology, plan.phases[p].uses[i].resource, name, sizeof name);
            if (strstr(name, "sends")) sent += plan.phases[p].share * plan.phases[p].uses[i].weight;
        }
    sim_plan_close(&plan);
    close_stage(&st);
    return sent;
}

/* n ranks run on m machines. A tree or a hierarchy sends 2 (m - 1) buffers between machines. In two-shot,
 * every rank sends 2 / n of a buffer to each rank on another machine. */
static void bytes_between_machines_are_those_of_the_algorithm(void **context)
{
    (void)context;
    static const struct {
        const char *profile;
        int ranks, machines;
    } cases[] = {{"v100-pcie-10gbe", 2, 2}, {"v100-pcie-10gbe", 5, 5}, {"v100-pcie-10gbe", 16, 16},
                 {"dgx-a100-80g", 16, 2},   {"dgx-a100-80g", 24, 3},   {"dgx1-v100-4xib100", 32, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double n = cases[i].ranks, m = cases[i].machines;
        const struct {
            sim_algorithm algorithm;
            double expected;
        } rows[] = {{SIM_TREE, 2 * (m - 1)},
                    {SIM_HIERARCHICAL, 2 * (m - 1)},
                    {SIM_TWO_SHOT, n * 2 / n * (n - n / m)}};
        for (int a = 0; a < 3; a++) {
            double found = between_machines(cases[i].profile, cases[i].ranks, rows[a].algorithm);
            if (fabs(found - rows[a].expected) > 1e-9 * n)
                fail_msg("%s, %d ranks, algorithm %d: found %.9f, expected %.9f", cases[i].profile,
                         cases[i].ranks, (int)rows[a].algorithm, found, rows[a].expected);
        }
    }
}

/* If pairs of GPUs share a bridge, two-shot sends more bytes over it than a ring, and is slower. For few
 * bytes over NVSwitch two-shot is faster, since it has fewer hops. */
static void two_shots_lose_where_the_pairs_share_a_bridge(void **context)
{
    (void)context;
    double ring = time_of("v100-pcie-32g", 8, 0, SIM_RING, large),
           shots = time_of("v100-pcie-32g", 8, 0, SIM_TWO_SHOT, large);
    assert_true(shots > 1.5 * ring);
    ring = time_of("dgx-a100-80g", 8, 0, SIM_RING, 1024),
    shots = time_of("dgx-a100-80g", 8, 0, SIM_TWO_SHOT, 1024);
    assert_true(ring > 1.5 * shots);
}

static void the_library_takes_what_its_model_says_is_faster(void **context)
{
    (void)context;
    static const struct {
        const char *profile;
        int ranks;
    } cases[] = {{"v100-pcie-10gbe", 16},
                 {"dgx1-v100-4xib100", 32},
                 {"dgx-a100-80g", 64},
                 {"v100-pcie-32g", 8},
                 {"dgx1-v100", 1}};
    int taken[2] = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (double bytes = 64; bytes < 8e9; bytes *= 8) {
            stage st;
            sim_time ring, tree;
            double us;
            open_stage(&st, cases[i].profile, cases[i].ranks, 0);
            sim_nccl_choose(st.group->rings, SIM_ALL_REDUCE, SIM_RING, bytes, &ring);
            sim_nccl_choose(st.group->rings, SIM_ALL_REDUCE, SIM_TREE, bytes, &tree);
            close_stage(&st);
            sim_algorithm expected = cases[i].ranks > 1 && tree < ring ? SIM_TREE : SIM_RING;
            sim_algorithm found = library_choice(cases[i].profile, cases[i].ranks, bytes, &us);
            taken[found]++;
            if (found != expected)
                fail_msg("%s, %.0f bytes: found algorithm %d, expected %d", cases[i].profile, bytes,
                         (int)found, (int)expected);
            if (cases[i].ranks > 1)
                expect_us("library", cases[i].ranks, us,
                          time_of(cases[i].profile, cases[i].ranks, 0, found, bytes));
        }
    assert_true(taken[SIM_RING] > 0 && taken[SIM_TREE] > 0);
}

/* Finds by bisection the size up to which the library takes a tree. */
static int64_t last_by_tree(const char *profile, int ranks)
{
    int64_t low = 64, high = 1 << 24;
    double us;
    assert_int_equal(library_choice(profile, ranks, (double)low, &us), SIM_TREE);
    assert_int_equal(library_choice(profile, ranks, (double)high, &us), SIM_RING);
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (library_choice(profile, ranks, (double)middle, &us) == SIM_TREE)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* A tree has the lower latency, 2 log2 n hops instead of 2 (n - 1), and the ring has the higher bandwidth.
 * Both take the same time at the size at which the difference of their latencies equals the difference of
 * their transfer times. At this size both use protocol LL on 8 machines; on 32 machines the ring uses LL and
 * the tree Simple. */
static void the_library_leaves_the_tree_where_the_ring_is_as_fast(void **context)
{
    (void)context;
    enum { LL };
    static const char profile[] = "v100-pcie-10gbe";
    static const struct {
        int ranks, levels, protocol; /* Number of ranks, and levels of the tree and its protocol. */
        double share;                /* Share of the tree's bandwidth that remains under the protocol. */
        sim_constant corrections;
        /* The times of both algorithms are equal at a size between 64 * 2^power and 128 * 2^power bytes. */

        int power;
    } cases[] = {{8, 3, LL, 1 / 3.8, SIM_NCCL_CORRECTION_LL, 6},
                 {32, 5, SIMPLE, 1, SIM_NCCL_CORRECTION_SIMPLE, 12}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int n = cases[i].ranks, p = cases[i].protocol;
        stage st;
        open_stage(&st, profile, n, 0);
        const sim_profile *of = st.s->profile;
        double nic = sim_profile_get(of, SIM_NIC) / us_per_byte;
        double ring_us = sim_profile_at(of, SIM_NCCL_BASE_RING, LL) +
                         2 * (n - 1) * sim_profile_at(of, SIM_NCCL_TREE_NETWORK, LL);
        double tree_us = sim_profile_at(of, SIM_NCCL_BASE_TREE, p) +
                         2 * cases[i].levels * sim_profile_at(of, SIM_NCCL_TREE_NETWORK, p);
        double ring_rate = 0.5 * nic * n / (2 * (n - 1));
        double tree_rate =
            0.92 * nic * cases[i].share / 2 * sim_profile_at(of, cases[i].corrections, cases[i].power);
        close_stage(&st);
        double expected = (ring_us - tree_us) / (1 / tree_rate - 1 / ring_rate);
        double found = (double)last_by_tree(profile, n);
        assert_true(expected >= 64 << cases[i].power && expected < 128 << cases[i].power);
        if (fabs(found - expected) > 1)
            fail_msg("%d ranks: found %.0f bytes, expected %.3f", n, found, expected);
    }
}

static void machines_with_unequal_ranks_have_no_hierarchy(void **context)
{
    (void)context;
    stage st;
    open_stage(&st, "dgx-a100-80g", 12, 0);
    sim_group_close(&st.group);
    const int ranks[] = {0, 1, 2, 6};
    must(sim_group_open(st.s, NULL, ranks, 4, &st.group));
    sim_group_member told = {on_moving, on_finished, &st.players[0]};
    assert_int_equal(sim_group_join(st.group, 0, 0, SIM_ALL_REDUCE, SIM_HIERARCHICAL, 100, &told),
                     STATUS_CONFIG);
    assert_non_null(strstr(error_message(), "as many ranks on every machine"));
    close_stage(&st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_between_machines_follow_from_hops_and_the_adapter),
        cmocka_unit_test(times_in_a_machine_follow_from_hops_and_links),
        cmocka_unit_test(hierarchical_adds_its_three_phases),
        cmocka_unit_test(bytes_between_machines_are_those_of_the_algorithm),
        cmocka_unit_test(two_shots_lose_where_the_pairs_share_a_bridge),
        cmocka_unit_test(the_library_takes_what_its_model_says_is_faster),
        cmocka_unit_test(the_library_leaves_the_tree_where_the_ring_is_as_fast),
        cmocka_unit_test(machines_with_unequal_ranks_have_no_hierarchy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
