/* Compares rates and times of flows with results by hand, with formulas, and on random networks with a plain
 * solver. The plain solver always solves the whole network, not only connected parts. */
#include "common/sim/network.h"

#include "common/base/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MESH = 32, MOST_FLOWS = MESH * MESH, MOST_HOPS = 6 };

typedef struct bench {
    sim_queue queue;
    sim_network network;
    sim_flow flows[MOST_FLOWS];
    sim_time left[MOST_FLOWS], arrived[MOST_FLOWS];
    int count;
} bench;

static void on_left(void *context)
{
    sim_flow *f = context;
    bench *b = (bench *)((char *)f->network - offsetof(bench, network));
    b->left[f - b->flows] = b->queue.now;
}

static void on_arrived(void *context)
{
    sim_flow *f = context;
    bench *b = (bench *)((char *)f->network - offsetof(bench, network));
    b->arrived[f - b->flows] = b->queue.now;
}

static bench *open_bench(const double *capacities, int resources)
{
    bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->queue = (sim_queue){0};
    assert_int_equal(sim_network_init(&b->network, &b->queue, capacities, resources), STATUS_OK);
    return b;
}

static void close_bench(bench *b)
{
    for (int i = 0; i < b->count; i++) sim_flow_deinit(&b->flows[i]);
    sim_network_deinit(&b->network);
    sim_queue_deinit(&b->queue);
    free(b);
}

static int add_flow(bench *b, const sim_hop_use *route, int hops, double bytes, double limit,
                    sim_time latency)
{
    sim_flow *f = &b->flows[b->count];
    assert_int_equal(sim_flow_init(&b->network, f, b->count, MOST_HOPS, on_left, on_arrived, f), STATUS_OK);
    sim_flow_start(f, 0, route, hops, bytes, limit, latency);
    return b->count++;
}

static void run(bench *b)
{
    while (sim_queue_step(&b->queue)) {
    }
}

static void one_flow_takes_bytes_over_bandwidth_and_then_latency(void **context)
{
    (void)context;
    const double capacities[] = {12 * SIM_GB_PER_S, 10 * SIM_GB_PER_S};
    const sim_hop_use route[] = {{0, 1}, {1, 1}};
    bench *b = open_bench(capacities, 2);
    add_flow(b, route, 2, 1e6, INFINITY, 3 * SIM_US);
    run(b);
    assert_int_equal(b->left[0], 100 * SIM_US); /* the slower link has 10 GB/s */
    assert_int_equal(b->arrived[0], 103 * SIM_US);
    close_bench(b);
}

static void nothing_to_carry_and_nowhere_to_go_take_no_time(void **context)
{
    (void)context;
    const double capacities[] = {SIM_GB_PER_S};
    const sim_hop_use route[] = {{0, 1}};
    bench *b = open_bench(capacities, 1);
    add_flow(b, route, 1, 0, INFINITY, 0);
    add_flow(b, NULL, 0, 1e9, INFINITY, 2 * SIM_US);
    add_flow(b, NULL, 0, 1e3, SIM_GB_PER_S, 0); /* this flow has a limit, too */
    run(b);
    assert_int_equal(b->arrived[0], 0);
    assert_int_equal(b->arrived[1], 2 * SIM_US);
    assert_int_equal(b->arrived[2], SIM_US);
    close_bench(b);
}

/* Link A has rate 10, and link B has rate 4. Flow 0 uses both links, flow 1 uses A, flows 2 and 3 use B (flow
 * 3 with weight 2), and flow 4 uses A with a limit of 1. On B each flow gets 4 / (1 + 1 + 2) = 1. On A flow 4
 * has its limit 1 and flow 0 has 1, so flow 1 gets 8. */
static void rates_of_a_small_network_are_those_found_by_hand(void **context)
{
    (void)context;
    const double capacities[] = {10, 4};
    const sim_hop_use both[] = {{0, 1}, {1, 1}}, a[] = {{0, 1}}, b1[] = {{1, 1}}, b2[] = {{1, 2}};
    const double expected[] = {1, 8, 1, 1, 1};
    bench *b = open_bench(capacities, 2);
    add_flow(b, both, 2, 1e9, INFINITY, 0);
    add_flow(b, a, 1, 1e9, INFINITY, 0);
    add_flow(b, b1, 1, 1e9, INFINITY, 0);
    add_flow(b, b2, 1, 1e9, INFINITY, 0);
    add_flow(b, a, 1, 1e9, 1, 0);
    assert_true(sim_queue_step(&b->queue));
    for (int i = 0; i < 5; i++)
        if (fabs(b->flows[i].rate - expected[i]) > 1e-12)
            fail_msg("flow %d: found rate %.15g, expected %g", i, b->flows[i].rate, expected[i]);
    close_bench(b);
}

