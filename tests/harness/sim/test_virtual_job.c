/* Jobs in virtual time: symmetry, determinism, jitter, and times that have a formula. */
#include "common/base/clock.h"
#include "harness/sim/virtual_measure.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void must(status rc)
{
    if (rc != STATUS_OK) fail_msg("%s: %s", status_name(rc), error_message());
}

static virtual_workload workload(const char *profile, int world, const char *policy)
{
    return (virtual_workload){.machine = {.profile = profile, .world = world},
                              .model = {.name = "resnet18", .image = 32},
                              .batch = 8,
                              .optimizer = optimizer_defaults(OPTIMIZER_SGD),
                              .policy = policy};
}

static virtual_figures *measure(const virtual_workload *w)
{
    virtual_figures *f = calloc(1, sizeof *f);
    assert_non_null(f);
    must(virtual_measure(w, f));
    return f;
}

static void check(const char *what, double found, double expected, double tolerance)
{
    if (fabs(found - expected) > tolerance * fabs(expected))
        fail_msg("%s: found %.9g, expected %.9g", what, found, expected);
}

/* The ranks of one machine stand for all: what a step takes is the same to the last bit. */
static void symmetry_gives_the_times_of_all_ranks(void **context)
{
    (void)context;
    static const char *const policies[] = {"ddp", "apex", "torch-0.4.1"};
    for (int p = 0; p < 3; p++) {
        virtual_workload w = workload("dgx1-v100-4xib100", 32, policies[p]);
        virtual_figures *all = measure(&w);
        w.by_symmetry = true;
        virtual_figures *some = measure(&w);
        assert_int_equal(all->ranks, 32);
        assert_int_equal(some->ranks, 8);
        assert_true(all->step_ms == some->step_ms);
        assert_true(all->exposed_ms == some->exposed_ms);
        assert_int_equal(all->most_bytes, some->most_bytes);
        assert_int_equal(all->bytes_sent, some->bytes_sent);
        free(all);
        free(some);
    }
}

static void the_same_job_takes_the_same_time_and_jitter_another(void **context)
{
    (void)context;
    static const char *const policies[] = {"ddp", "sync", "dp"};
    for (int p = 0; p < 3; p++) {
        virtual_workload w = workload(NULL, 4, policies[p]);
        w.model.image = 64;
        w.batch = 64; /* so that kernels, not launches, make the time */
        virtual_figures *plain[2], *jittered[3];
        for (int i = 0; i < 2; i++) plain[i] = measure(&w);
        for (int i = 0; i < 3; i++) {
            w.machine.jitter_seed = i < 2 ? 7 : 8;
            jittered[i] = measure(&w);
        }
        assert_true(plain[0]->step_ms == plain[1]->step_ms);
        assert_true(jittered[0]->step_ms == jittered[1]->step_ms);
        assert_true(jittered[0]->step_ms != jittered[2]->step_ms);
        assert_true(jittered[0]->step_ms > plain[0]->step_ms);
        for (int i = 0; i < 2; i++) free(plain[i]);
        for (int i = 0; i < 3; i++) free(jittered[i]);
    }
}

/* ---- free compute, free hosts, links alone ----------------------------------------------------- */

enum { FREE = 11 + 10 };

/* Alike hosts with one GPU each on a network of 1.25 GB/s without latency: everything else takes no time. */
static int free_of_charge(sim_override *out)
{
    static const sim_constant none[] = {
        SIM_KERNEL_OVERHEAD, SIM_LAUNCH_TIME, SIM_SYNCHRONIZE_TIME, SIM_COPY_LATENCY, SIM_NETWORK_LATENCY,
        SIM_MESSAGE_TIME,    SIM_RHO};
    int count = 0;
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        out[count++] = (sim_override){.constant = none[i]};
    out[count++] = (sim_override){.constant = SIM_PEAK_FP32, .value = 1e4};
    out[count++] = (sim_override){.constant = SIM_MEMORY_BANDWIDTH, .value = 1e5};
    out[count++] = (sim_override){.constant = SIM_PCIE, .value = 1000};
    out[count++] = (sim_override){.constant = SIM_HOST_MEMORY, .value = 1e4};
    out[count++] = (sim_override){.constant = SIM_HOST_SUM, .value = 1e4};
    out[count++] = (sim_override){.constant = SIM_HOST_THREADS, .value = 1024};
    out[count++] = (sim_override){.constant = SIM_MESSAGE_COPY, .value = 1e4};
    out[count++] = (sim_override){.constant = SIM_NIC, .value = 0.125};
    assert_true(count <= FREE);
    return count;
}

