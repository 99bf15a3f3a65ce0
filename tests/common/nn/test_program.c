#include "common/nn/program.h"
#include "models/models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct program_case {
    const char *name;
    model_options options;
    int64_t batch;
} program_case;

/* Every model at a small size. */
static const program_case cases[] = {
    {"toy", {.name = "toy"}, 3},
    {"wine_mlp", {.name = "wine_mlp"}, 16},
    {"lenet", {.name = "lenet"}, 5},
    {"resnet18", {.name = "resnet18", .image = 32, .classes = 10}, 4},
    {"resnet18 silu", {.name = "resnet18", .image = 32, .activation = ACTIVATION_SILU}, 4},
    {"resnet34", {.name = "resnet34", .image = 32}, 2},
    {"resnet50", {.name = "resnet50", .image = 64}, 2},
    {"resnet101", {.name = "resnet101", .image = 32}, 2},
    {"resnet152", {.name = "resnet152", .image = 64}, 1},
    {"inception_v3", {.name = "inception_v3", .image = 75, .classes = 10}, 2},
    {"inception_v3 silu", {.name = "inception_v3", .image = 107, .activation = ACTIVATION_SILU}, 2},
    {"vgg16", {.name = "vgg16", .image = 32}, 2},
    {"bert mlm", {.name = "bert", .layers = 2, .hidden = 32, .heads = 4, .vocabulary = 97, .sequence = 7}, 3},
    {"bert cls",
     {.name = "bert",
      .layers = 2,
      .hidden = 32,
      .heads = 4,
      .vocabulary = 97,
      .sequence = 7,
      .head = MODEL_HEAD_CLS},
     3},
    {"gpt2", {.name = "gpt2", .layers = 2, .hidden = 24, .heads = 3, .vocabulary = 50, .sequence = 9}, 2},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static nn_program *compile(const program_case *c, nn_mode mode, nn_model **model)
{
    nn_program *p = NULL;
    nn_program_config config = {.batch = c->batch, .mode = mode, .type = DTYPE_F32, .world = 1};
    if (model_build(&c->options, model) != STATUS_OK || nn_program_compile(*model, &config, &p) != STATUS_OK)
        fail_msg("%s: %s", c->name, error_message());
    return p;
}

static void values_that_live_together_never_overlap(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        nn_model *m = NULL;
        nn_program *p = compile(&cases[i], NN_TRAIN, &m);
        for (int a = 0; a < p->value_count; a++) {
            const nn_value *x = &p->values[a];
            if (x->first < 0) continue;
            if (x->offset + x->bytes > p->activation_bytes)
                fail_msg("%s: value %d leaves its memory", cases[i].name, a);
            for (int b = a + 1; b < p->value_count; b++) {
                const nn_value *y = &p->values[b];
                if (y->first < 0 || x->last < y->first || y->last < x->first) continue;
                if (x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes)
                    fail_msg("%s: values %d and %d overlap", cases[i].name, a, b);
            }
        }
        nn_program_free(&p);
        nn_model_free(&m);
    }
}

static void planned_memory_is_within_five_percent_of_the_largest_live_sum(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        nn_model *m = NULL;
        nn_program *p = compile(&cases[i], NN_TRAIN, &m);
        int64_t least = nn_program_peak_bytes(p), slack = least / 20 + 64 * (int64_t)p->value_count;
        if (p->activation_bytes < least || p->activation_bytes > least + slack)
            fail_msg("%s: planned %lld bytes, the values alive together need %lld", cases[i].name,
                     (long long)p->activation_bytes, (long long)least);
        nn_program_free(&p);
        nn_model_free(&m);
    }
}

