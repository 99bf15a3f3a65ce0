/* Compares op_cost_of() with figures worked out by hand. */
#include "common/ops/op.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

typedef struct repeated_convolution {
    int64_t size, c, k, r, stride, pad, times; /* square images and kernels */
} repeated_convolution;

/* ResNet-50 v1.5 at 224x224 (He et al., "Deep Residual Learning for Image Recognition", 2016, table 1; v1.5
 * has the stride in the 3x3 convolution). */
static const repeated_convolution resnet50[] = {
    {224, 3, 64, 7, 2, 3, 1},
    /* 56x56: three blocks 64-64-256; the first has a projection */
    {56, 64, 64, 1, 1, 0, 1},
    {56, 256, 64, 1, 1, 0, 2},
    {56, 64, 64, 3, 1, 1, 3},
    {56, 64, 256, 1, 1, 0, 3},
    {56, 64, 256, 1, 1, 0, 1},
    /* 28x28: four blocks 128-128-512 */
    {56, 256, 128, 1, 1, 0, 1},
    {56, 128, 128, 3, 2, 1, 1},
    {56, 256, 512, 1, 2, 0, 1},
    {28, 512, 128, 1, 1, 0, 3},
    {28, 128, 128, 3, 1, 1, 3},
    {28, 128, 512, 1, 1, 0, 4},
    /* 14x14: six blocks 256-256-1024 */
    {28, 512, 256, 1, 1, 0, 1},
    {28, 256, 256, 3, 2, 1, 1},
    {28, 512, 1024, 1, 2, 0, 1},
    {14, 1024, 256, 1, 1, 0, 5},
    {14, 256, 256, 3, 1, 1, 5},
    {14, 256, 1024, 1, 1, 0, 6},
    /* 7x7: three blocks 512-512-2048 */
    {14, 1024, 512, 1, 1, 0, 1},
    {14, 512, 512, 3, 2, 1, 1},
    {14, 1024, 2048, 1, 2, 0, 1},
    {7, 2048, 512, 1, 1, 0, 2},
    {7, 512, 512, 3, 1, 1, 2},
    {7, 512, 2048, 1, 1, 0, 3},
};
enum { RESNET50_ROWS = sizeof resnet50 / sizeof resnet50[0] };

static op_desc convolution_of(const repeated_convolution *row, op_kind kind, int64_t images)
{
    int64_t out = (row->size + 2 * row->pad - row->r) / row->stride + 1;
    return (op_desc){.kind = kind,
                     .type = DTYPE_F32,
                     .u.conv2d = {.n = images,
                                  .h = row->size,
                                  .w = row->size,
                                  .c = row->c,
                                  .k = row->k,
                                  .r = row->r,
                                  .s = row->r,
                                  .stride = row->stride,
                                  .pad_h = row->pad,
                                  .pad_w = row->pad,
                                  .p = out,
                                  .q = out}};
}

static void resnet50_takes_4089184256_multiply_adds_an_image(void **context)
{
    (void)context;
    op_desc classifier = {
        .kind = OP_linear_forward, .type = DTYPE_F32, .u.linear = {.m = 1, .in = 2048, .out = 1000}};
    double multiply_adds = op_cost_of(&classifier).flops / 2;
    int64_t layers = 1;
    for (int i = 0; i < RESNET50_ROWS; i++) {
        op_desc op = convolution_of(&resnet50[i], OP_conv2d_forward, 1);
        multiply_adds += op_cost_of(&op).flops / 2 * (double)resnet50[i].times;
        layers += resnet50[i].times;
    }
    assert_int_equal(layers, 54); /* 50 convolutions and four projections */
    assert_int_equal((int64_t)multiply_adds, INT64_C(4089184256));
}

static void all_directions_of_a_convolution_multiply_alike(void **context)
{
    (void)context;
    for (int i = 0; i < RESNET50_ROWS; i++) {
        op_desc forward = convolution_of(&resnet50[i], OP_conv2d_forward, 3);
        op_desc data = convolution_of(&resnet50[i], OP_conv2d_backward_data, 3);
        op_desc weights = convolution_of(&resnet50[i], OP_conv2d_backward_weights, 3);
        assert_true(op_cost_of(&forward).flops == op_cost_of(&data).flops);
        assert_true(op_cost_of(&forward).flops == op_cost_of(&weights).flops);
    }
}

typedef struct worked_cost {
    const char *what;
    op_desc op;
    double flops, bytes_read, bytes_written;
} worked_cost;

