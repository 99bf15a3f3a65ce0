/* Tests jobs in virtual time: symmetry, determinism, jitter, and times for which there is a formula. */
#include "common/base/clock.h"
#include "harness/report/report.h"
#include "harness/sim/virtual_measure.h"
#include "tests/support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char resnet[] = "--model resnet18 --image 32 --batch 8 --warmup 2 --steps 1";

static virtual_workload workload(const char *profile, int gpus, const char *policy, const char *options)
{
    virtual_workload w = {.profile = profile, .gpus = gpus, .policy = policy};
    snprintf(w.options, sizeof w.options, "%s", options);
    return w;
}

static virtual_figures measure(const virtual_workload *w)
{
    virtual_figures f = {0};
    must(virtual_measure(w, &f));
    return f;
}

static double bytes_sent(const virtual_figures *f)
{
    double most = 0;
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(json_object_get(f->job, "traffic"), "per_rank"), i, row) most =
        fmax(most, json_number_value(json_object_get(row, "bytes_sent_per_step")));
    return most;
}

static void check(const char *what, double found, double expected, double tolerance)
{
    if (fabs(found - expected) > tolerance * fabs(expected))
        fail_msg("%s: found %.9g, expected %.9g", what, found, expected);
}

/* Simulates all ranks of a job on four machines. Then simulates only the ranks of the first machine. */
static void measure_both(const char *policy, virtual_figures *all, virtual_figures *some)
{
    virtual_workload w = workload("dgx1-v100-4xib100", 32, policy, resnet);
    *all = measure(&w);
    w.variant.by_symmetry = true;
    *some = measure(&w);
    assert_int_equal(json_integer_value(json_object_get(all->job, "simulated_ranks")), 32);
    assert_int_equal(json_integer_value(json_object_get(some->job, "simulated_ranks")), 8);
    assert_int_equal(all->most_bytes, some->most_bytes);
    assert_true(bytes_sent(all) == bytes_sent(some));
}

/* Checks that a mean over ranks and steps differs by at most `most_ns`. Returns true if it differs. */
static bool differs(const char *policy, const char *path, const virtual_figures *all,
                    const virtual_figures *some, double most_ns)
{
    double ns = 1e9 * fabs(report_number_at(all->job, path) - report_number_at(some->job, path));
    if (ns > most_ns) fail_msg("%s: %s differs by %.9g ns, expected at most %.9g", policy, path, ns, most_ns);
    return ns > 0;
}

static void the_ranks_of_one_machine_stand_for_all_to_the_last_bit(void **context)
{
    (void)context;
    static const char *const policies[] = {"ddp", "apex", "torch-0.4.1", "zero1:group=8", "zero3:group=8"};
    double rounding_ns = 1e-6; /* of a mean over 32 ranks or over 8 */
    for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
        virtual_figures all, some;
        measure_both(policies[p], &all, &some);
        assert_true(all.step_ms == some.step_ms);
        differs(policies[p], "phases.step_s.mean_s", &all, &some, rounding_ns);
        differs(policies[p], "phases.exposed_communication_s.mean_s", &all, &some, rounding_ns);
        differs(policies[p], "phases.waiting_s.mean_s", &all, &some, rounding_ns);
        virtual_figures_free(&all);
        virtual_figures_free(&some);
    }
}

/* The last rank has less to update. So it copies its next batch earlier than the others, while parameters are
 * gathered, and waits for the others. */
static void a_last_rank_that_updates_less_makes_little_difference(void **context)
{
    (void)context;
    static const char *const policies[] = {"zero1",         "zero2", "zero3", "fsdp", "zero3:reshard=no",
                                           "zero3:group=16"};
    for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
        virtual_figures all, some;
        measure_both(policies[p], &all, &some);
        bool step = differs(policies[p], "phases.step_s.mean_s", &all, &some, 100),
             exposed = differs(policies[p], "phases.exposed_communication_s.mean_s", &all, &some, 20e3),
             waiting = differs(policies[p], "phases.waiting_s.mean_s", &all, &some, 20e3);
        assert_true(step || exposed);
        assert_true(waiting == (strncmp(policies[p], "zero1", 5) != 0 && strcmp(policies[p], "zero2") != 0));
        virtual_figures_free(&all);
        virtual_figures_free(&some);
    }
}

/* Returns the step time of the workload with additional options. */
static double step_with(const virtual_workload *w, const char *more)
{
    virtual_workload with = *w;
    snprintf(with.options, sizeof with.options, "%s%s", w->options, more);
    virtual_figures f = measure(&with);
    double ms = f.step_ms;
    virtual_figures_free(&f);
    return ms;
}

static void the_same_job_takes_the_same_time_and_jitter_another(void **context)
{
    (void)context;
    static const char *const policies[] = {"ddp", "sync", "dp"};
    for (int p = 0; p < 3; p++) {
        /* With a batch of 64 the kernels, not the launches, determine the time. */
        virtual_workload w =
            workload(NULL, 4, policies[p], "--model resnet18 --image 64 --batch 64 --warmup 2 --steps 1");
        double plain = step_with(&w, ""), jittered = step_with(&w, " --jitter 7");
        assert_true(step_with(&w, "") == plain);
        assert_true(step_with(&w, " --jitter 7") == jittered);
        assert_true(step_with(&w, " --jitter 8") != jittered);
        assert_true(jittered > plain);
    }
}

/* ---- free compute, free hosts, links alone ----------------------------------------------------- */

enum { FREE = 11 + 10 };

