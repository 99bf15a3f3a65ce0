/* Compares prices with figures worked out by hand, and the price of a whole model with published times. */
#include "common/nn/program.h"
#include "common/sim/price.h"
#include "models/models.h"
#include "tests/support/check.h"

#include <math.h>

static sim_profile *load(const char *name)
{
    sim_profile *p;
    must(sim_profile_load(name, &p));
    return p;
}

static void set(sim_profile *p, sim_constant c, double first, double second)
{
    p->values[c][0] = first;
    if (sim_constant_table[c].count > 1) p->values[c][1] = second;
}

static void an_operation_takes_the_longer_of_arithmetic_and_traffic(void **context)
{
    (void)context;
    sim_profile *p = load("v100-pcie-32g");
    set(p, SIM_PEAK_FP32, 10, 0);          /* TFLOP/s */
    set(p, SIM_MEMORY_BANDWIDTH, 1000, 0); /* GB/s */
    set(p, SIM_GEMM_FORWARD, 0.5, 1);
    set(p, SIM_GEMM_BACKWARD, 1, 0.5);
    set(p, SIM_ELEMENTWISE, 1, 0.8);
    /* 2 * 1000^3 flop: forward 400 us at 5 TFLOP/s, backward 200 us at 10 */
    op_desc product = {
        .kind = OP_linear_forward, .type = DTYPE_F32, .u.linear = {.m = 1000, .in = 1000, .out = 1000}};
    assert_true(fabs(sim_price_op(p, SIM_FP32, &product) - 400e6) < 1);
    product.kind = OP_linear_backward_data;
    assert_true(fabs(sim_price_op(p, SIM_FP32, &product) - 200e6) < 1);
    /* One row: 4 MB of weights at 500 GB/s take 8 us, and the row adds a little */
    op_desc row = {
        .kind = OP_linear_backward_data, .type = DTYPE_F32, .u.linear = {.m = 1, .in = 1000, .out = 1000}};
    assert_true(fabs(sim_price_op(p, SIM_FP32, &row) - 8.016e6) < 1);
    /* 3 * 4e6 bytes at 800 GB/s */
    op_desc sum = {.kind = OP_add, .type = DTYPE_F32, .u.elementwise = {.count = 1000000}};
    assert_true(fabs(sim_price_op(p, SIM_FP32, &sum) - 15e6) < 1);
    sim_profile_free(&p);
}

static void products_alone_run_in_tf32(void **context)
{
    (void)context;
    sim_profile *p = load("dgx-a100-40g");
    op_desc product = {
        .kind = OP_linear_forward, .type = DTYPE_F32, .u.linear = {.m = 4096, .in = 4096, .out = 4096}};
    op_desc norm = {
        .kind = OP_batchnorm_forward, .type = DTYPE_F32, .u.batchnorm = {.n = 64, .h = 56, .w = 56, .c = 64}};
    double ratio = sim_price_op(p, SIM_FP32, &product) / sim_price_op(p, SIM_TF32, &product);
    assert_true(fabs(ratio - 156 / 19.5) < 1e-9);
    assert_true(sim_price_op(p, SIM_FP32, &norm) == sim_price_op(p, SIM_TF32, &norm));
    sim_profile_free(&p);
}

static void hosts_have_prices_too(void **context)
{
    (void)context;
    sim_profile *p = load("v100-pcie-32g");
    double each = sim_profile_get(p, SIM_HOST_SUM) * 1e6; /* bytes per millisecond */
    sim_time one = sim_price_sum(p, each, 1), three = sim_price_sum(p, 3 * each, 3),
             most = sim_price_sum(p, 76.8e6, 64);
    sim_time message = sim_price_message(p, 5e6);
    assert_in_range(one, SIM_MS, SIM_MS + 1);
    assert_in_range(three, SIM_MS, SIM_MS + 1);
    assert_in_range(most, SIM_MS, SIM_MS + 1); /* The memory's 76.8 GB/s are the limit. */
    assert_in_range(message, 15 * SIM_US + SIM_MS, 15 * SIM_US + SIM_MS + 1);
    sim_profile_free(&p);
}

/* Each of four workers makes another batch, so a batch is ready after a quarter of the time that one worker
 * needs. Each process has only one pinning thread. */