static virtual_figures *measure_links(int world, int servers, const char *placement, int64_t steps)
{
    sim_override overrides[FREE];
    char count[24];
    const char *settings[] = {count, placement, "priority=fifo", NULL};
    snprintf(count, sizeof count, "servers=%d", servers);
    virtual_workload w = workload("v100-pcie-10gbe", world, "sync");
    w.model = (model_options){.name = "vgg16", .image = 32, .classes = 10};
    w.batch = 1;
    w.steps = steps;
    w.engine_settings = settings;
    w.machine.overrides = overrides;
    w.machine.override_count = free_of_charge(overrides);
    return measure(&w);
}

/* Every worker but the one on the server's machine pushes P through its link, and gets P back through it. */
static void check_growth(const char *placement)
{
    double parameters = 0, first = 0;
    for (int world = 2; world <= 5; world++) {
        virtual_figures *f = measure_links(world, 1, placement, 3);
        if (world == 2)
            parameters = (double)f->ledgers[1].classes[LEDGER_GRADIENTS].current, first = f->step_ms;
        double ms =
            (world - 1) * parameters / 0.125e9 * 1000; /* one way; the other way overlaps but for a key */
        if (f->step_ms < ms || f->step_ms > 2.05 * ms)
            fail_msg("%d workers: found %.3f ms, expected %.3f to %.3f", world, f->step_ms, ms, 2 * ms);
        check("growth with the workers", f->step_ms / first, world - 1, 0.03);
        free(f);
    }
}

static void a_single_servers_time_grows_with_the_workers(void **context)
{
    (void)context;
    check_growth("server-placement=rank");
    check_growth("server-placement=own");
}

/* n servers in the ranks move what a ring moves: 2 (n - 1) / n P out of every rank. */
static void a_sharded_server_moves_the_bytes_of_a_ring(void **context)
{
    (void)context;
    for (int world = 2; world <= 4; world += 2) {
        virtual_figures *ps[2] = {measure_links(world, world, "server-placement=rank", 2), measure_links(world, world, "server-placement=rank", 3)};
        virtual_workload w = workload("v100-pcie-10gbe", world, "flat");
        w.model = (model_options){.name = "vgg16", .image = 32, .classes = 10};
        virtual_figures *ring = measure(&w);
        int64_t a_step = ps[1]->all_bytes_sent - ps[0]->all_bytes_sent;
        check("bytes sent by rank 0 in a step", (double)a_step, (double)ring->bytes_sent, 0.001);
        for (int i = 0; i < 2; i++) free(ps[i]);
        free(ring);
    }
}

/* ---- figures that must be refused -------------------------------------------------------------- */

static void more_gpus_than_the_topology_has_are_refused(void **context)
{
    (void)context;
    virtual_figures *f = calloc(1, sizeof *f);
    virtual_workload w = workload("v100-pcie-32g", 9, "ddp");
    assert_int_equal(virtual_measure(&w, f), STATUS_CONFIG);
    assert_string_equal(
        error_message(),
        "profile v100-pcie-32g: expected 1 to 8 ranks (8 GPUs on each of 1 machine), got 9");
    error_clear();
    w = workload("nowhere", 2, "ddp");
    assert_int_equal(virtual_measure(&w, f), STATUS_USAGE);
    error_clear();
    free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(symmetry_gives_the_times_of_all_ranks),
        cmocka_unit_test(the_same_job_takes_the_same_time_and_jitter_another),
        cmocka_unit_test(a_single_servers_time_grows_with_the_workers),
        cmocka_unit_test(a_sharded_server_moves_the_bytes_of_a_ring),
        cmocka_unit_test(more_gpus_than_the_topology_has_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
