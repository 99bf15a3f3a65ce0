#include "tests/common/device/op_table.h"

#include "tests/common/device/op_families.h"

#include <assert.h>

#define COUNT(array) (int)(sizeof(array) / sizeof(array)[0])

static op_case *next(op_case *cases, int *count)
{
    assert(*count < OP_TABLE_CAPACITY);
    return &cases[(*count)++];
}

static const case_options plain = {0}, accumulated = {.accumulate = true},
                          micro_batch = {.micro_batch = true}, in_place = {.alias = ALIAS_IN_PLACE};

static void add_convolutions(op_case *cases, int *count)
{
    static const conv2d_attributes shapes[] = {
        /* n  h  w   c   k  r  s stride pad_h pad_w p q bias */
        {1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, false},   {2, 7, 5, 3, 5, 3, 3, 1, 1, 1, 0, 0, true},
        {1, 8, 8, 16, 32, 3, 3, 2, 1, 1, 0, 0, false}, {3, 5, 7, 17, 13, 1, 1, 1, 0, 0, 0, 0, false},
        {2, 9, 9, 4, 6, 7, 7, 2, 3, 3, 0, 0, false},   {1, 6, 6, 64, 48, 3, 3, 1, 1, 1, 0, 0, false},
        {2, 7, 7, 8, 24, 1, 1, 2, 0, 0, 0, 0, false},  {1, 5, 4, 3, 2, 5, 3, 2, 1, 1, 0, 0, true},
        {2, 3, 3, 5, 7, 3, 3, 1, 0, 0, 0, 0, true},    {5, 11, 13, 1, 19, 3, 3, 1, 1, 1, 0, 0, false},
        {1, 32, 32, 3, 16, 7, 7, 2, 3, 3, 0, 0, true}, {2, 12, 12, 32, 64, 3, 3, 1, 1, 1, 0, 0, false},
        {2, 7, 9, 96, 32, 3, 3, 1, 1, 1, 0, 0, true},  {2, 5, 9, 16, 32, 1, 7, 1, 0, 3, 0, 0, false},
        {1, 9, 17, 32, 48, 7, 1, 1, 3, 0, 0, 0, true}, {3, 4, 5, 7, 5, 1, 3, 2, 0, 1, 0, 0, true},
        {2, 8, 8, 32, 32, 3, 3, 1, 1, 0, 0, 0, false}, {5, 2, 2, 8, 16, 3, 1, 1, 1, 0, 0, 0, false},
    };
    for (int i = 0; i < COUNT(shapes); i++) case_conv2d(next(cases, count), shapes[i], plain);
    case_conv2d(next(cases, count), shapes[1], accumulated);
    case_conv2d(next(cases, count), shapes[1], micro_batch);
    case_conv2d(next(cases, count), shapes[3], accumulated);
    case_conv2d(next(cases, count), shapes[6], micro_batch);
    case_conv2d(next(cases, count), shapes[12], micro_batch);
    case_conv2d(next(cases, count), shapes[14], micro_batch);
}

static void add_linears(op_case *cases, int *count)
{
    static const linear_attributes shapes[] = {
        /* m in out bias act flat_c flat_h flat_w */
        {1, 1, 1, false, ACTIVATION_NONE, 0, 0, 0},       {7, 13, 11, true, ACTIVATION_RELU, 0, 0, 0},
        {32, 64, 10, true, ACTIVATION_NONE, 0, 0, 0},     {5, 17, 33, true, ACTIVATION_GELU, 0, 0, 0},
        {4, 19, 23, true, ACTIVATION_GELU_TANH, 0, 0, 0}, {3, 31, 8, false, ACTIVATION_SILU, 0, 0, 0},
        {3, 30, 7, true, ACTIVATION_NONE, 5, 2, 3},       {2, 48, 16, false, ACTIVATION_RELU, 3, 4, 4},
        {17, 128, 64, false, ACTIVATION_NONE, 0, 0, 0},   {1, 97, 101, true, ACTIVATION_NONE, 0, 0, 0},
        {64, 3, 2, false, ACTIVATION_GELU, 0, 0, 0},      {33, 200, 130, true, ACTIVATION_RELU, 0, 0, 0},
        {6, 40, 1030, true, ACTIVATION_RELU, 0, 0, 0},
    };
    for (int i = 0; i < COUNT(shapes); i++) case_linear(next(cases, count), shapes[i], plain);
    for (int i = 0; i < 7; i += 3) {
        case_linear(next(cases, count), shapes[i], accumulated);
        case_linear(next(cases, count), shapes[i], micro_batch);
    }
    case_linear(next(cases, count), shapes[1], (case_options){.rows = 5});
    case_linear(next(cases, count), shapes[2], (case_options){.rows = 1});
    case_linear(next(cases, count), shapes[3], (case_options){.rows = 3, .accumulate = true});
    case_linear(next(cases, count), shapes[12], (case_options){.rows = 5, .accumulate = true});
}