static const worked_cost worked[] = {
    {"the stem of ResNet-50 for 2 images: 2 * (2*112*112*64) * (7*7*3); x, w; y",
     {.kind = OP_conv2d_forward,
      .type = DTYPE_F32,
      .u.conv2d = {2, 224, 224, 3, 64, 7, 7, 2, 3, 3, 112, 112, false}},
     472055808,
     4 * (301056 + 9408),
     4 * 1605632},
    {"a linear layer 8x512 to 1000 with bias and ReLU: 2*8*512*1000 + 2*8000",
     {.kind = OP_linear_forward,
      .type = DTYPE_F32,
      .u.linear = {.m = 8, .in = 512, .out = 1000, .bias = true, .act = ACTIVATION_RELU}},
     8208000,
     4 * (4096 + 512000 + 1000),
     4 * 8000},
    {"its gradients of weights in float64, added to: also mask and bias sums; x, dy, y, dw, db; dy, dw, db",
     {.kind = OP_linear_backward_weights,
      .type = DTYPE_F64,
      .accumulate = true,
      .u.linear = {.m = 8, .in = 512, .out = 1000, .bias = true, .act = ACTIVATION_RELU}},
     8208000,
     8 * (4096 + 16000 + 513000),
     8 * (8000 + 513000)},
    {"a 1x7 kernel, 17x17, 128 to 192 channels, for 2 images: 2 * (2*17*17*192) * (7*128); x, w; y",
     {.kind = OP_conv2d_forward,
      .type = DTYPE_F32,
      .u.conv2d = {2, 17, 17, 128, 192, 1, 7, 1, 0, 3, 17, 17, false}},
     198868992,
     4 * (73984 + 172032),
     4 * 110976},
    {"5 pixels of 3 and 4 channels, one after the other",
     {.kind = OP_concat_forward, .type = DTYPE_F32, .u.concat = {5, {3, 4}}},
     0,
     4 * 35,
     4 * 35},
    {"attention of one head, 4 tokens, width 2, all pairs: 16 * (4*2 + 6); q, k, v; out, lse",
     {.kind = OP_attention_forward, .type = DTYPE_F32, .u.attention = {1, 4, 1, 2, false, 2}},
     224,
     4 * 24,
     4 * (8 + 4)},
    {"the same, causal: 10 pairs",
     {.kind = OP_attention_forward, .type = DTYPE_F32, .u.attention = {1, 4, 1, 2, true, 2}},
     140,
     4 * 24,
     4 * (8 + 4)},
    {"its gradients: 10 * (10*2 + 6) + 2*8; q, k, v, out, dout, lse; dq, dk, dv",
     {.kind = OP_attention_backward, .type = DTYPE_F32, .u.attention = {1, 4, 1, 2, true, 2}},
     276,
     4 * (5 * 8 + 4),
     4 * 24},
    {"embedding of 6 tokens, hidden 5, with positions 3 and types; y, sequence and one row; tokens are int32",
     {.kind = OP_embedding_forward, .type = DTYPE_F32, .u.embedding = {2, 3, 5, 100, 9, true, true}},
     60,
     4 * (30 + 15 + 5) + 24,
     4 * 30},
    {"its gradient clears all 100 rows, 9 positions and 2 types",
     {.kind = OP_embedding_backward, .type = DTYPE_F32, .u.embedding = {2, 3, 5, 100, 9, true, true}},
     90,
     4 * 30 + 24,
     4 * (500 + 45 + 10)},
    {"4 of 11 rows of 7 by index, int32",
     {.kind = OP_gather_rows, .type = DTYPE_F32, .u.rows = {11, 7, 4, 0}},
     0,
     4 * 28 + 16,
     4 * 28},
    {"maximum over 3x3 with a byte of index an output",
     {.kind = OP_maxpool_forward, .type = DTYPE_F32, .u.pool = {1, 112, 112, 64, 3, 3, 2, 1, 56, 56}},
     1806336,
     4 * 802816,
     4 * 200704 + 200704},
    {"Adam: 17 operations per element; parameter, gradient and two moments; all but the gradient",
     {.kind = OP_adam, .type = DTYPE_F32, .u.optimizer = {.count = 1000}},
     17000,
     16000,
     12000},
    {"and writes the parameter once more as bfloat16",
     {.kind = OP_adam, .type = DTYPE_F32, .u.optimizer = {.count = 1000, .bf16 = true}},
     17000,
     16000,
     14000},
    {"the same of SGD with momentum",
     {.kind = OP_sgd, .type = DTYPE_F32, .u.optimizer = {.count = 1000, .momentum = 0.9, .bf16 = true}},
     8000,
     12000,
     10000},
    {"a copy that rounds: four bytes read, two written",
     {.kind = OP_divide, .type = DTYPE_F32, .bf16 = true, .u.elementwise = {.count = 1000}},
     1000,
     4000,
     2000},
    {"filling reads nothing", {.kind = OP_fill, .type = DTYPE_F32, .u.elementwise = {.count = 10}}, 0, 0, 40},
};

