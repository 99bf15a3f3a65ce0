/* Compares NCCL's model with figures that were derived elsewhere from the same constants, and its closed form
 * with a simulation step by step through the links. */
#include "common/sim/nccl.h"
#include "common/sim/simulation.h"
#include "tests/common/sim/ring_steps.h"
#include "tests/support/check.h"

#include <stdlib.h>

static const double resnet50_bytes = 102228128;

typedef struct job {
    simulation *s;
    sim_rings *rings;
} job;

static job open_job(const char *profile, int world, int machines)
{
    job j;
    simulation_config config = {.profile = profile, .world = world, .machines = machines};
    must(simulation_open(&config, &j.s));
    sim_place *gpus = calloc((size_t)world, sizeof *gpus);
    assert_non_null(gpus);
    for (int r = 0; r < world; r++) gpus[r] = simulation_gpu(j.s, r);
    must(sim_rings_open(j.s->topology, gpus, world, &j.rings));
    free(gpus);
    return j;
}

static void close_job(job *j)
{
    sim_rings_close(&j->rings);
    simulation_close(&j->s);
}

static void derived_times_of_an_all_reduce_hold(void **context)
{
    (void)context;
    static const struct {
        const char *profile;
        int ranks;
        double ms; /* time in ms of 102.2 MB over a ring with protocol Simple */
    } cases[] = {{"v100-pcie-32g", 2, 8.5}, {"v100-pcie-32g", 4, 15.4}, {"v100-pcie-32g", 8, 29.9},
                 {"dgx1-v100", 8, 1.55},    {"dgx-a100-40g", 8, 0.80},  {"dgx-h100", 8, 0.54}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        job j = open_job(cases[i].profile, cases[i].ranks, 0);
        double ms = sim_to_ms(sim_nccl_time(j.rings, SIM_ALL_REDUCE, SIM_RING, SIM_SIMPLE, resnet50_bytes));
        double last_digit = cases[i].ms < 2 ? 0.005 : 0.05;
        if (fabs(ms - cases[i].ms) > last_digit)
            fail_msg("%s, %d ranks: found %.4f ms, expected %g", cases[i].profile, cases[i].ranks, ms,
                     cases[i].ms);
        close_job(&j);
    }
}

/* On the cube of a DGX-1, the first four GPUs are neighbors over NVLink in their order. A ring of eight
 * crosses twice between the sockets. */
static void nccl_1_lays_one_ring_in_the_order_of_the_gpus(void **context)
{
    (void)context;
    static const struct {
        int ranks;
        bool nvlink;
        double gb_per_s;
    } cases[] = {{2, true, 18}, {4, true, 18}, {8, false, 6}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        job j = open_job("dgx1-p100-nccl1", cases[i].ranks, 0);
        double found = j.rings->bus / SIM_GB_PER_S;
        assert_int_equal(j.rings->count, 1);
        assert_int_equal(j.rings->channels, 1);
        assert_int_equal(j.rings->nvlink, cases[i].nvlink);
        for (int r = 0; r < cases[i].ranks; r++) assert_int_equal(j.rings->order[r], r);
        if (fabs(found - cases[i].gb_per_s) > 1e-9)
            fail_msg("%d ranks: found %g GB/s, expected %g", cases[i].ranks, found, cases[i].gb_per_s);
        close_job(&j);
    }
}

/* The formula's latency is base + 2 (n - 1) hops. If there are m machines, 2 (m - 1) hops are between
 * machines. */
static void latency_counts_hops_inside_and_between(void **context)
{
    (void)context;
    static const struct {
        const char *profile;
        int ranks, machines;
        sim_protocol protocol;
        double us;
    } cases[] = {
        {"v100-pcie-32g", 8, 1, SIM_SIMPLE, 8.4 + 14 * 5.7},
        {"v100-pcie-32g", 8, 1, SIM_LL, 6.6 + 14 * 1.0},
        {"dgx1-v100", 8, 1, SIM_LL128, 14.0 + 14 * 1.9},
        {"dgx1-v100-4xib100", 16, 2, SIM_SIMPLE, 8.4 + 28 * 3.4 + 2 * 14.0},
        /* Posting takes 1.0, a hop only 0.6. */
        {"dgx1-v100-4xib100", 16, 2, SIM_LL, 6.6 + 28 * 1.0 + 2 * 2.7},
        {"dgx-a100-40g", 16, 2, SIM_SIMPLE, 8.4 + 28 * 6.0 + 2 * 14.0}, /* posting takes 3 * 2.0 on AMD */
        {"v100-pcie-10gbe", 4, 4, SIM_LL, 6.6 + 6 * 5.0}, /* one rank per machine: a hop of the tree */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        job j = open_job(cases[i].profile, cases[i].ranks, cases[i].machines);
        sim_nccl_cost cost;
        sim_nccl_cost_of(j.rings, SIM_ALL_REDUCE, SIM_RING, cases[i].protocol, &cost);
        double us = (double)sim_nccl_latency(&cost, 1) / (double)SIM_US;
        if (fabs(us - cases[i].us) > 1e-6)
            fail_msg("%s, %d ranks, %s: found %.3f us, expected %.3f", cases[i].profile, cases[i].ranks,
                     sim_protocol_name(cases[i].protocol), us, cases[i].us);
        close_job(&j);
    }
}