static void operands_are_read_and_written_within_the_lives_of_their_values(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        nn_model *m = NULL;
        nn_program *p = compile(&cases[i], NN_TRAIN, &m);
        bool *alive = calloc((size_t)p->value_count, sizeof *alive);
        assert_non_null(alive);
        for (int o = 0; o < p->op_count; o++) {
            const nn_op *op = &p->ops[o];
            for (int b = 0; b < op->live_count; b++) alive[p->births[op->live_first + b]] = true;
            for (int s = 0; s < OP_MAX_OPERANDS; s++)
                if (op->operands[s].space == NN_SPACE_VALUE && !alive[op->operands[s].index])
                    fail_msg("%s: operation %d (%s) uses a value that does not live", cases[i].name, o,
                             op_name(op->desc.kind));
            for (int d = 0; d < op->dead_count; d++) alive[p->deaths[op->dead_first + d]] = false;
        }
        for (int v = 0; v < p->value_count; v++)
            if (alive[v]) fail_msg("%s: value %d never ends", cases[i].name, v);
        free(alive);
        nn_program_free(&p);
        nn_model_free(&m);
    }
}

static bool uses(const nn_op *op, int param)
{
    for (int s = 0; s < OP_MAX_OPERANDS; s++) {
        const nn_operand *o = &op->operands[s];
        bool parameter =
            o->space == NN_SPACE_PARAM || o->space == NN_SPACE_BF16_COPY || o->space == NN_SPACE_GRAD;
        if (parameter && o->index == param) return true;
    }
    return false;
}

/* Counts how often `param` is in a list of the operations [begin, end), and finds the last operation that has
 * it. */
static int count_in(const nn_program *p, int param, int begin, int end, bool releases, int *at)
{
    int count = 0;
    for (int o = begin; o < end; o++) {
        const nn_op *op = &p->ops[o];
        const int *list = releases ? p->releases + op->release_first : p->needs + op->need_first;
        for (int i = 0; i < (releases ? op->release_count : op->need_count); i++)
            if (list[i] == param) count++, *at = o;
    }
    return count;
}

static void expect_uses(const program_case *c, const nn_program *p, int param, int begin, int end)
{
    int first = -1, last = -1, needed = -1, released = -1;
    for (int o = begin; o < end; o++) {
        if (!uses(&p->ops[o], param)) continue;
        if (first < 0) first = o;
        last = o;
    }
    int needs = count_in(p, param, begin, end, false, &needed),
        releases = count_in(p, param, begin, end, true, &released);
    if (needs != (first >= 0) || releases != needs || needed != first || released != last)
        fail_msg("%s: %s is used by operations %d to %d, needed %d times at %d, released %d times at %d",
                 c->name, p->model->params[param].name, first, last, needs, needed, releases, released);
}

static void each_pass_needs_a_parameter_before_its_first_use_and_releases_it_after_its_last(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        nn_model *m = NULL;
        nn_program *p = compile(&cases[i], NN_TRAIN, &m);
        for (int j = 0; j < m->param_count; j++) {
            expect_uses(&cases[i], p, j, 0, p->forward_end);
            expect_uses(&cases[i], p, j, p->loss_end, p->op_count);
        }
        nn_program_free(&p);
        nn_model_free(&m);
    }
}

static void every_parameter_is_needed_once_in_each_pass_and_becomes_ready_once(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        nn_model *m = NULL;
        nn_program *p = compile(&cases[i], NN_TRAIN, &m);
        int *needed = calloc((size_t)m->param_count * 2, sizeof *needed), *ready = needed + m->param_count;
        assert_non_null(needed);
        for (int o = 0; o < p->op_count; o++) {
            const nn_op *op = &p->ops[o];
            for (int j = 0; j < op->need_count; j++) needed[p->needs[op->need_first + j]]++;
            for (int j = 0; j < op->ready_count; j++) ready[p->ready_order[op->ready_first + j]]++;
        }
        for (int j = 0; j < m->param_count; j++)
            if (needed[j] != 2 || ready[j] != 1)
                fail_msg("%s: %s is needed %d and ready %d times", cases[i].name, m->params[j].name,
                         needed[j], ready[j]);
        assert_int_equal(p->ready_count, m->param_count);
        free(needed);
        nn_program_free(&p);
        nn_model_free(&m);
    }
}