/* Three flows of 30, 60 and 90 bytes share a link of rate 30. Each has rate 10 until time 3; then the other
 * two have 15 each until time 5; then the last one has 30 until time 6. */
static void flows_speed_up_as_others_end(void **context)
{
    (void)context;
    const double capacities[] = {30e-3};
    const sim_hop_use route[] = {{0, 1}};
    bench *b = open_bench(capacities, 1);
    for (int i = 0; i < 3; i++) add_flow(b, route, 1, 30.0 * (i + 1), INFINITY, 0);
    run(b);
    assert_int_equal(b->arrived[0], 3000);
    assert_int_equal(b->arrived[1], 5000);
    assert_int_equal(b->arrived[2], 6000);
    close_bench(b);
}

/* Two flows of 60 bytes share a link of rate 30. The second begins at time 1, when the first has 30 bytes
 * left. Both have rate 15 until time 3. Then the last 30 bytes of the second flow take a time of 1. */
static void a_flow_may_begin_later(void **context)
{
    (void)context;
    const double capacities[] = {30e-3};
    const sim_hop_use route[] = {{0, 1}};
    bench *b = open_bench(capacities, 1);
    add_flow(b, route, 1, 60, INFINITY, 0);
    sim_flow *late = &b->flows[b->count++];
    assert_int_equal(sim_flow_init(&b->network, late, 1, 1, on_left, on_arrived, late), STATUS_OK);
    sim_flow_start(late, 1000, route, 1, 60, INFINITY, 0);
    assert_true(sim_flow_busy(late));
    run(b);
    assert_int_equal(b->arrived[0], 3000);
    assert_int_equal(b->arrived[1], 4000);
    close_bench(b);
}

/* n workers send to one server. The server's port carries n P, so the time grows with n, while the workers'
 * own ports are mostly idle. */
static void incast_at_a_server_grows_with_the_workers(void **context)
{
    (void)context;
    for (int n = 1; n <= 32; n *= 2) {
        double capacities[33];
        for (int i = 0; i <= n; i++) capacities[i] = 10 * SIM_GB_PER_S;
        bench *b = open_bench(capacities, n + 1);
        for (int i = 0; i < n; i++) {
            sim_hop_use route[] = {{i + 1, 1}, {0, 1}};
            add_flow(b, route, 2, 1e6, INFINITY, 0);
        }
        run(b);
        for (int i = 0; i < n; i++)
            if (llabs(b->arrived[i] - n * 100 * SIM_US) > n)
                fail_msg("%d workers: found %lld ps, expected %lld", n, (long long)b->arrived[i],
                         (long long)(n * 100 * SIM_US));
        close_bench(b);
    }
}

/* Parameters are sharded over n servers on the ranks of n workers. Every port carries 2 (n-1)/n P per round
 * trip, for every n. */
static void shards_beside_the_workers_move_the_bytes_of_a_ring(void **context)
{
    (void)context;
    for (int n = 2; n <= 8; n *= 2) {
        double capacities[16];
        for (int i = 0; i < 2 * n; i++) capacities[i] = 10 * SIM_GB_PER_S;
        bench *b = open_bench(capacities, 2 * n);
        for (int w = 0; w < n; w++)
            for (int s = 0; s < n; s++) {
                sim_hop_use route[] = {{2 * w, 1}, {2 * s + 1, 1}};
                if (s != w) add_flow(b, route, 2, 8e6 / n, INFINITY, 0);
            }
        run(b);
        sim_time expected = sim_duration(8e6 * (n - 1) / n, 10 * SIM_GB_PER_S);
        for (int i = 0; i < b->count; i++) assert_true(llabs(b->arrived[i] - expected) <= n);
        close_bench(b);
    }
}

static void what_is_not_connected_is_not_solved_again(void **context)
{
    (void)context;
    const double capacities[] = {1, 1};
    const sim_hop_use first[] = {{0, 1}}, second[] = {{1, 1}};
    bench *b = open_bench(capacities, 2);
    for (int i = 0; i < 10; i++) add_flow(b, first, 1, 1e9, INFINITY, 0);
    assert_true(sim_queue_step(&b->queue));
    assert_int_equal(b->network.solved, 1); /* The ten flows form a bundle, which has one rate. */
    add_flow(b, second, 1, 10, INFINITY, 0);
    run(b);
    /* The rate of the flow of the second link is solved separately. Later the ten flows end at the same time,
     * and no flows are left whose rates must be solved. */
    assert_int_equal(b->network.solved, 2);
    close_bench(b);
}