/* Sets up equal hosts with one GPU each, on a network of 1.25 GB/s without latency. Everything but the
 * network takes no time. Returns the number of overrides. */
static int free_of_charge(sim_override *out)
{
    static const sim_constant none[] = {SIM_KERNEL_OVERHEAD, SIM_LAUNCH_TIME,     SIM_SYNCHRONIZE_TIME,
                                        SIM_COPY_LATENCY,    SIM_NETWORK_LATENCY, SIM_MESSAGE_TIME};
    int count = 0;
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        out[count++] = (sim_override){.constant = none[i]};
    out[count++] = (sim_override){.constant = SIM_PEAK_FP32, .value = 1e4};
    out[count++] = (sim_override){.constant = SIM_MEMORY_BANDWIDTH, .value = 1e5};
    out[count++] = (sim_override){.constant = SIM_PCIE, .value = 1000};
    out[count++] = (sim_override){.constant = SIM_HOST_MEMORY, .value = 1e4};
    out[count++] = (sim_override){.constant = SIM_HOST_SUM, .value = 1e4};
    out[count++] = (sim_override){.constant = SIM_MESSAGE_COPY, .value = 1e4};
    out[count++] = (sim_override){.constant = SIM_NIC, .value = 0.125};
    assert_true(count <= FREE);
    return count;
}

static virtual_figures measure_links(const char *policy, int gpus, const char *options)
{
    sim_override overrides[FREE];
    virtual_workload w =
        workload("v100-pcie-10gbe", gpus, policy, "--model vgg16 --image 32 --classes 10 --batch 1 ");
    snprintf(w.options + strlen(w.options), sizeof w.options - strlen(w.options), "%s", options);
    w.variant.overrides = overrides;
    w.variant.override_count = free_of_charge(overrides);
    return measure(&w);
}

static double gradient_bytes(const virtual_figures *f, size_t rank)
{
    const json_t *memory = json_object_get(json_array_get(json_object_get(f->job, "ranks"), rank), "memory");
    const json_t *gradients = json_object_get(json_object_get(memory, "classes"), "gradients");
    return json_number_value(json_object_get(gradients, "current_bytes"));
}

/* Every worker that is not on the server's machine sends its gradients P over the server's link, and receives
 * P over it. */
static void check_growth(const char *placement)
{
    double parameters = 0, first = 0;
    for (int world = 2; world <= 5; world++) {
        char options[120];
        snprintf(options, sizeof options,
                 "--servers 1 --server-placement %s --priority fifo --warmup 2 --steps 1", placement);
        virtual_figures f = measure_links("sync", world, options);
        if (world == 2) parameters = gradient_bytes(&f, 1), first = f.step_ms;
        double ms =
            /* Time of one direction. The other direction overlaps with it, except for one key. */
            (world - 1) * parameters / 0.125e9 * 1000;
        if (f.step_ms < ms || f.step_ms > 2.05 * ms)
            fail_msg("%d workers: found %.3f ms, expected %.3f to %.3f", world, f.step_ms, ms, 2 * ms);
        check("growth with the workers", f.step_ms / first, world - 1, 0.03);
        virtual_figures_free(&f);
    }
}

static void a_single_servers_time_grows_with_the_workers(void **context)
{
    (void)context;
    check_growth("rank");
    check_growth("own");
}

/* Returns the bytes that rank 0 has sent from the start on. */
static double all_bytes_sent(const virtual_figures *f)
{
    return json_number_value(
        json_object_get(json_array_get(json_object_get(f->job, "ranks"), 0), "bytes_sent"));
}

/* If each of n ranks has a server, each rank sends as many bytes as in a ring: 2 (n - 1) / n P. */
static void a_sharded_server_moves_the_bytes_of_a_ring(void **context)
{
    (void)context;
    for (int world = 2; world <= 4; world += 2) {
        double sent[2];
        for (int i = 0; i < 2; i++) {
            char options[120];
            snprintf(options, sizeof options,
                     "--servers %d --server-placement rank --priority fifo --warmup 0 --steps %d", world,
                     2 + i);
            virtual_figures ps = measure_links("sync", world, options);
            sent[i] = all_bytes_sent(&ps);
            virtual_figures_free(&ps);
        }
        virtual_figures ring = measure_links("flat", world, "--warmup 2 --steps 1");
        check("bytes sent by rank 0 in a step", sent[1] - sent[0], bytes_sent(&ring), 0.001);
        virtual_figures_free(&ring);
    }
}

/* ---- figures that must be refused -------------------------------------------------------------- */

static void more_gpus_than_the_topology_has_are_refused(void **context)
{
    (void)context;
    virtual_figures f = {0};
    virtual_workload w = workload("v100-pcie-32g", 9, "ddp", resnet);
    assert_int_equal(virtual_measure(&w, &f), STATUS_CONFIG);
    assert_string_equal(error_message(),
                        "profile v100-pcie-32g: expected 1 to 8 ranks (8 GPUs on each of 1 machine), got 9");
    error_clear();
    w = workload("nowhere", 2, "ddp", resnet);
    assert_int_equal(virtual_measure(&w, &f), STATUS_USAGE);
    error_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_ranks_of_one_machine_stand_for_all_to_the_last_bit),
        cmocka_unit_test(a_last_rank_that_updates_less_makes_little_difference),
        cmocka_unit_test(the_same_job_takes_the_same_time_and_jitter_another),
        cmocka_unit_test(a_single_servers_time_grows_with_the_workers),
        cmocka_unit_test(a_sharded_server_moves_the_bytes_of_a_ring),
        cmocka_unit_test(more_gpus_than_the_topology_has_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
