/* Tests routes, the bandwidths that they leave for a flow, and the rings of every profile. */
#include "common/sim/rings.h"
#include "common/sim/simulation.h"
#include "tests/support/check.h"

#include <stdlib.h>

static simulation *open_simulation(const char *profile, int world)
{
    simulation *s;
    simulation_config config = {.profile = profile, .world = world};
    must(simulation_open(&config, &s));
    return s;
}

/* Returns the bandwidth in GB/s of a flow that is alone on this route. */
static double bandwidth_of(const simulation *s, const sim_route *route)
{
    const double *capacities = s->topology->capacities;
    double least = INFINITY;
    for (int i = 0; i < route->count; i++) {
        double rate = capacities[route->hops[i].resource] / route->hops[i].weight / SIM_GB_PER_S;
        if (rate < least) least = rate;
    }
    return least;
}

static void routes_take_the_links_between_their_ends(void **context)
{
    (void)context;
    const sim_place gpu0 = {.index = 0}, gpu1 = {.index = 1}, gpu2 = {.index = 2}, gpu4 = {.index = 4},
                    gpu5 = {.index = 5};
    const sim_place host0 = {.host = true, .index = 0}, host1 = {.host = true, .index = 1};
    const sim_place far0 = {.machine = 1, .index = 0}, far_host = {.machine = 1, .host = true, .index = 0};
    const struct {
        const char *profile;
        int world;
        sim_place from, to;
        int hops;
        double bandwidth;
        double latency_us;
    } cases[] = {
        {"v100-pcie-32g", 8, gpu0, gpu1, 2, 12, 10}, /* both GPUs are at one switch */
        {"v100-pcie-32g", 8, gpu0, gpu2, 4, 10, 10}, /* over the host bridge */
        {"v100-pcie-32g", 8, gpu0, gpu4, 5, 6, 10},  /* over the link between the sockets */
        {"v100-pcie-32g", 8, gpu0, host0, 3, 12, 10},
        {"v100-pcie-32g", 8, host1, gpu0, 4, 6, 10},
        {"v100-pcie-32g", 8, host0, host0, 1, 38.4, 0}, /* A copy within memory reads it and writes it. */
        {"v100-pcie-32g", 8, host0, host1, 3, 6, 0},
        {"v100-pcie-32g", 8, gpu0, gpu0, 0, INFINITY, 10},
        {"dgx1-v100", 8, gpu0, gpu1, 1, 20, 10},
        {"dgx1-v100", 8, gpu0, gpu4, 1, 40, 10}, /* two NVLinks */
        {"dgx1-v100", 8, gpu0, gpu5, 5, 6, 10},  /* No NVLink connects these GPUs, so the route uses PCIe. */
        {"dgx-a100-40g", 8, gpu0, gpu5, 2, 240, 10},
        {"titan-rtx-x2", 2, gpu0, gpu1, 1, 40, 10},
        {"titan-rtx-x2-no-p2p", 2, gpu0, gpu1, 3, 12, 10}, /* in and out of the host's memory */
        {"dgx1-v100-4xib100", 16, gpu0, far0, 4, 12, 1.5}, /* the adapters' own PCIe links do not count */
        {"dgx1-v100-4xib100", 16, host0, far_host, 6, 12, 1.5},
        {"v100-pcie-10gbe", 2, gpu0, far0, 4, 1.2, 25},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        simulation *s = open_simulation(cases[i].profile, cases[i].world);
        sim_route route;
        sim_topology_route(s->topology, cases[i].from, cases[i].to, &route);
        double bandwidth = bandwidth_of(s, &route), latency = (double)route.latency / (double)SIM_US;
        bool same = bandwidth == cases[i].bandwidth || fabs(bandwidth - cases[i].bandwidth) < 1e-9;
        if (route.count != cases[i].hops || !same || latency != cases[i].latency_us)
            fail_msg("case %zu, %s: found %d links, %g GB/s, %g us, expected %d, %g, %g", i, cases[i].profile,
                     route.count, bandwidth, latency, cases[i].hops, cases[i].bandwidth, cases[i].latency_us);
        simulation_close(&s);
    }
}