static void add_batchnorms(op_case *cases, int *count)
{
    static const batchnorm_attributes shapes[] = {
        /* n h w c eps momentum */
        {3, 2, 5, 7, 1e-5, 0.1, ACTIVATION_NONE, false, false, 1},
        {6, 1, 1, 1, 1e-5, 0.1, ACTIVATION_RELU, false, false, 1},
        {2, 4, 4, 64, 1e-3, 0.3, ACTIVATION_RELU, true, true, 1},
        {1, 5, 3, 33, 1e-5, 0.1, ACTIVATION_SILU, true, true, 1},
        {4, 7, 7, 19, 1e-5, 0.1, ACTIVATION_RELU, true, false, 1},
    };
    static const activation acts[] = {ACTIVATION_NONE, ACTIVATION_RELU, ACTIVATION_SILU, ACTIVATION_GELU};
    for (int i = 0; i < COUNT(shapes); i++) case_batchnorm(next(cases, count), shapes[i], plain);
    for (int i = 1; i < COUNT(acts) * 4; i++) {
        batchnorm_attributes a = shapes[0];
        a.act = acts[i / 4];
        a.residual = i & 1;
        a.dy2 = i & 2;
        case_batchnorm(next(cases, count), a, plain);
        case_syncbatchnorm(next(cases, count), a, plain);
        bool has_g = a.residual && (a.act != ACTIVATION_NONE || a.dy2);
        if (has_g) case_batchnorm(next(cases, count), a, (case_options){.alias = ALIAS_RESIDUAL_IN_DY});
        if (!a.residual || has_g) case_batchnorm(next(cases, count), a, in_place);
    }
    case_batchnorm(next(cases, count), shapes[0], accumulated);
    case_batchnorm(next(cases, count), shapes[2], micro_batch);
    case_batchnorm(next(cases, count), shapes[4], (case_options){.large_mean = true});
    case_syncbatchnorm(next(cases, count), shapes[1], plain);
    case_syncbatchnorm(next(cases, count), shapes[2], in_place);
    case_syncbatchnorm(next(cases, count), shapes[3], accumulated);
    case_syncbatchnorm(next(cases, count), shapes[4], micro_batch);
    case_syncbatchnorm(next(cases, count), shapes[4], (case_options){.large_mean = true});
    for (int i = 0; i < COUNT(shapes); i++) case_batchnorm_inference(next(cases, count), shapes[i]);
}

static void add_layernorms(op_case *cases, int *count)
{
    static const layernorm_attributes shapes[] = {
        /* m c eps residual dsum */
        {1, 3, 1e-5, false, false}, {5, 13, 1e-5, true, false},    {7, 64, 1e-12, false, true},
        {3, 33, 1e-5, true, true},  {40, 17, 1e-5, true, false},   {2, 771, 1e-12, true, true},
        {3, 131, 1e-5, true, true}, {5, 1024, 1e-12, true, false},
    };
    for (int i = 0; i < COUNT(shapes); i++) case_layernorm(next(cases, count), shapes[i], plain);
    for (int i = 1; i < 4; i++) case_layernorm(next(cases, count), shapes[i], in_place);
    case_layernorm(next(cases, count), shapes[1], accumulated);
    case_layernorm(next(cases, count), shapes[3], micro_batch);
    case_layernorm(next(cases, count), shapes[3], (case_options){.rows = 2});
    case_layernorm(next(cases, count), shapes[4], (case_options){.rows = 23});
}

static void add_elementwise(op_case *cases, int *count)
{
    static const int64_t counts[] = {1, 17, 1003};
    for (int act = ACTIVATION_RELU; act < ACTIVATION_COUNT; act++)
        for (int i = 0; i < COUNT(counts); i++)
            case_activation(next(cases, count), (elementwise_attributes){counts[i], (activation)act}, plain);
    case_activation(next(cases, count), (elementwise_attributes){101, ACTIVATION_RELU}, in_place);
    for (int i = 0; i < COUNT(counts); i++)
        case_add(next(cases, count), (elementwise_attributes){.count = counts[i]}, plain);
    case_add(next(cases, count), (elementwise_attributes){.count = 19}, in_place);
}