static void loaders_have_prices(void **context)
{
    (void)context;
    sim_profile *p = load("v100-pcie-32g");
    p->values[SIM_LOADER_DECODE][0] = 100;
    p->values[SIM_LOADER_COLLATE][0] = 2;
    p->values[SIM_LOADER_PIN][0] = 4;
    sim_loader_price four = sim_price_loader(p, 400, 16e6, 4, 0), one = sim_price_loader(p, 400, 16e6, 1, 0);
    assert_in_range(four.decode, 1000 * SIM_MS, 1000 * SIM_MS + 1);
    assert_in_range(four.collate, 2 * SIM_MS, 2 * SIM_MS + 1);
    assert_in_range(four.pin, 4 * SIM_MS, 4 * SIM_MS + 1);
    assert_in_range(four.workers_time, 1002 * SIM_MS, 1002 * SIM_MS + 2);
    assert_in_range(one.workers_time, 4008 * SIM_MS, 4008 * SIM_MS + 2);
    assert_true(one.pin == four.pin);
    sim_loader_price known = sim_price_loader(p, 400, 16e6, 4, 50);
    assert_true(known.workers_time == 2000 * SIM_MS && known.pin == four.pin);
    sim_profile_free(&p);
}

/* Published times on a V100-PCIE with batch 128: forward 119 ms, backward 252 ms. No constant is calibrated
 * here, so only the magnitude must be right. The arithmetic must be exact. */
static void resnet50_takes_about_what_was_published(void **context)
{
    (void)context;
    model_options options = {.name = "resnet50"};
    nn_model *model;
    nn_program *program;
    must(model_build(&options, &model));
    must(nn_program_compile(model, &(nn_program_config){.batch = 128, .type = DTYPE_F32, .world = 1},
                            &program));
    sim_profile *p = load("v100-pcie-32g");
    double forward = 0, backward = 0, products = 0;
    for (int i = 0; i < program->op_count; i++) {
        const op_desc *op = &program->ops[i].desc;
        double price = sim_price_op(p, SIM_FP32, op) / (double)SIM_MS;
        *(i < program->loss_end ? &forward : &backward) += price;
        op_class c = op_class_of(op->kind);
        if (i < program->forward_end && (c == OP_CLASS_CONVOLUTION || c == OP_CLASS_GEMM))
            products += op_cost_of(op).flops;
    }
    double exact = 2.0 * 4089184256.0 * 128 + 128 * 1000; /* plus the additions of the linear layer's bias */
    if (products != exact) fail_msg("products: found %.0f flop, expected %.0f", products, exact);
    if (forward < 100 || forward > 140) fail_msg("forward: found %.1f ms, expected 100 to 140", forward);
    if (backward < 200 || backward > 300) fail_msg("backward: found %.1f ms, expected 200 to 300", backward);
    sim_profile_free(&p);
    nn_program_free(&program);
    nn_model_free(&model);
}

static void tag(sim_profile *p, sim_constant c, double value)
{
    p->values[c][0] = value;
    if (!p->provenance[c].tag) p->provenance[c].tag = "assumed";
}

static void operations_contend_by_class_where_the_profile_says_how(void **context)
{
    (void)context;
    static const struct {
        op_kind kind;
        double expected;
    } cases[] = {{OP_conv2d_forward, 1.5},
                 {OP_conv2d_backward_data, 1.5},
                 {OP_linear_forward, 1.25},
                 {OP_attention_forward, 1.25},
                 {OP_add, 1.75},
                 {OP_sgd, 1.75},
                 {OP_batchnorm_forward, 1.75}};
    sim_profile *p = load("cpu");
    set(p, SIM_KAPPA, 1.125, 0);
    assert_true(sim_price_contention(p, &(op_desc){.kind = OP_conv2d_forward}) == 1.125);
    tag(p, SIM_CONTENTION, 1.5);
    p->values[SIM_CONTENTION][1] = 1.25;
    p->values[SIM_CONTENTION][2] = 1.75;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double found = sim_price_contention(p, &(op_desc){.kind = cases[i].kind});
        if (found != cases[i].expected)
            fail_msg("%s: found %g, expected %g", op_name(cases[i].kind), found, cases[i].expected);
    }
    sim_profile_free(&p);
}