static void gradients_of_resnets_and_inception_become_ready_in_reverse_order_of_registration(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const char *name = cases[i].options.name;
        if (strncmp(name, "resnet", 6) != 0 && strcmp(name, "inception_v3") != 0) continue;
        nn_model *m = NULL;
        nn_program *p = compile(&cases[i], NN_TRAIN, &m);
        for (int j = 0; j < m->param_count; j++)
            if (p->ready_order[j] != m->param_count - 1 - j)
                fail_msg("%s: number %d to be ready is %s, expected %s", cases[i].name, j,
                         m->params[p->ready_order[j]].name, m->params[m->param_count - 1 - j].name);
        nn_program_free(&p);
        nn_model_free(&m);
    }
}

static int writers_of(const nn_program *p, int param, int *last)
{
    int writers = 0;
    for (int o = 0; o < p->op_count; o++)
        for (int s = 0; s < OP_MAX_OPERANDS; s++)
            if (p->ops[o].operands[s].space == NN_SPACE_GRAD && p->ops[o].operands[s].index == param) {
                writers++;
                *last = o;
            }
    return writers;
}

static void a_tied_table_is_ready_only_behind_its_second_use(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const char *name = cases[i].options.name;
        if (strcmp(name, "gpt2") != 0 && strcmp(cases[i].name, "bert mlm") != 0) continue;
        nn_model *m = NULL;
        nn_program *p = compile(&cases[i], NN_TRAIN, &m);
        int table = nn_find_param(m, name[0] == 'g' ? "transformer.wte.weight"
                                                    : "bert.embeddings.word_embeddings.weight");
        int last = -1;
        assert_int_equal(writers_of(p, table, &last), 2);
        assert_int_equal(p->ops[last].desc.kind, OP_embedding_backward);
        assert_true(p->ops[last].desc.accumulate);
        bool announced = false;
        for (int j = 0; j < p->ops[last].ready_count; j++)
            announced = announced || p->ready_order[p->ops[last].ready_first + j] == table;
        assert_true(announced);
        nn_program_free(&p);
        nn_model_free(&m);
    }
}

static int count_kind(const nn_program *p, op_kind kind)
{
    int count = 0;
    for (int o = 0; o < p->op_count; o++) count += p->ops[o].desc.kind == kind;
    return count;
}

/* In a ResNet every addition and activation becomes part of a BatchNorm. */
static void batchnorm_takes_in_every_addition_and_activation_of_a_resnet(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        if (strncmp(cases[i].options.name, "resnet", 6) != 0) continue;
        nn_model *m = NULL;
        nn_program *p = compile(&cases[i], NN_TRAIN, &m);
        assert_int_equal(count_kind(p, OP_add), 1); /* Adds the two gradients that reach the pooling. */
        assert_int_equal(count_kind(p, OP_activation_forward), 0);
        assert_int_equal(count_kind(p, OP_activation_backward), 0);
        nn_program_free(&p);
        nn_model_free(&m);
    }
}

/* Nine blocks have four branches and two have three, and the gradients of the branches are added. If a branch
 * forks, the BatchNorm before the fork takes both gradients. Every activation is part of a BatchNorm. */
static void inceptions_branches_meet_in_one_concatenation_per_block(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        if (strcmp(cases[i].options.name, "inception_v3") != 0) continue;
        nn_model *m = NULL;
        nn_program *p = compile(&cases[i], NN_TRAIN, &m);
        assert_int_equal(count_kind(p, OP_concat_forward), 11);
        assert_int_equal(count_kind(p, OP_concat_backward), 11);
        assert_int_equal(count_kind(p, OP_add), 9 * 3 + 2 * 2);
        assert_int_equal(count_kind(p, OP_activation_forward) + count_kind(p, OP_activation_backward), 0);
        nn_program_free(&p);
        nn_model_free(&m);
    }
}

/* Concatenates x, conv(x) and pool(conv(x)). The samples x get no gradient. The output of the convolution is
 * read twice, so its gradient is a sum. */