static void the_two_directions_of_a_link_are_two_resources(void **context)
{
    (void)context;
    simulation *s = open_simulation("v100-pcie-32g", 8);
    sim_route out, back;
    sim_topology_route(s->topology, (sim_place){.index = 0}, (sim_place){.index = 7}, &out);
    sim_topology_route(s->topology, (sim_place){.index = 7}, (sim_place){.index = 0}, &back);
    for (int i = 0; i < out.count; i++)
        for (int k = 0; k < back.count; k++)
            assert_int_not_equal(out.hops[i].resource, back.hops[k].resource);
    simulation_close(&s);
}

static void ranks_fill_the_machines_in_order(void **context)
{
    (void)context;
    simulation *s = open_simulation("dgx1-v100-4xib100", 12);
    assert_int_equal(s->topology->machines, 2);
    assert_int_equal(s->ranks_per_machine, 6);
    sim_place gpu = simulation_gpu(s, 7), host = simulation_host(s, 5);
    assert_true(gpu.machine == 1 && gpu.index == 1 && !gpu.host);
    assert_true(host.machine == 0 && host.index == 1 && host.host);
    simulation_close(&s);
}

/* Each process has several GPUs. Rank s * n + r is GPU s of process r. */
static void gpus_of_a_process_are_neighbors_on_one_machine(void **context)
{
    (void)context;
    simulation *s = NULL;
    simulation_config config = {.profile = "dgx1-v100-4xib100", .world = 9, .per_process = 3};
    must(simulation_open(&config, &s));
    assert_int_equal(s->topology->machines, 2); /* each machine of 8 GPUs has two processes */
    assert_int_equal(simulation_processes(s), 2);
    for (int process = 0; process < 3; process++)
        for (int stage = 0; stage < 3; stage++) {
            sim_place gpu = simulation_gpu(s, stage * 3 + process);
            assert_int_equal(gpu.machine, process / 2);
            assert_int_equal(gpu.index, process % 2 * 3 + stage);
        }
    simulation_close(&s);
    config.per_process = config.world = 9;
    assert_fails(simulation_open(&config, &s), STATUS_CONFIG,
                 "expected processes of at most 8 GPUs, which a machine has, got 9");
    config.per_process = 3;
    config.machines = 1;
    assert_fails(simulation_open(&config, &s), STATUS_CONFIG,
                 "expected 1 to 6 ranks (6 GPUs on each of 1 machine), got 9");
}