static void a_recorded_segment_of_one_rank_contends_by_its_arithmetic_while_it_computes(void **context)
{
    (void)context;
    static const struct {
        recorded_attributes of;
        double expected;
    } cases[] = {{{.kernel_ns = 100, .arithmetic = 1}, 1.25},
                 {{.kernel_ns = 100, .arithmetic = 0.5F}, 1.5},
                 {{.kernel_ns = 100, .idle_ns = 300, .ranks = 1}, 1.1875},
                 {{.idle_ns = 300}, 1},
                 {{.kernel_ns = 100, .ranks = 2}, 1},
                 {{0}, 1}};
    sim_profile *p = load("cpu");
    tag(p, SIM_CONTENTION, 1.5);
    p->values[SIM_CONTENTION][1] = 1.25;
    p->values[SIM_CONTENTION][2] = 1.75;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double found = sim_price_contention(p, &(op_desc){.kind = OP_recorded, .u.recorded = cases[i].of});
        if (found != cases[i].expected) fail_msg("%zu: found %g, expected %g", i, found, cases[i].expected);
    }
    sim_profile_free(&p);
}

/* One rule holds for all GPUs. A collective's share of the multiprocessors is its number of blocks divided by
 * the GPU's SMs. The share of the memory is the memory traffic per byte sent, times the rate, divided by the
 * memory bandwidth. */
static void collectives_take_multiprocessors_and_memory_of_a_gpu(void **context)
{
    (void)context;
    static const struct {
        const char *profile;
        int channels;
        double bus; /* GB/s */
        double sms, memory;
    } cases[] = {{"v100-pcie-32g", 1, 9, 2.0 / 80, 27.0 / 897},
                 {"dgx1-v100", 6, 120, 12.0 / 80, 360.0 / 900},
                 {"dgx1-p100", 4, 72, 8.0 / 56, 216.0 / 732},
                 {"dgx-a100-80g", 12, 240, 24.0 / 108, 720.0 / 2039},
                 {"dgx-h100", 18, 370, 32.0 / 132, 1110.0 / 3350},
                 {"titan-rtx-x2", 2, 40, 4.0 / 72, 120.0 / 672},
                 {"cpu", 1, 10, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sim_profile *p = load(cases[i].profile);
        sim_load found = sim_price_collective(p, cases[i].channels, cases[i].bus * SIM_GB_PER_S);
        if (fabs(found.sms - cases[i].sms) > 1e-12 || fabs(found.memory - cases[i].memory) > 1e-12)
            fail_msg("%s: found %g of the SMs, %g of the memory", cases[i].profile, found.sms, found.memory);
        sim_profile_free(&p);
    }
    sim_load load = {.sms = 0.25, .memory = 0.5};
    static const struct {
        sim_parts parts;
        double rate;
    } rates[] = {{{1, 0.1F}, 0.75}, {{1, 1}, 0.5}, {{0.5F, 1}, 0.5},
                 {{1, 0.5F}, 0.75}, {{0, 1}, 0.5}, {{0, 0}, 1}};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++)
        assert_true(fabs(sim_price_rate(load, rates[i].parts) - rates[i].rate) < 1e-6);
}

/* A collective takes the share of the profile from all kernels, however few SMs and however little memory
 * bandwidth it uses. A kernel that contends more for SMs or memory loses more. A copy engine takes no share.
 */
static void a_collective_takes_its_share_from_every_kernel(void **context)
{
    (void)context;
    sim_profile *gpus = load("dgx1-v100"), *processor = load("cpu");
    for (int channels = 1; channels <= 6; channels += 5) {
        set(gpus, SIM_COLLECTIVE_SHARE, 0.125 * channels, 0);
        assert_true(sim_price_collective(gpus, channels, SIM_GB_PER_S).share == 0.125 * channels);
    }
    assert_true(sim_price_copy_engine(gpus, SIM_GB_PER_S).share == 0);
    assert_true(sim_price_collective(processor, 1, SIM_GB_PER_S).share == 0);
    tag(processor, SIM_COLLECTIVE_SHARE, 0.25);
    assert_true(sim_price_collective(processor, 1, SIM_GB_PER_S).share == 0.25);
    static const struct {
        sim_load load;
        sim_parts parts;
        double rate;
    } cases[] = {
        {{0, 0, 0.5}, {1, 1}, 0.5},        {{0, 0, 0.5}, {0, 0}, 0.5},
        {{0.25, 0.25, 0.5}, {1, 1}, 0.5},  {{0.75, 0.25, 0.5}, {1, 1}, 0.25},
        {{0.25, 0.75, 0.5}, {0, 1}, 0.25}, {{0.25, 0.5, 0}, {1, 1}, 0.5},
        {{0.75, 0.75, 0.5}, {0, 0}, 0.5},  {{0, 0, 1.25}, {1, 1}, 0}, /* Two collectives run. */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double found = sim_price_rate(cases[i].load, cases[i].parts);
        if (found != cases[i].rate) fail_msg("case %zu: found %g, expected %g", i, found, cases[i].rate);
    }
    sim_profile_free(&gpus);
    sim_profile_free(&processor);
}