/* ---- random networks -------------------------------------------------------------------------- */

typedef struct plain_flow {
    sim_hop_use route[MOST_HOPS];
    int hops;
    double limit, rate;
    bool fixed;
} plain_flow;

/* Raises all unfixed flows to the largest common rate that the links allow, then fixes the flows that cannot
 * rise further. */
static void solve_plainly(const double *capacities, int resources, plain_flow *flows, int count)
{
    for (int left = count; left > 0;) {
        double level = INFINITY;
        for (int r = 0; r < resources; r++) {
            double used = 0, weight = 0;
            for (int f = 0; f < count; f++)
                for (int h = 0; h < flows[f].hops; h++) {
                    if (flows[f].route[h].resource != r) continue;
                    if (flows[f].fixed)
                        used += flows[f].rate * flows[f].route[h].weight;
                    else
                        weight += flows[f].route[h].weight;
                }
            if (weight > 0 && (capacities[r] - used) / weight < level)
                level = (capacities[r] - used) / weight;
        }
        for (int f = 0; f < count; f++)
            if (!flows[f].fixed && flows[f].limit < level) level = flows[f].limit;
        /* Finds the flows that cannot rise further, since they use a link that is full at this level. */
        bool stays[MOST_FLOWS] = {false};
        for (int f = 0; f < count; f++) stays[f] = !flows[f].fixed && flows[f].limit <= level;
        for (int r = 0; r < resources; r++) {
            double used = 0;
            for (int f = 0; f < count; f++)
                for (int h = 0; h < flows[f].hops; h++)
                    if (flows[f].route[h].resource == r)
                        used += (flows[f].fixed ? flows[f].rate : level) * flows[f].route[h].weight;
            if (used < capacities[r] * (1 - 1e-9)) continue;
            for (int f = 0; f < count; f++)
                for (int h = 0; h < flows[f].hops; h++)
                    if (flows[f].route[h].resource == r && !flows[f].fixed) stays[f] = true;
        }
        for (int f = 0; f < count; f++) {
            if (!stays[f]) continue;
            flows[f].fixed = true;
            flows[f].rate = level;
            left--;
        }
    }
}

static double uniform(uint64_t seed, uint64_t *at)
{
    return random_uniform(seed, (*at)++);
}

static int make_flows(uint64_t seed, uint64_t *at, int resources, plain_flow *flows)
{
    int count = 1 + (int)(uniform(seed, at) * (MOST_FLOWS - 1));
    for (int f = 0; f < count; f++) {
        plain_flow *p = &flows[f];
        *p = (plain_flow){.hops = 1 + (int)(uniform(seed, at) * MOST_HOPS), .limit = INFINITY};
        for (int h = 0; h < p->hops; h++)
            p->route[h] = (sim_hop_use){(int)(uniform(seed, at) * resources),
                                        uniform(seed, at) < 0.5 ? 1 : 0.5 + 2 * uniform(seed, at)};
        if (uniform(seed, at) < 0.3) p->limit = 0.05 + uniform(seed, at);
    }
    return count;
}

static void rates_on_random_networks_are_those_of_a_plain_solver(void **context)
{
    (void)context;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        uint64_t at = 0;
        double capacities[24];
        plain_flow flows[MOST_FLOWS];
        int resources = 1 + (int)(uniform(seed, &at) * 23);
        for (int r = 0; r < resources; r++) capacities[r] = 0.1 + 10 * uniform(seed, &at);
        int count = make_flows(seed, &at, resources, flows);
        bench *b = open_bench(capacities, resources);
        for (int f = 0; f < count; f++) add_flow(b, flows[f].route, flows[f].hops, 1e12, flows[f].limit, 0);
        assert_true(sim_queue_step(&b->queue));
        solve_plainly(capacities, resources, flows, count);
        for (int f = 0; f < count; f++)
            if (fabs(b->flows[f].rate - flows[f].rate) > 1e-9 * flows[f].rate)
                fail_msg("seed %llu, flow %d: found rate %.15g, expected %.15g", (unsigned long long)seed, f,
                         b->flows[f].rate, flows[f].rate);
        close_bench(b);
    }
}