static void a_concatenation_cuts_the_gradient_for_all_but_samples(void **state)
{
    (void)state;
    nn_model *m = NULL;
    nn_program *p = NULL;
    nn_program_config config = {.batch = 3, .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1};
    assert_int_equal(nn_model_create("branches", &m), STATUS_OK);
    nn_ref x = nn_input_image(m, 6, 5, 3);
    nn_ref y = nn_conv2d_window(m, x, "conv", 7, (nn_window){1, 3, 1, 0, 1}, false, nn_init_default());
    y = nn_concat(m, (const nn_ref[]){x, y, nn_avgpool(m, y, 3, 1, 1)}, 3);
    y = nn_linear(m, nn_flatten(m, y), "fc", 4, true, nn_init_default());
    assert_int_equal(nn_model_finish(m, y, NN_LOSS_CROSS_ENTROPY), STATUS_OK);
    assert_int_equal(nn_program_compile(m, &config, &p), STATUS_OK);
    int found = 0;
    for (int i = 0; i < p->op_count; i++) {
        const nn_op *op = &p->ops[i];
        if (op->desc.kind != OP_concat_backward) continue;
        found++;
        assert_int_equal(op->desc.u.concat.rows, 3 * 6 * 5);
        assert_int_equal(op->operands[CONCAT_BWD_DX].space, NN_SPACE_NONE);
        for (int part = 1; part < 3; part++) {
            const nn_operand *dx = &op->operands[CONCAT_BWD_DX + part];
            assert_int_equal(dx->space, NN_SPACE_VALUE);
            assert_int_equal(p->values[dx->index].shape.dims[3], 7);
        }
        assert_int_equal(op->operands[CONCAT_BWD_DX + 3].space, NN_SPACE_NONE);
    }
    assert_int_equal(found, 1);
    assert_int_equal(count_kind(p, OP_add), 1);
    assert_int_equal(count_kind(p, OP_conv2d_backward_data), 0);
    nn_program_free(&p);
    nn_model_free(&m);
}

static void images_of_two_sizes_are_not_concatenated(void **state)
{
    (void)state;
    nn_model *m = NULL;
    assert_int_equal(nn_model_create("branches", &m), STATUS_OK);
    nn_ref x = nn_input_image(m, 6, 6, 3);
    nn_ref y = nn_concat(m, (const nn_ref[]){x, nn_maxpool(m, x, 3, 1, 0)}, 2);
    assert_int_equal(nn_model_finish(m, y, NN_LOSS_CROSS_ENTROPY), STATUS_CONFIG);
    assert_string_equal(error_message(), "model branches: a concatenation of images of two sizes");
    error_clear();
    nn_model_free(&m);
}

static void the_input_gets_no_gradient(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        nn_model *m = NULL;
        nn_program *p = compile(&cases[i], NN_TRAIN, &m);
        int weights = count_kind(p, OP_conv2d_backward_weights) + count_kind(p, OP_linear_backward_weights);
        int data = count_kind(p, OP_conv2d_backward_data) + count_kind(p, OP_linear_backward_data);
        bool tokens = m->input_kind ==
                      /* The first layer is an embedding table, so every matrix product passes a gradient on
                         to its input. */
                      NN_INPUT_TOKENS;
        assert_int_equal(data, tokens ? weights : weights - 1);
        nn_program_free(&p);
        nn_model_free(&m);
    }
}

static void evaluation_keeps_less_than_two_thirds_of_the_memory_of_training(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        if (strcmp(cases[i].name, "toy") == 0 || strcmp(cases[i].name, "wine_mlp") == 0) continue;
        nn_model *m = NULL, *n = NULL;
        nn_program *p = compile(&cases[i], NN_TRAIN, &m), *q = compile(&cases[i], NN_EVALUATE, &n);
        if (q->activation_bytes * 3 >= p->activation_bytes * 2)
            fail_msg("%s: %lld bytes in evaluation, %lld in training", cases[i].name,
                     (long long)q->activation_bytes, (long long)p->activation_bytes);
        nn_program_free(&p);
        nn_program_free(&q);
        nn_model_free(&m);
        nn_model_free(&n);
    }
}