static void agents_take_from_compute_what_cores_are_missing(void **context)
{
    (void)context;
    static const struct {
        int cores, threads, ranks;
        double share, crowding;
    } cases[] = {{2, 1, 1, 0, 1}, {2, 1, 2, 1, 1}, {3, 1, 2, 0.5, 1}, {4, 1, 2, 0, 1},      {2, 2, 1, 1, 1},
                 {2, 2, 2, 1, 2}, {8, 3, 2, 0, 1}, {7, 3, 2, 0.5, 1}, {6, 2, 4, 1, 8.0 / 6}};
    sim_profile *p = load("cpu");
    double crowding = 0;
    assert_true(sim_price_core_share(p, 100, &crowding) == 0 && crowding == 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tag(p, SIM_HOST_CORES, cases[i].cores);
        tag(p, SIM_RANK_THREADS, cases[i].threads);
        double share = sim_price_core_share(p, cases[i].ranks, &crowding);
        if (share != cases[i].share || crowding != cases[i].crowding)
            fail_msg("case %zu: found %g of agents, %g of compute, expected %g, %g", i, share, crowding,
                     cases[i].share, cases[i].crowding);
    }
    sim_profile_free(&p);
}

static void bound_ranks_keep_their_agents_and_their_neighbors(void **context)
{
    (void)context;
    static const struct {
        int cores, threads, processors, ranks;
        double share, crowding;
    } cases[] = {{8, 1, 1, 2, 1, 1}, {8, 1, 2, 2, 0, 1}, {2, 1, 1, 2, 1, 1},
                 {2, 1, 1, 3, 1, 2}, {8, 2, 4, 2, 0, 1}, {8, 2, 4, 5, 1, 2}};
    sim_profile *p = load("cpu");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double crowding = 0;
        tag(p, SIM_HOST_CORES, cases[i].cores);
        tag(p, SIM_RANK_THREADS, cases[i].threads);
        tag(p, SIM_RANK_PROCESSORS, cases[i].processors);
        double share = sim_price_core_share(p, cases[i].ranks, &crowding);
        if (share != cases[i].share || crowding != cases[i].crowding)
            fail_msg("case %zu: found %g of agents, %g of compute, expected %g, %g", i, share, crowding,
                     cases[i].share, cases[i].crowding);
    }
    sim_profile_free(&p);
}

static void copies_between_ranks_and_into_buckets_have_rates_of_their_own(void **context)
{
    (void)context;
    sim_profile *p = load("cpu");
    op_desc pack = {.kind = OP_divide, .type = DTYPE_F32, .u.elementwise = {.count = 1000000}};
    set(p, SIM_MEMORY_BANDWIDTH, 10, 0);
    set(p, SIM_ELEMENTWISE, 1, 0.8);
    assert_true(fabs(sim_price_op(p, SIM_FP32, &pack) - 1e9) < 1); /* 8 MB at 8 GB/s */
    assert_int_equal(sim_price_copy(p, 8e6), 0);
    tag(p, SIM_HOST_PACK, 4);
    tag(p, SIM_HOST_COPY, 2);
    assert_true(fabs(sim_price_op(p, SIM_FP32, &pack) - 2e9) < 1);
    assert_in_range(sim_price_copy(p, 8e6), 4 * SIM_MS, 4 * SIM_MS + 1);
    sim_profile_free(&p);
}

