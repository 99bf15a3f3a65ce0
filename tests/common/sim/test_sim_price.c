/* Prices against figures worked out by hand, and of a whole model against what was published of it. */
#include "common/nn/program.h"
#include "common/sim/price.h"
#include "models/models.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void must(status rc)
{
    if (rc != STATUS_OK) fail_msg("%s", error_message());
}

static sim_profile *load(const char *name)
{
    sim_profile *p;
    must(sim_profile_load(name, &p));
    return p;
}

static void set(sim_profile *p, sim_constant c, double first, double second)
{
    p->values[sim_constant_offset[c]] = first;
    if (sim_constant_table[c].count > 1) p->values[sim_constant_offset[c] + 1] = second;
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
    /* 2 * 1000^3 flop at 5 TFLOP/s: 400 us; backward at 10: 200 us */
    op_desc product = {
        .kind = OP_linear_forward, .type = DTYPE_F32, .u.linear = {.m = 1000, .in = 1000, .out = 1000}};
    assert_true(fabs(sim_price_op(p, SIM_FP32, &product) - 400e6) < 1);
    product.kind = OP_linear_backward_data;
    assert_true(fabs(sim_price_op(p, SIM_FP32, &product) - 200e6) < 1);
    /* One row: 4 MB of weights at 500 GB/s: 8 us and a little for the rows */
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
    sim_time one = sim_price_sum(p, 8e6, 1), eight = sim_price_sum(p, 64e6, 0),
             most = sim_price_sum(p, 76.8e6, 64);
    sim_time message = sim_price_message(p, 5e6);
    assert_in_range(one, SIM_MS, SIM_MS + 1);   /* 8 GB/s a thread */
    assert_in_range(eight, SIM_MS, SIM_MS + 1); /* the profile's eight threads */
    assert_in_range(most, SIM_MS, SIM_MS + 1);  /* the memory's 76.8 GB/s */
    assert_in_range(message, 15 * SIM_US + SIM_MS, 15 * SIM_US + SIM_MS + 1);
    sim_profile_free(&p);
}

/* V100-PCIE, batch 128, published: forward 119 ms, backward 252. Nothing is calibrated here: the magnitude
 * must be right, and the arithmetic exact. */
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
    double exact = 2.0 * 4089184256.0 * 128 + 128 * 1000; /* and the linear layer's bias */
    if (products != exact) fail_msg("products: found %.0f flop, expected %.0f", products, exact);
    if (forward < 100 || forward > 140) fail_msg("forward: found %.1f ms, expected 100 to 140", forward);
    if (backward < 200 || backward > 300) fail_msg("backward: found %.1f ms, expected 200 to 300", backward);
    sim_profile_free(&p);
    nn_program_free(&program);
    nn_model_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_operation_takes_the_longer_of_arithmetic_and_traffic),
        cmocka_unit_test(products_alone_run_in_tf32),
        cmocka_unit_test(hosts_have_prices_too),
        cmocka_unit_test(resnet50_takes_about_what_was_published),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