static void the_plateau_lengthens_large_calls_over_several_machines(void **context)
{
    (void)context;
    job j = open_job("dgx1-v100-4xib100", 16, 2);
    sim_nccl_cost cost;
    sim_nccl_cost_of(j.rings, SIM_ALL_REDUCE, SIM_RING, SIM_SIMPLE, &cost);
    double threshold = 64.0 * j.rings->channels * 16;
    assert_true(
        fabs((double)sim_nccl_latency(&cost, threshold) / (double)sim_nccl_latency(&cost, threshold - 1) -
             1.9) < 1e-9);
    close_job(&j);
}

/* Small calls use protocol LL, and large calls use Simple. Calls in between use LL128 if the machine has
 * NVLink. */
static void the_protocol_of_least_time_is_chosen(void **context)
{
    (void)context;
    static const struct {
        const char *profile;
        double bytes;
        sim_protocol expected;
    } cases[] = {{"dgx1-v100", 8, SIM_LL},       {"dgx1-v100", 4e6, SIM_LL128},
                 {"dgx1-v100", 1e9, SIM_SIMPLE}, {"v100-pcie-32g", 8, SIM_LL},
                 {"v100-pcie-32g", 1e5, SIM_LL}, {"v100-pcie-32g", 4e6, SIM_SIMPLE}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        job j = open_job(cases[i].profile, 8, 0);
        sim_time time;
        sim_protocol found = sim_nccl_choose(j.rings, SIM_ALL_REDUCE, SIM_RING, cases[i].bytes, &time);
        if (found != cases[i].expected)
            fail_msg("%s, %.0f bytes: found %s, expected %s", cases[i].profile, cases[i].bytes,
                     sim_protocol_name(found), sim_protocol_name(cases[i].expected));
        for (int p = 0; p < SIM_PROTOCOL_COUNT; p++)
            assert_true(time <=
                        sim_nccl_time(j.rings, SIM_ALL_REDUCE, SIM_RING, (sim_protocol)p, cases[i].bytes));
        close_job(&j);
    }
}

/* Returns the ratio of the times of ring and tree with protocol Simple. A ring of 256 ranks would lose less
 * with LL128. */
static double ring_over_tree(const char *profile, int ranks)
{
    job j = open_job(profile, ranks, 0);
    sim_time ring = sim_nccl_time(j.rings, SIM_ALL_REDUCE, SIM_RING, SIM_SIMPLE, resnet50_bytes);
    sim_time tree = sim_nccl_time(j.rings, SIM_ALL_REDUCE, SIM_TREE, SIM_SIMPLE, resnet50_bytes);
    close_job(&j);
    return (double)ring / (double)tree;
}

static void a_ring_loses_to_a_tree_on_many_fast_machines_only(void **context)
{
    (void)context;
    double fast = ring_over_tree("dgx-a100-40g", 256), slow = ring_over_tree("v100-sxm2-ib100", 256);
    if (fast < 2.8 || fast > 3.7) fail_msg("256 A100: found ring / tree = %.2f, expected 2.8 to 3.7", fast);
    if (slow > 1.2)
        fail_msg("256 V100, one adapter a machine: found ring / tree = %.2f, expected hardly above 1", slow);
}

/* ---- step by step ----------------------------------------------------------------------------- */

static void stop_clock(void *context)
{
    *(bool *)context = true;
}

static sim_time walk(const job *j, sim_protocol protocol, double bytes)
{
    bool done = false;
    sim_ring_steps *steps;
    must(sim_ring_steps_open(&j->s->network, j->rings, protocol, stop_clock, &done, &steps));
    sim_time begin = simulation_now(j->s);
    must(sim_ring_steps_start(steps, bytes));
    while (!done && sim_queue_step(&j->s->queue)) {
    }
    assert_true(done);
    sim_ring_steps_close(&steps);
    return simulation_now(j->s) - begin;
}

/* If all links are equal, the time is 2 (n-1) hops + 2 (n-1)/n bytes / bandwidth (Patarasuk and Yuan, 2009),
 * up to the rounding of each step. */