static void a_batch_of_nothing_is_refused(void **state)
{
    (void)state;
    nn_model *m = NULL;
    nn_program *p = NULL;
    nn_program_config config = {.batch = 0, .mode = NN_TRAIN, .type = DTYPE_F32};
    assert_int_equal(model_build(&cases[0].options, &m), STATUS_OK);
    assert_int_equal(nn_program_compile(m, &config, &p), STATUS_CONFIG);
    assert_string_equal(error_message(), "--batch: expected at least 1, got 0");
    error_clear();
    nn_model_free(&m);
}

static void the_masked_head_runs_on_gathered_rows_and_the_rest_on_all(void **state)
{
    (void)state;
    nn_model *m = NULL;
    nn_program *p = NULL;
    model_options options = {
        .name = "bert", .layers = 1, .hidden = 32, .heads = 2, .vocabulary = 97, .sequence = 7};
    nn_program_config config = {
        .batch = 3, .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1, .masked_loss = true};
    assert_int_equal(model_build(&options, &m), STATUS_OK);
    assert_int_equal(nn_program_compile(m, &config, &p), STATUS_OK);
    assert_true(p->masked);
    /* The operations are gather, dense with GELU, LayerNorm and decoder; the loss; and in the backward pass
     * two of the decoder, LayerNorm, two of dense, and scatter. */
    int varying = 0;
    for (int i = 0; i < p->op_count; i++) varying += p->ops[i].rows_vary;
    assert_int_equal(varying, 4 + 1 + 6);
    assert_int_equal(count_kind(p, OP_gather_rows), 1);
    assert_int_equal(count_kind(p, OP_scatter_rows), 1);
    nn_program_free(&p);
    nn_model_free(&m);
    options.name =
        /* The last LayerNorm, whose output the head reads, works row by row. The addition before it does not.
         */
        "gpt2";
    assert_int_equal(model_build(&options, &m), STATUS_OK);
    assert_int_equal(nn_program_compile(m, &config, &p), STATUS_OK);
    assert_int_equal(count_kind(p, OP_gather_rows), 1);
    nn_program_free(&p);
    nn_model_free(&m);
}

static void batchnorm_of_one_value_a_channel_is_refused(void **state)
{
    (void)state;
    nn_model *m = NULL;
    nn_program *p = NULL;
    model_options options = {.name = "resnet18", .image = 32};
    nn_program_config config = {.batch = 1, .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1};
    assert_int_equal(model_build(&options, &m), STATUS_OK);
    assert_int_equal(nn_program_compile(m, &config, &p), STATUS_CONFIG);
    assert_string_equal(error_message(),
                        "--batch: expected at least 2 values per channel for BatchNorm layer "
                        "layer4.0.bn1, got 1");
    error_clear();
    config.mode = NN_EVALUATE;
    assert_int_equal(nn_program_compile(m, &config, &p), STATUS_OK);
    nn_program_free(&p);
    nn_model_free(&m);
}

/* Checks the types of values: tensors have two or four dimensions, and statistics have one. */
static void check_bf16_values(const char *name, const nn_program *full, const nn_program *bf16)
{
    assert_int_equal(bf16->value_count, full->value_count);
    for (int v = 0; v < full->value_count; v++) {
        const nn_value *was = &full->values[v], *is = &bf16->values[v];
        bool tensor = was->type == DTYPE_F32 && was->shape.rank > 1;
        if (is->type != (tensor ? DTYPE_BF16 : was->type) ||
            is->bytes != (tensor ? was->bytes / 2 : was->bytes))
            fail_msg("%s: value %d of %lld bytes of %s has become %lld of %s", name, v, (long long)was->bytes,
                     dtype_name(was->type), (long long)is->bytes, dtype_name(is->type));
    }
}

