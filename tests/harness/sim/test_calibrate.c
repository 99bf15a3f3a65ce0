/* Tests that measurements become a profile that can be loaded. In the profile each measured constant has its
 * measured value, and is marked as calibrated. */
#include "common/sim/profile.h"
#include "harness/sim/calibrate_impl.h"
#include "tests/support/check.h"

#include <stdlib.h>
#include <unistd.h>

static void a_calibration_is_a_profile_whose_constants_say_so(void **context)
{
    (void)context;
    calibration c = {.threads = 3,
                     .cores = 8,
                     .processors = 6,
                     .peak_tflops = 0.5,
                     .memory_gbs = 40,
                     .launch_us = 0.25,
                     .weight_gbs = 33,
                     .contention = {1.125, 1.25, 1.5},
                     .host_memory_gbs = 30,
                     .pack_gbs = 12,
                     .host_sum_gbs = 17,
                     .copy_gbs = 7,
                     .message_us = 12,
                     .message_copy_gbs = 9,
                     .wake_us = 3,
                     .allreduce_us = 2,
                     .allreduce_gbs = 6};
    static const struct {
        sim_constant constant;
        int index;
        double expected;
    } cases[] = {{SIM_PEAK_FP32, 0, 0.5},
                 {SIM_MEMORY_BANDWIDTH, 0, 40},
                 {SIM_LAUNCH_TIME, 0, 0.25},
                 {SIM_CONTENTION, 0, 1.125},
                 {SIM_CONTENTION, 1, 1.25},
                 {SIM_CONTENTION, 2, 1.5},
                 {SIM_KAPPA, 0, 1},
                 {SIM_HOST_CORES, 0, 8},
                 {SIM_RANK_THREADS, 0, 3},
                 {SIM_RANK_PROCESSORS, 0, 6},
                 {SIM_HOST_MEMORY, 0, 30},
                 {SIM_HOST_PACK, 0, 12},
                 {SIM_HOST_SUM, 0, 17},
                 {SIM_HOST_COPY, 0, 7},
                 {SIM_PCIE, 0, 6},
                 {SIM_NCCL_BASE_RING, 2, 2},
                 {SIM_MESSAGE_TIME, 0, 12},
                 {SIM_MESSAGE_COPY, 0, 9},
                 {SIM_WAKE_TIME, 0, 3},
                 {SIM_GEMM_FORWARD, 0, 0.25},
                 {SIM_GEMM_FORWARD, 1, 0.125},
                 {SIM_WEIGHT_BANDWIDTH, 0, 33}};
    char folder[] = "calibrated-XXXXXX", path[64];
    sim_profile *p;
    double *products = c.efficiency[SIM_GEMM_FORWARD - SIM_CONVOLUTION_FORWARD];
    products[0] = 0.25;
    products[1] = 0.125;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/mine.json", folder);
    must(calibration_write(&c, path));
    must(sim_profile_load(path, &p));
    assert_string_equal(p->name, "mine");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *name = sim_constant_table[cases[i].constant].name;
        double found = sim_profile_at(p, cases[i].constant, cases[i].index);
        if (found != cases[i].expected) fail_msg("%s: found %g, expected %g", name, found, cases[i].expected);
        const char *tag = p->provenance[cases[i].constant].tag;
        if (strcmp(tag, "calibrated on this machine") != 0) fail_msg("%s: found tag '%s'", name, tag);
    }
    /* The constant was not measured, so it has the value of the base profile. */
    assert_string_equal(p->provenance[SIM_ATTENTION].tag, "assumed");
    sim_profile_free(&p);
    unlink(path);
    rmdir(folder);
}

/* An H200 took these times. An earlier version concluded from the head with two outputs that products reach
 * only 0.15 % of the memory's bandwidth. */
static void a_product_shorter_than_a_kernels_overhead_says_nothing_of_the_memory(void **context)
{
    (void)context;
    const struct {
        linear_attributes shape;
        double took_us;
    } products[] = {{{.m = 2048, .in = 1024, .out = 1024}, 120}, {{.m = 16, .in = 1024, .out = 2}, 17.7}};
    const calibration_rates rates = {.peak_tflops = 51, .memory_gbs = 4000, .launch_us = 2, .least_us = 2};
    calibration_sums sums = {0};
    for (int i = 0; i < 2; i++) {
        op_desc op = {.kind = OP_linear_forward, .type = DTYPE_F32, .u.linear = products[i].shape};
        calibration_add_op(&op, products[i].took_us * 1e-6, &rates, &sums);
    }
    int gemm = SIM_GEMM_FORWARD - SIM_CONVOLUTION_FORWARD;
    assert_true(sums.roofline_s[gemm][0] > 0 && sums.measured_s[gemm][0] > 0);
    assert_true(sums.measured_s[gemm][1] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_shorter_than_a_kernels_overhead_says_nothing_of_the_memory),
        cmocka_unit_test(a_calibration_is_a_profile_whose_constants_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