/* Flows of random sizes begin and end. At every instant the rates must equal those of the plain solver. */
static void rates_stay_right_while_flows_come_and_go(void **context)
{
    (void)context;
    enum { RESOURCES = 12 };
    const uint64_t seed = 77;
    uint64_t at = 0;
    double capacities[RESOURCES];
    plain_flow flows[MOST_FLOWS];
    for (int r = 0; r < RESOURCES; r++) capacities[r] = 0.1 + uniform(seed, &at);
    int count = make_flows(seed, &at, RESOURCES, flows), checked = 0;
    bench *b = open_bench(capacities, RESOURCES);
    for (int f = 0; f < count; f++)
        add_flow(b, flows[f].route, flows[f].hops, 1e6 * uniform(seed, &at), flows[f].limit, 0);
    for (;;) {
        while (sim_queue_step(&b->queue) && sim_event_scheduled(&b->network.solve)) {
        }
        plain_flow active[MOST_FLOWS];
        int origin[MOST_FLOWS], present = 0;
        for (int f = 0; f < count; f++) {
            if (!b->flows[f].active) continue;
            origin[present] = f;
            active[present] = flows[f];
            active[present++].fixed = false;
        }
        if (present == 0) break;
        solve_plainly(capacities, RESOURCES, active, present);
        for (int f = 0; f < present; f++, checked++)
            if (fabs(b->flows[origin[f]].rate - active[f].rate) > 1e-9 * active[f].rate)
                fail_msg("with %d flows, flow %d: found rate %.15g, expected %.15g", present, origin[f],
                         b->flows[origin[f]].rate, active[f].rate);
    }
    assert_true(checked > count * 4);
    close_bench(b);
}

/* Runs flows from MESH senders to MESH receivers that begin and end at different times. */
static bench *run_mesh(int32_t coarse_from)
{
    double capacities[2 * MESH];
    for (int i = 0; i < 2 * MESH; i++) capacities[i] = SIM_GB_PER_S;
    bench *b = open_bench(capacities, 2 * MESH);
    b->network.coarse_from = coarse_from;
    for (int i = 0; i < MESH * MESH; i++) {
        const sim_hop_use route[] = {{i % MESH, 1}, {MESH + i / MESH, 1}};
        sim_flow *f = &b->flows[b->count];
        assert_int_equal(sim_flow_init(&b->network, f, 0, 2, on_left, on_arrived, f), STATUS_OK);
        sim_time at = (sim_time)(random_uniform(7, (uint64_t)(2 * i)) * 10 * SIM_MS);
        sim_flow_start(f, at, route, 2, 1e6 * (0.5 + random_uniform(7, (uint64_t)(2 * i + 1))), INFINITY, 0);
        b->count++;
    }
    while (sim_queue_step(&b->queue))
        for (int i = 0; i < 2 * MESH; i++)
            assert_true(b->network.resources[i].used <= SIM_GB_PER_S * (1 + 1e-9));
    return b;
}

static void many_flows_have_nearly_fair_rates_for_a_fraction_of_the_work(void **context)
{
    (void)context;
    bench *fair = run_mesh(INT32_MAX), *nearly = run_mesh(0);
    sim_time last_fair = 0, last_nearly = 0;
    double off = 0;
    for (int i = 0; i < MESH * MESH; i++) {
        last_fair = sim_later(last_fair, fair->left[i]);
        last_nearly = sim_later(last_nearly, nearly->left[i]);
        off += fabs((double)nearly->left[i] / (double)fair->left[i] - 1) / (MESH * MESH);
    }

    print_message("# mean %.4f, last %.4f, %lld of %lld rates\n", off,
                  (double)last_nearly / (double)last_fair - 1, (long long)nearly->network.solved,
                  (long long)fair->network.solved);
    assert_true(off < 0.1);
    assert_true(fabs((double)last_nearly / (double)last_fair - 1) < 0.03);
    assert_true(nearly->network.solved < fair->network.solved / 3);
    close_bench(fair);
    close_bench(nearly);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_flow_takes_bytes_over_bandwidth_and_then_latency),
        cmocka_unit_test(nothing_to_carry_and_nowhere_to_go_take_no_time),
        cmocka_unit_test(rates_of_a_small_network_are_those_found_by_hand),
        cmocka_unit_test(flows_speed_up_as_others_end),
        cmocka_unit_test(a_flow_may_begin_later),
        cmocka_unit_test(incast_at_a_server_grows_with_the_workers),
        cmocka_unit_test(shards_beside_the_workers_move_the_bytes_of_a_ring),
        cmocka_unit_test(what_is_not_connected_is_not_solved_again),
        cmocka_unit_test(rates_on_random_networks_are_those_of_a_plain_solver),
        cmocka_unit_test(rates_stay_right_while_flows_come_and_go),
        cmocka_unit_test(many_flows_have_nearly_fair_rates_for_a_fraction_of_the_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