static void check_bf16_weights(const char *name, const nn_program *p)
{
    int first_x = 0;
    for (int i = 0; i < p->op_count; i++) {
        const nn_op *op = &p->ops[i];
        if (!op->desc.bf16) fail_msg("%s: operation %d (%s) is not bf16", name, i, op_name(op->desc.kind));
        bool product = op->desc.kind == OP_conv2d_forward || op->desc.kind == OP_linear_forward;
        for (int s = 0; s < OP_MAX_OPERANDS; s++) {
            nn_space space = op->operands[s].space;
            bool data = op->desc.kind == OP_conv2d_backward_data || op->desc.kind == OP_linear_backward_data;
            if ((product || data ? space == NN_SPACE_PARAM : space == NN_SPACE_BF16_COPY))
                fail_msg("%s: operation %d (%s) reads a parameter of the wrong type in slot %d", name, i,
                         op_name(op->desc.kind), s);
        }
        if (op->desc.x_f32) first_x++;
        if (op->desc.x_f32 && op->operands[0].space != NN_SPACE_INPUT)
            fail_msg("%s: operation %d (%s) has x_f32, but x is not the input", name, i,
                     op_name(op->desc.kind));
    }
    bool tokens = p->model->input_kind == NN_INPUT_TOKENS;
    if (first_x != (tokens ? 0 : 2)) fail_msg("%s: %d operations read samples", name, first_x);
}

static void bf16_programs_store_tensors_in_half_and_statistics_in_full(void **state)
{
    (void)state;
    _Static_assert((int)CONV_FWD_X == 0 && (int)LINEAR_FWD_X == 0 && (int)CONV_BWD_WEIGHTS_X == 0,
                   "x is the first slot");
    for (int i = 0; i < CASES; i++) {
        nn_model *m = NULL;
        nn_program *full = compile(&cases[i], NN_TRAIN, &m), *bf16 = NULL;
        nn_program_config config = full->config;
        config.bf16 = true;
        assert_int_equal(nn_program_compile(m, &config, &bf16), STATUS_OK);
        check_bf16_values(cases[i].name, full, bf16);
        check_bf16_weights(cases[i].name, bf16);
        nn_program_free(&full);
        nn_program_free(&bf16);
        nn_model_free(&m);
    }
}

static bool same_operand(const nn_operand *a, const nn_operand *b)
{
    return a->space == b->space && a->index == b->index;
}

/* Returns the index of the next operation after `from` that adds to the value, or op_count if there is
 * none. */
static int next_addition(const nn_program *p, int from, int value)
{
    for (int i = from; i < p->op_count; i++) {
        const nn_op *op = &p->ops[i];
        if (op->desc.kind == OP_linear_backward_data && op->desc.accumulate &&
            op->operands[LINEAR_BWD_DATA_DX].index == value)
            return i;
    }
    return p->op_count;
}

static bool touches(const nn_op *op, int value)
{
    for (int s = 0; s < OP_MAX_OPERANDS; s++)
        if (op->operands[s].space == NN_SPACE_VALUE && op->operands[s].index == value) return true;
    return false;
}

/* Returns true if the operation writes the first part of another gradient into the memory of this one. */
static bool begins_anew(const nn_op *op, int value)
{
    return op->desc.kind == OP_layernorm_backward && op->operands[LN_BWD_DX].index == value;
}

static int count_ops(const nn_program *p, op_kind kind)
{
    int count = 0;
    for (int i = 0; i < p->op_count; i++) count += p->ops[i].desc.kind == kind;
    return count;
}

/* In a transformer, the gradients of query, key, value and of the residual around them are added up. So are
 * the gradients of the feed-forward layers and of the residual around them. */
