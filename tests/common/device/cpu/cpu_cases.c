#include "tests/common/device/cpu/cpu_cases.h"

#include "tests/common/device/op_families.h"

static const case_options plain = {0};

static void build_activation(op_case *c)
{
    case_activation(c, (elementwise_attributes){70001, ACTIVATION_GELU}, plain);
}

static void build_add(op_case *c)
{
    case_add(c, (elementwise_attributes){.count = 70001}, plain);
}

static void build_maxpool(op_case *c)
{
    case_maxpool(c,
                 (pool_attributes){.n = 5, .h = 33, .w = 31, .c = 24, .r = 3, .s = 3, .stride = 2, .pad = 1});
}

static void build_avgpool(op_case *c)
{
    case_avgpool(c, (pool_attributes){.n = 9, .h = 14, .w = 14, .c = 40, .r = 7, .s = 7, .stride = 1});
}

static void build_batchnorm_inference(op_case *c)
{
    case_batchnorm_inference(
        c, (batchnorm_attributes){
               .n = 9, .h = 17, .w = 13, .c = 33, .eps = 1e-5, .act = ACTIVATION_SILU, .residual = true});
}

static void build_embedding(op_case *c)
{
    case_embedding(c,
                   (embedding_attributes){.batch = 7,
                                          .sequence = 19,
                                          .hidden = 331,
                                          .vocabulary = 50,
                                          .positions = 23,
                                          .position_table = true,
                                          .type_table = true},
                   plain);
}

static void build_rows(op_case *c)
{
    case_rows(c, (rows_attributes){.rows = 211, .hidden = 97, .selected = 40}, plain);
}

static void build_sgd(op_case *c)
{
    case_sgd(c, (optimizer_attributes){.count = 90001, .momentum = 0.9, .nesterov = true},
             (case_update){0.1, 1e-4, 0.5, 3});
}

static void build_adam(op_case *c)
{
    case_adam(c, (optimizer_attributes){.count = 90001, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
              (case_update){0.1, 1e-4, 0.5, 3});
}

static void build_sum_squares(op_case *c)
{
    case_sum_squares(c, 90001);
}

static void build_divide(op_case *c)
{
    case_divide(c, 90001, 3);
}

static void build_direct_convolution(op_case *c)
{
    case_conv2d(c,
                (conv2d_attributes){.n = 4,
                                    .h = 14,
                                    .w = 14,
                                    .c = 32,
                                    .k = 48,
                                    .r = 3,
                                    .s = 3,
                                    .stride = 1,
                                    .pad_h = 1,
                                    .pad_w = 1,
                                    .bias = true},
                plain);
}

static void build_filtered_convolution(op_case *c)
{
    case_conv2d(
        c,
        (conv2d_attributes){
            .n = 9, .h = 17, .w = 14, .c = 160, .k = 64, .r = 3, .s = 3, .stride = 1, .pad_h = 1, .pad_w = 1},
        plain);
}

static void build_points_convolution(op_case *c)
{
    case_conv2d(
        c,
        (conv2d_attributes){
            .n = 16, .h = 4, .w = 4, .c = 64, .k = 96, .r = 3, .s = 3, .stride = 2, .pad_h = 1, .pad_w = 1},
        plain);
}

static void build_gemm_convolution(op_case *c)
{
    case_conv2d(c,
                (conv2d_attributes){.n = 4, .h = 15, .w = 15, .c = 64, .k = 128, .r = 1, .s = 1, .stride = 2},
                plain);
}

static void build_linear(op_case *c)
{
    case_linear(
        c, (linear_attributes){.m = 190, .in = 270, .out = 310, .bias = true, .act = ACTIVATION_GELU_TANH},
        plain);
}

static void build_batchnorm(op_case *c)
{
    case_batchnorm(c,
                   (batchnorm_attributes){.n = 9,
                                          .h = 17,
                                          .w = 13,
                                          .c = 33,
                                          .eps = 1e-5,
                                          .momentum = 0.1,
                                          .act = ACTIVATION_RELU,
                                          .residual = true,
                                          .dy2 = true},
                   plain);
}

static void build_layernorm(op_case *c)
{
    case_layernorm(c, (layernorm_attributes){.m = 120, .c = 333, .eps = 1e-5, .residual = true}, plain);
}

static void build_attention(op_case *c)
{
    case_attention(
        c, (attention_attributes){.batch = 2, .sequence = 150, .heads = 3, .width = 32, .causal = true});
}

/* Blocks of 64 rows. */
static void build_long_attention(op_case *c)
{
    case_attention(c, (attention_attributes){.batch = 1, .sequence = 530, .heads = 2, .width = 64});
}

static void build_cross_entropy(op_case *c)
{
    case_cross_entropy(c, (loss_attributes){.rows = 77, .classes = 1003, .gradient = true}, plain);
}

const cpu_case cpu_cases[CPU_CASES] = {
    {"activation", build_activation, true},
    {"addition", build_add, true},
    {"maximum pooling", build_maxpool, true},
    {"average pooling", build_avgpool, true},
    {"batchnorm inference", build_batchnorm_inference, true},
    {"embedding", build_embedding, true},
    {"gather and scatter", build_rows, true},
    {"sgd", build_sgd, true},
    {"adam", build_adam, true},
    {"sum of squares", build_sum_squares, true},
    {"division", build_divide, true},
    {"direct convolution", build_direct_convolution, false},
    {"convolution by Winograd's filtering", build_filtered_convolution, true},
    {"convolution by points", build_points_convolution, false},
    {"convolution by a GEMM", build_gemm_convolution, false},
    {"linear", build_linear, false},
    {"batchnorm", build_batchnorm, false},
    {"layernorm", build_layernorm, false},
    {"attention", build_attention, false},
    {"attention to long sequences", build_long_attention, false},
    {"cross entropy", build_cross_entropy, false},
};