static void convolutions_of_3x3_have_an_efficiency_of_their_own_where_a_profile_says_so(void **context)
{
    (void)context;
    sim_profile *p = load("cpu");
    op_desc three = {.kind = OP_conv2d_forward,
                     .type = DTYPE_F32,
                     .u.conv2d = {.n = 8,
                                  .h = 64,
                                  .w = 64,
                                  .c = 64,
                                  .k = 64,
                                  .r = 3,
                                  .s = 3,
                                  .stride = 1,
                                  .pad_h = 1,
                                  .pad_w = 1,
                                  .p = 64,
                                  .q = 64}};
    op_desc strided = three, wide = three, backward = three;
    strided.u.conv2d.stride = 2;
    strided.u.conv2d.p = strided.u.conv2d.q = 32;
    wide.u.conv2d.s = 5;
    backward.kind = OP_conv2d_backward_weights;
    op_desc *all[] = {&three, &backward, &strided, &wide};
    double before[4];
    set(p, SIM_CONVOLUTION_FORWARD, 0.5, 0.5);
    set(p, SIM_CONVOLUTION_BACKWARD, 0.5, 0.5);
    for (int i = 0; i < 4; i++) before[i] = sim_price_op(p, SIM_FP32, all[i]);
    tag(p, SIM_CONVOLUTION_3X3_FORWARD, 1);
    set(p, SIM_CONVOLUTION_3X3_FORWARD, 1, 1);
    tag(p, SIM_CONVOLUTION_3X3_BACKWARD, 2);
    set(p, SIM_CONVOLUTION_3X3_BACKWARD, 2, 2);
    static const double faster[] = {2, 4, 1, 1};
    for (int i = 0; i < 4; i++)
        assert_true(fabs(before[i] / sim_price_op(p, SIM_FP32, all[i]) - faster[i]) < 1e-9);
    sim_profile_free(&p);
}

static void weights_of_convolutions_but_3x3_take_time_besides_where_a_profile_says_so(void **context)
{
    (void)context;
    sim_profile *p = load("cpu");
    op_desc one = {
        .kind = OP_conv2d_forward,
        .type = DTYPE_F32,
        .u.conv2d = {
            .n = 4, .h = 8, .w = 8, .c = 256, .k = 512, .r = 1, .s = 1, .stride = 1, .p = 8, .q = 8}};
    op_desc three = one, product = {.kind = OP_linear_forward,
                                    .type = DTYPE_F32,
                                    .u.linear = {.m = 64, .in = 256, .out = 512}};
    three.u.conv2d.r = three.u.conv2d.s = 3;
    three.u.conv2d.pad_h = three.u.conv2d.pad_w = 1;
    op_desc *all[] = {&one, &three, &product};
    double before[3];
    for (int i = 0; i < 3; i++) before[i] = sim_price_op(p, SIM_FP32, all[i]);
    tag(p, SIM_WEIGHT_BANDWIDTH, 20);
    set(p, SIM_WEIGHT_BANDWIDTH, 20, 20);
    double bytes = 4.0 * 256 * 512, expected[] = {bytes / 20e9 * 1e12, 0, 0};
    for (int i = 0; i < 3; i++)
        assert_true(fabs(sim_price_op(p, SIM_FP32, all[i]) - before[i] - expected[i]) < 1e-3);
    sim_parts parts = sim_price_parts(p, SIM_FP32, &one);
    /* For the rest of its time the operation needs neither arithmetic nor memory. */
    assert_true(parts.arithmetic < 1 && parts.traffic < 1);
    sim_profile_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_operation_takes_the_longer_of_arithmetic_and_traffic),
        cmocka_unit_test(products_alone_run_in_tf32),
        cmocka_unit_test(hosts_have_prices_too),
        cmocka_unit_test(loaders_have_prices),
        cmocka_unit_test(operations_contend_by_class_where_the_profile_says_how),
        cmocka_unit_test(a_recorded_segment_of_one_rank_contends_by_its_arithmetic_while_it_computes),
        cmocka_unit_test(collectives_take_multiprocessors_and_memory_of_a_gpu),
        cmocka_unit_test(a_collective_takes_its_share_from_every_kernel),
        cmocka_unit_test(agents_take_from_compute_what_cores_are_missing),
        cmocka_unit_test(bound_ranks_keep_their_agents_and_their_neighbors),
        cmocka_unit_test(copies_between_ranks_and_into_buckets_have_rates_of_their_own),
        cmocka_unit_test(convolutions_of_3x3_have_an_efficiency_of_their_own_where_a_profile_says_so),
        cmocka_unit_test(weights_of_convolutions_but_3x3_take_time_besides_where_a_profile_says_so),
        cmocka_unit_test(resnet50_takes_about_what_was_published),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