static void rings_have_the_bus_bandwidth_of_their_links(void **context)
{
    (void)context;
    static const struct {
        const char *profile;
        int ranks;
        double bus; /* bandwidth in GB/s */
        int rings, channels;
        bool nvlink;
    } cases[] = {
        {"v100-pcie-32g", 2, 12, 1, 1, false},
        {"v100-pcie-32g", 4, 10, 1, 1, false},
        {"v100-pcie-32g", 8, 6, 1, 1, false},
        {"dgx1-v100", 2, 20, 1, 1, true},
        {"dgx1-v100", 4, 80, 4, 4, true},
        {"dgx1-v100", 8, 120, 6, 6, true},
        {"dgx1-p100", 8, 72, 4, 4, true},
        {"dgx-a100-40g", 2, 240, 1, 12, true},
        {"dgx-a100-80g", 8, 240, 1, 12, true},
        {"dgx-h100", 8, 18 * 20.6, 1, 18, true},
        {"hgx-h200", 8, 18 * 20.6, 1, 18, true},
        {"titan-rtx-x2", 2, 40, 2, 2, true},
        {"titan-rtx-x2-no-p2p", 2, 42.6 / 4, 1, 1, false}, /* each byte passes the host's memory four times */
        {"v100-pcie-10gbe", 8, 1.2, 1, 1, false},
        {"dgx1-v100-4xib100", 16, 48, 4, 4, true},
        {"v100-sxm2-ib100", 32, 12, 1, 1, true},
        {"dgx-a100-80g", 64, 192, 8, 8, true},
        {"dgx-h100", 1024, 384, 8, 8, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        simulation *s = open_simulation(cases[i].profile, cases[i].ranks);
        sim_place *gpus = calloc((size_t)cases[i].ranks, sizeof *gpus);
        sim_rings *r;
        assert_non_null(gpus);
        for (int k = 0; k < cases[i].ranks; k++) gpus[k] = simulation_gpu(s, k);
        must(sim_rings_open(s->topology, gpus, cases[i].ranks, &r));
        double bus = r->bus / SIM_GB_PER_S;
        if (fabs(bus - cases[i].bus) > 1e-9 * bus || r->count != cases[i].rings ||
            r->channels != cases[i].channels || r->nvlink != cases[i].nvlink)
            fail_msg("%s, %d ranks: found bus %.6g GB/s, %d rings, %d channels, NVLink %d, expected %g, %d, "
                     "%d, %d",
                     cases[i].profile, cases[i].ranks, bus, r->count, r->channels, r->nvlink, cases[i].bus,
                     cases[i].rings, cases[i].channels, cases[i].nvlink);
        sim_rings_close(&r);
        free(gpus);
        simulation_close(&s);
    }
}

/* If a group has only some GPUs of several machines, its rings use the adapters of these GPUs. Two GPUs of a
 * DGX A100 each have an adapter at their switch, and two GPUs of a DGX-1 share one. A ring does not cross to
 * another socket to use an adapter there. */
static void groups_of_some_gpus_take_the_adapters_of_these(void **context)
{
    (void)context;
    static const struct {
        const char *profile;
        /* Number of machines, and for each machine the number of members and their positions. */
        int machines, members[4], count;
        double bus; /* Bandwidth in GB/s. */
        /* Number of rings, and the adapters that the rings use on the first machine. */
        int rings, nics[4];
    } cases[] = {
        {"dgx-a100-80g", 8, {0}, 1, 24, 1, {0}},
        {"dgx-a100-80g", 8, {1}, 1, 24, 1, {1}},
        {"dgx-a100-80g", 8, {6}, 1, 24, 1, {6}},
        {"dgx-a100-80g", 2, {0, 1}, 2, 48, 2, {0, 1}},
        {"dgx-a100-80g", 4, {4, 5, 6, 7}, 4, 96, 4, {4, 5, 6, 7}},
        {"dgx1-v100-4xib100", 2, {3}, 1, 12, 1, {1}},
        {"dgx1-v100-4xib100", 2, {6, 7}, 2, 12, 1, {3}},
        {"v100-sxm2-ib100", 4, {2}, 1, 12, 1, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        simulation *s = open_simulation(cases[i].profile, 8 * cases[i].machines);
        sim_place gpus[32];
        sim_rings *r;
        int n = cases[i].count, ranks = n * cases[i].machines;
        for (int k = 0; k < ranks; k++) gpus[k] = simulation_gpu(s, 8 * (k / n) + cases[i].members[k % n]);
        must(sim_rings_open(s->topology, gpus, ranks, &r));
        double bus = r->bus / SIM_GB_PER_S;
        if (fabs(bus - cases[i].bus) > 1e-9 * bus || r->count != cases[i].rings ||
            r->channels != cases[i].rings)
            fail_msg("case %zu: found bus %.6g GB/s, %d rings, %d channels, expected %g, %d", i, bus,
                     r->count, r->channels, cases[i].bus, cases[i].rings);
        for (int ring = 0; ring < r->count; ring++)
            for (int k = 0; k < ranks; k++) assert_int_equal(r->nics[ring * ranks + k], cases[i].nics[ring]);
        sim_rings_close(&r);
        simulation_close(&s);
    }
}

/* The members have different positions on the two machines. A ring leaves each machine through the adapter of
 * the member there. The number of rings is the number of adapters on the machine with the fewest members. */
static void machines_with_other_members_have_other_adapters(void **context)
{
    (void)context;
    simulation *s = open_simulation("dgx-a100-80g", 16);
    const sim_place gpus[] = {
        {.machine = 0, .index = 2}, {.machine = 1, .index = 6}, {.machine = 1, .index = 7}};
    sim_rings *r;
    must(sim_rings_open(s->topology, gpus, 3, &r));
    assert_int_equal(r->count, 1);
    assert_int_equal(r->nics[0], 2);
    assert_int_equal(r->nics[1], 6);
    assert_int_equal(r->nics[2], 6);
    assert_true(fabs(r->bus / SIM_GB_PER_S - 24) < 1e-9);
    sim_rings_close(&r);
    simulation_close(&s);
}

static void every_ring_passes_every_member_once(void **context)
{
    (void)context;
    static const struct {
        const char *profile;
        int ranks;
    } cases[] = {{"dgx1-v100", 8}, {"dgx1-v100-4xib100", 30}, {"dgx-a100-40g", 24}, {"dgx1-p100", 7}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        simulation *s = open_simulation(cases[i].profile, cases[i].ranks);
        sim_place gpus[32];
        sim_rings *r;
        for (int k = 0; k < cases[i].ranks; k++) gpus[k] = simulation_gpu(s, k);
        must(sim_rings_open(s->topology, gpus, cases[i].ranks, &r));
        for (int ring = 0; ring < r->count; ring++) {
            int seen[32] = {0}, crossings = 0;
            for (int k = 0; k < r->ranks; k++) {
                seen[r->order[ring * r->ranks + k]]++;
                crossings += sim_rings_crosses(r, ring, k);
            }
            for (int k = 0; k < r->ranks; k++) assert_int_equal(seen[k], 1);
            assert_int_equal(crossings, r->machines > 1 ? r->machines : 0);
        }
        sim_rings_close(&r);
        simulation_close(&s);
    }
}

/* The directed complete graph of four has six cycles through all nodes. Two of them fit side by side, three
 * do not. A ring of five has one cycle in each direction. */
static void cycles_use_every_link_once(void **context)
{
    (void)context;
    int8_t complete[SIM_CYCLE_GPUS][SIM_CYCLE_GPUS] = {{0}}, round[SIM_CYCLE_GPUS][SIM_CYCLE_GPUS] = {{0}};
    int8_t line[SIM_CYCLE_GPUS][SIM_CYCLE_GPUS] = {{0}};
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++) complete[a][b] = a != b;
    for (int a = 0; a < 5; a++) round[a][(a + 1) % 5] = round[(a + 1) % 5][a] = 1;
    line[0][1] = line[1][0] = line[1][2] = line[2][1] = 1;
    sim_cycles found;
    sim_find_cycles(4, (const int8_t(*)[SIM_CYCLE_GPUS])complete, &found);
    assert_int_equal(found.count, 2);
    sim_find_cycles(5, (const int8_t(*)[SIM_CYCLE_GPUS])round, &found);
    assert_int_equal(found.count, 2);
    for (int i = 0; i < 5; i++) assert_int_equal(found.order[1][i], (5 - found.order[0][i]) % 5);
    sim_find_cycles(3, (const int8_t(*)[SIM_CYCLE_GPUS])line, &found);
    assert_int_equal(found.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routes_take_the_links_between_their_ends),
        cmocka_unit_test(the_two_directions_of_a_link_are_two_resources),
        cmocka_unit_test(ranks_fill_the_machines_in_order),
        cmocka_unit_test(gpus_of_a_process_are_neighbors_on_one_machine),
        cmocka_unit_test(rings_have_the_bus_bandwidth_of_their_links),
        cmocka_unit_test(groups_of_some_gpus_take_the_adapters_of_these),
        cmocka_unit_test(machines_with_other_members_have_other_adapters),
        cmocka_unit_test(every_ring_passes_every_member_once),
        cmocka_unit_test(cycles_use_every_link_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