static void costs_are_those_worked_out_by_hand(void **context)
{
    (void)context;
    for (size_t i = 0; i < sizeof worked / sizeof worked[0]; i++) {
        op_cost found = op_cost_of(&worked[i].op);
        if (found.flops != worked[i].flops || found.bytes_read != worked[i].bytes_read ||
            found.bytes_written != worked[i].bytes_written)
            fail_msg("%s: found %.0f flops, %.0f read, %.0f written; by hand %.0f, %.0f, %.0f",
                     worked[i].what, found.flops, found.bytes_read, found.bytes_written, worked[i].flops,
                     worked[i].bytes_read, worked[i].bytes_written);
    }
}

static void every_operation_has_a_name(void **context)
{
    (void)context;
    for (int kind = 0; kind < OP_COUNT; kind++) assert_true(strlen(op_name((op_kind)kind)) > 0);
    assert_string_equal(op_name(OP_maxpool_backward), "maxpool_backward");
    assert_int_equal(op_class_of(OP_maxpool_backward), OP_CLASS_POOLING);
}

/* Computes the bytes of three operations, of which some elements are bfloat16 and others float32: a
 * convolution of 2x4x4x8 to 16 channels (x 256 elements, w 128, b 16, y 512), a linear layer of 3 rows from 8
 * to 16 (x 24, w 128, y 48), and BatchNorm over 2x4x4x8 (x 256, c 8). */
static void bf16_activations_and_weights_are_of_two_bytes(void **state)
{
    (void)state;
    const conv2d_attributes conv = {
        .n = 2, .h = 4, .w = 4, .c = 8, .k = 16, .r = 1, .s = 1, .stride = 1, .p = 4, .q = 4, .bias = true};
    const linear_attributes linear = {.m = 3, .in = 8, .out = 16};
    const batchnorm_attributes norm = {.n = 2, .h = 4, .w = 4, .c = 8, .act = ACTIVATION_RELU};
    const struct {
        op_desc op;
        double bf16_read, f32_read, bf16_written, f32_written;
    } rows[] = {
        {{.kind = OP_conv2d_forward, .u.conv2d = conv}, 256 + 128 + 16, 0, 512, 0},
        {{.kind = OP_conv2d_forward, .x_f32 = true, .u.conv2d = conv}, 128 + 16, 256, 512, 0},
        {{.kind = OP_conv2d_backward_data, .u.conv2d = conv}, 512 + 128, 0, 256, 0},
        {{.kind = OP_conv2d_backward_weights, .u.conv2d = conv}, 256 + 512, 0, 0, 128 + 16},
        {{.kind = OP_linear_backward_weights, .accumulate = true, .u.linear = linear}, 24 + 48, 128, 0, 128},
        {{.kind = OP_batchnorm_forward, .u.batchnorm = norm}, 256, 4 * 8, 256, 4 * 8},
        {{.kind = OP_batchnorm_backward, .u.batchnorm = norm}, 3 * 256, 4 * 8, 256, 2 * 8},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        op_desc op = rows[i].op;
        op.type = DTYPE_F32;
        op.bf16 = true;
        op_cost cost = op_cost_of(&op);
        double read = 2 * rows[i].bf16_read + 4 * rows[i].f32_read;
        double written = 2 * rows[i].bf16_written + 4 * rows[i].f32_written;
        if (cost.bytes_read != read || cost.bytes_written != written)
            fail_msg("row %zu, %s: %g bytes read, %g written, expected are %g and %g", i, op_name(op.kind),
                     cost.bytes_read, cost.bytes_written, read, written);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resnet50_takes_4089184256_multiply_adds_an_image),
        cmocka_unit_test(all_directions_of_a_convolution_multiply_alike),
        cmocka_unit_test(costs_are_those_worked_out_by_hand),
        cmocka_unit_test(every_operation_has_a_name),
        cmocka_unit_test(bf16_activations_and_weights_are_of_two_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