static void add_pools(op_case *cases, int *count)
{
    static const pool_attributes maxima[] = {
        /* n h w c r s stride pad */
        {1, 1, 1, 1, 1, 1, 1, 0, 0, 0},  {2, 7, 7, 3, 3, 3, 2, 1, 0, 0},    {1, 4, 6, 5, 2, 2, 2, 0, 0, 0},
        {1, 9, 5, 17, 3, 2, 1, 1, 0, 0}, {2, 16, 16, 64, 3, 3, 2, 1, 0, 0},
    };
    static const pool_attributes averages[] = {
        {1, 1, 1, 1, 1, 1, 1, 0, 0, 0}, {2, 7, 7, 33, 7, 7, 1, 0, 0, 0}, {1, 4, 6, 5, 2, 2, 2, 0, 0, 0},
        {3, 5, 8, 7, 3, 2, 1, 0, 0, 0}, {2, 5, 6, 32, 3, 3, 1, 1, 0, 0}, {1, 8, 7, 19, 4, 3, 2, 1, 0, 0},
    };
    static const concat_attributes parts[] = {
        /* rows c */
        {1, {1}},
        {6, {3, 17, 1, 5, 64, 7}},
        {35, {16, 32, 8}},
        {7, {33, 2}},
    };
    for (int i = 0; i < COUNT(maxima); i++) case_maxpool(next(cases, count), maxima[i]);
    for (int i = 0; i < COUNT(averages); i++) case_avgpool(next(cases, count), averages[i]);
    for (int i = 0; i < COUNT(parts); i++) case_concat(next(cases, count), parts[i]);
}

static void add_tokens(op_case *cases, int *count)
{
    static const embedding_attributes tables[] = {
        /* batch sequence hidden vocabulary positions position type */
        {1, 1, 1, 2, 1, false, false},
        {2, 7, 13, 11, 9, true, true},
        {3, 5, 33, 101, 5, true, false},
        {2, 6, 16, 3, 8, false, true},
    };
    for (int i = 0; i < COUNT(tables); i++) case_embedding(next(cases, count), tables[i], plain);
    case_embedding(next(cases, count), tables[1], accumulated);
    case_embedding(next(cases, count), tables[1], micro_batch);

    static const attention_attributes heads[] = {
        /* batch sequence heads width causal stride (0: separate q, k, v) */
        {1, 1, 1, 1, false, 0},    {2, 7, 3, 5, false, 0},  {2, 7, 3, 5, true, 45},
        {1, 13, 2, 16, false, 96}, {1, 33, 1, 64, true, 0}, {3, 4, 2, 8, true, 48},
    };
    for (int i = 0; i < COUNT(heads); i++) case_attention(next(cases, count), heads[i]);

    static const rows_attributes selections[] = {
        /* rows hidden selected every */
        {1, 1, 1, 0}, {11, 7, 4, 0}, {12, 33, 3, 4}, {23, 16, 23, 0}, {5, 3, 5, 1},
    };
    for (int i = 0; i < COUNT(selections); i++) case_rows(next(cases, count), selections[i], plain);
    case_rows(next(cases, count), selections[3], (case_options){.rows = 9});
}

static void add_losses(op_case *cases, int *count)
{
    static const loss_attributes shapes[] = {
        /* rows classes gradient */
        {1, 1, true}, {7, 11, true}, {32, 3, true}, {5, 1009, true}, {6, 10, false},
    };
    for (int i = 0; i < COUNT(shapes); i++) {
        case_cross_entropy(next(cases, count), shapes[i], plain);
        case_mean_squared_error(next(cases, count), shapes[i], plain);
    }
    case_cross_entropy(next(cases, count), shapes[1], in_place);
    case_cross_entropy(next(cases, count), shapes[1], (case_options){.rows = 4});
    case_mean_squared_error(next(cases, count), shapes[2], in_place);
    case_mean_squared_error(next(cases, count), shapes[2], (case_options){.rows = 17});
}

static void add_updates(op_case *cases, int *count)
{
    static const int64_t counts[] = {1, 37, 1024};
    static const optimizer_attributes sgds[] = {{.momentum = 0},
                                                {.momentum = 0.9},
                                                {.momentum = 0.9, .dampening = 0.1},
                                                {.momentum = 0.9, .nesterov = true}};
    static const optimizer_attributes adams[] = {
        {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
        {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decoupled = true}};
    for (int i = 0; i < COUNT(counts); i++) {
        for (int64_t step = 0; step < 2; step++) {
            case_update update = {0.1, step ? 0.05 : 0, step ? 0.25 : 1, step};
            for (int j = 0; j < COUNT(sgds) + COUNT(adams); j++) {
                optimizer_attributes a = j < COUNT(sgds) ? sgds[j] : adams[j - COUNT(sgds)];
                a.count = counts[i];
                if (j < COUNT(sgds))
                    case_sgd(next(cases, count), a, update);
                else
                    case_adam(next(cases, count), a, update);
            }
        }
        case_sum_squares(next(cases, count), counts[i]);
        case_divide(next(cases, count), counts[i], 3);
        case_clear(next(cases, count), counts[i]);
    }
}

int op_table_build(op_case *cases)
{
    int count = 0;
    add_convolutions(cases, &count);
    add_linears(cases, &count);
    add_batchnorms(cases, &count);
    add_layernorms(cases, &count);
    add_elementwise(cases, &count);
    add_pools(cases, &count);
    add_tokens(cases, &count);
    add_losses(cases, &count);
    add_updates(cases, &count);
    return count;
}