static void linear_layers_add_to_the_gradients_that_others_have_left(void **state)
{
    (void)state;
    int additions = 0;
    for (int i = 0; i < CASES; i++) {
        nn_model *m = NULL;
        nn_program *p = compile(&cases[i], NN_TRAIN, &m);
        for (int first = p->loss_end; first < p->op_count; first++) {
            const nn_operand *dx = &p->ops[first].operands[LINEAR_BWD_DATA_DX];
            if (p->ops[first].desc.kind != OP_linear_backward_data || !p->ops[first].desc.accumulate)
                continue;
            additions++;
            if (dx->space != NN_SPACE_VALUE || p->values[dx->index].first >= first)
                fail_msg("%s: operation %d adds to what nobody has written", cases[i].name, first);
            if (same_operand(dx, &p->ops[first].operands[LINEAR_BWD_DATA_DY]))
                fail_msg("%s: operation %d adds to what it reads", cases[i].name, first);
            int next = next_addition(p, first + 1, dx->index);
            for (int j = first + 1; next < p->op_count && j < next && !begins_anew(&p->ops[j], dx->index);
                 j++)
                if (touches(&p->ops[j], dx->index))
                    fail_msg("%s: operation %d uses a gradient that operation %d adds to", cases[i].name, j,
                             next);
        }
        if (m->input_kind == NN_INPUT_TOKENS && count_ops(p, OP_add) > 0)
            fail_msg("%s: %d additions", cases[i].name, count_ops(p, OP_add));
        nn_program_free(&p);
        nn_model_free(&m);
    }
    assert_true(additions > 0);
}

/* In fc4(fc3(fc2(h)) + (h + h)), the gradient of the sum counts twice for h, and the gradient that fc2 adds
 * counts once. */
static void a_gradient_that_counts_twice_is_not_added_to(void **state)
{
    (void)state;
    nn_model *m = NULL;
    nn_program *p = NULL;
    nn_program_config config = {.batch = 3, .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1};
    assert_int_equal(nn_model_create("twice", &m), STATUS_OK);
    nn_ref h = nn_linear(m, nn_input_features(m, 4), "fc1", 4, true, nn_init_default());
    nn_ref a =
        nn_linear(m, nn_linear(m, h, "fc2", 4, true, nn_init_default()), "fc3", 4, true, nn_init_default());
    nn_ref y = nn_add(m, a, nn_add(m, h, h));
    y = nn_linear(m, y, "fc4", 2, true, nn_init_default());
    assert_int_equal(nn_model_finish(m, y, NN_LOSS_MSE), STATUS_OK);
    assert_int_equal(nn_program_compile(m, &config, &p), STATUS_OK);
    int fc2 = nn_find_param(m, "fc2.weight"), found = 0;
    for (int i = p->loss_end; i < p->op_count; i++) {
        if (p->ops[i].desc.kind != OP_linear_backward_data || p->ops[i].weight_param != fc2) continue;
        found++;
        assert_false(p->ops[i].desc.accumulate);
    }
    assert_int_equal(found, 1);
    nn_program_free(&p);
    nn_model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gradient_that_counts_twice_is_not_added_to),
        cmocka_unit_test(linear_layers_add_to_the_gradients_that_others_have_left),
        cmocka_unit_test(values_that_live_together_never_overlap),
        cmocka_unit_test(planned_memory_is_within_five_percent_of_the_largest_live_sum),
        cmocka_unit_test(operands_are_read_and_written_within_the_lives_of_their_values),
        cmocka_unit_test(every_parameter_is_needed_once_in_each_pass_and_becomes_ready_once),
        cmocka_unit_test(each_pass_needs_a_parameter_before_its_first_use_and_releases_it_after_its_last),
        cmocka_unit_test(gradients_of_resnets_and_inception_become_ready_in_reverse_order_of_registration),
        cmocka_unit_test(a_tied_table_is_ready_only_behind_its_second_use),
        cmocka_unit_test(batchnorm_takes_in_every_addition_and_activation_of_a_resnet),
        cmocka_unit_test(inceptions_branches_meet_in_one_concatenation_per_block),
        cmocka_unit_test(a_concatenation_cuts_the_gradient_for_all_but_samples),
        cmocka_unit_test(images_of_two_sizes_are_not_concatenated),
        cmocka_unit_test(the_input_gets_no_gradient),
        cmocka_unit_test(evaluation_keeps_less_than_two_thirds_of_the_memory_of_training),
        cmocka_unit_test(a_batch_of_nothing_is_refused),
        cmocka_unit_test(the_masked_head_runs_on_gathered_rows_and_the_rest_on_all),
        cmocka_unit_test(batchnorm_of_one_value_a_channel_is_refused),
        cmocka_unit_test(bf16_programs_store_tensors_in_half_and_statistics_in_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