static void a_ring_on_alike_links_takes_what_the_formula_says(void **context)
{
    (void)context;
    for (int n = 2; n <= 64; n *= 2) {
        job j = open_job("v100-pcie-10gbe", n, n);
        double bytes = 1e8 / 3, bandwidth = 1.2 * SIM_GB_PER_S;
        sim_time hop = sim_nccl_hop(j.rings, SIM_SIMPLE, true), base = sim_nccl_base(j.rings, SIM_SIMPLE);
        double expected = 1.9 * (double)(base + 2 * (n - 1) * hop) + 2.0 * (n - 1) / n * bytes / bandwidth;
        sim_time walked = walk(&j, SIM_SIMPLE, bytes);
        if (fabs((double)walked - expected) > 4.0 * n)
            fail_msg("%d ranks: found %lld ps, expected %.1f", n, (long long)walked, expected);
        close_job(&j);
    }
}

/* If one link is slower than the others, a chunk passes most links faster than the formula says. While the
 * slow link is busy, it hides the latencies of the others, but the formula adds both. The difference shows in
 * calls whose latency is not small compared with their transfer time. */
static void the_closed_form_agrees_with_the_walk(void **context)
{
    (void)context;
    static const struct {
        const char *profile;
        int ranks;
        double bytes;
        double tolerance;
    } cases[] = {
        {"v100-pcie-32g", 2, 102e6, 1e-6},
        {"v100-pcie-32g", 3, 102e6, 0.02},
        {"v100-pcie-32g", 4, 102e6, 0.02},
        {"v100-pcie-32g", 8, 102e6, 0.02},
        {"v100-pcie-32g", 8, 1e5, 0.25},
        {"dgx1-v100", 2, 102e6, 1e-6},
        {"dgx1-v100", 4, 102e6, 1e-6},
        {"dgx1-v100", 8, 102e6, 1e-6},
        {"dgx1-v100", 8, 1e4, 1e-6},
        {"dgx1-p100", 8, 102e6, 1e-6},
        {"dgx-a100-40g", 8, 102e6, 1e-6},
        {"dgx-h100", 5, 102e6, 1e-6},
        {"titan-rtx-x2", 2, 498e6, 1e-6},
        {"titan-rtx-x2-no-p2p", 2, 498e6, 1e-6},
        {"dgx1-v100-4xib100", 32, 102e6, 0.15},
        {"v100-sxm2-ib100", 32, 102e6, 0.06},
        {"dgx-a100-80g", 64, 102e6, 0.25},
        {"dgx-a100-80g", 64, 10e9, 0.03},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        job j = open_job(cases[i].profile, cases[i].ranks, 0);
        for (int p = 0; p < SIM_PROTOCOL_COUNT; p++) {
            sim_time closed =
                sim_nccl_time(j.rings, SIM_ALL_REDUCE, SIM_RING, (sim_protocol)p, cases[i].bytes);
            if (closed == SIM_NEVER) continue;
            sim_time walked = walk(&j, (sim_protocol)p, cases[i].bytes);
            double off = (double)walked / (double)closed - 1;
            if (fabs(off) > cases[i].tolerance)
                fail_msg("%s, %d ranks, %.0f bytes, %s: walked %.4f ms, closed form %.4f ms (%+.3f%%)",
                         cases[i].profile, cases[i].ranks, cases[i].bytes, sim_protocol_name((sim_protocol)p),
                         sim_to_ms(walked), sim_to_ms(closed), 100 * off);
        }
        close_job(&j);
    }
}

static void a_walk_over_a_protocol_that_is_not_there_is_refused(void **context)
{
    (void)context;
    job j = open_job("v100-pcie-32g", 4, 0);
    bool done = false;
    sim_ring_steps *steps;
    must(sim_ring_steps_open(&j.s->network, j.rings, SIM_LL128, stop_clock, &done, &steps));
    assert_int_equal(sim_ring_steps_start(steps, 1e6), STATUS_CONFIG);
    assert_string_equal(error_message(), "a ring of 4 ranks: expected a protocol of this machine, got LL128");
    error_clear();
    sim_ring_steps_close(&steps);
    close_job(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(derived_times_of_an_all_reduce_hold),
        cmocka_unit_test(nccl_1_lays_one_ring_in_the_order_of_the_gpus),
        cmocka_unit_test(latency_counts_hops_inside_and_between),
        cmocka_unit_test(the_plateau_lengthens_large_calls_over_several_machines),
        cmocka_unit_test(the_protocol_of_least_time_is_chosen),
        cmocka_unit_test(a_ring_loses_to_a_tree_on_many_fast_machines_only),
        cmocka_unit_test(a_ring_on_alike_links_takes_what_the_formula_says),
        cmocka_unit_test(the_closed_form_agrees_with_the_walk),
        cmocka_unit_test(a_walk_over_a_protocol_that_is_not_there_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
