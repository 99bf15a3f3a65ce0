/* Tests how the device `cuda` uses libraries and the GPU. The emulator counts launches, calls that set
 * streams, and algorithms that are timed, and shows which kernel runs when a library refuses. On a GPU there
 * are no counts, and only values are checked. */
#include "common/device/cuda/cuda_module.h"
#include "common/reduce/half.h"
#include "tests/common/device/op_families.h"
#include "tests/common/device/op_runner.h"
#include "tests/gpu/check_case.h"
#include "tests/gpu/emulator/control.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const device_setting cuda = {"cuda", 1, 0};
static const double EXACT = 2e-5;

/* On a GPU all counts are zero, and faults have no effect. */
static emulator_control_table on_gpu, *control = &on_gpu;

static bool emulated(void)
{
    return control != &on_gpu;
}

static int find_control(void **context)
{
    (void)context;
    const void *found = NULL;
    if (cuda_count_gpus() > 0 && cuda_module_find(EMULATOR_CONTROL_SYMBOL, &found) == STATUS_OK && found)
        control = (emulator_control_table *)found;
    return 0;
}

static int end_faults(void **context)
{
    (void)context;
    control->fails_search = control->fails_sums = control->slow_first = control->slow_sums = false;
    return 0;
}

static op_case linear_case(int64_t m)
{
    static op_case c;
    case_linear(&c, (linear_attributes){.m = m, .in = 24, .out = 16, .bias = true}, (case_options){0});
    return c;
}

static op_case conv_case(int64_t channels)
{
    static op_case c;
    case_conv2d(&c, (conv2d_attributes){2, 7, 7, channels, 8, 3, 3, 1, 1, 1, 0, 0, true}, (case_options){0});
    return c;
}

/* ---- refusals --------------------------------------------------------------------------------- */

static int fallbacks_of(const device *d, const device_fallback **out)
{
    *out = device_get_info(d)->fallbacks;
    return device_get_info(d)->fallback_count;
}

static void sums_that_cublaslt_refuses_are_taken_by_a_kernel(void **context)
{
    (void)context;
    op_case c = linear_case(32);
    const device_fallback *f;
    device *d = device_setting_open(cuda);
    control->fails_sums = true;
    check_case_on(d, &c, 3, EXACT);
    if (emulated()) {
        assert_int_equal(fallbacks_of(d, &f), 1); /* The fallback is not counted again at every launch. */
        assert_int_equal(f->kind, OP_linear_backward_weights);
        assert_int_equal(f->count, 1);
        assert_string_equal(f->reason, "cuBLASLt: CUBLAS_STATUS_NOT_SUPPORTED");
    }
    device_close(&d);
}

static void searches_of_cudnn_that_fail_are_counted(void **context)
{
    (void)context;
    op_case c = conv_case(4);
    const device_fallback *f;
    device *d = device_setting_open(cuda);
    control->fails_search = true;
    check_case_on(d, &c, 1, EXACT);
    check_case_on(d, &c, 1, EXACT);
    if (emulated()) {
        assert_int_equal(fallbacks_of(d, &f), 3); /* forward and two gradients, each prepared twice */
        for (int i = 0; i < 3; i++) {
            assert_int_equal(f[i].count, 2);
            assert_string_equal(f[i].reason, "cuDNN: CUDNN_STATUS_NOT_SUPPORTED");
            assert_string_equal(f[i].shape, "2x7x7x4 to 8, 3x3, float32");
        }
    }
    device_close(&d);
}

static void shapes_that_libraries_have_are_no_fallbacks(void **context)
{
    (void)context;
    op_case conv = conv_case(4), linear = linear_case(32);
    const device_fallback *f;
    device *d = device_setting_open(cuda);
    check_case_on(d, &conv, 1, EXACT);
    check_case_on(d, &linear, 1, EXACT);
    assert_int_equal(fallbacks_of(d, &f), 0);
    device_close(&d);
}

/* ---- calls ------------------------------------------------------------------------------------ */

static void cudnn_is_given_its_stream_once(void **context)
{
    (void)context;
    op_case c = conv_case(4);
    device *d = device_setting_open(cuda);
    int64_t before = control->set_streams;
    check_case_on(d, &c, 5, EXACT);
    if (emulated()) assert_int_equal(control->set_streams - before, 1);
    device_close(&d);
}

static void the_fastest_product_is_taken_where_algorithms_are_timed(void **context)
{
    (void)context;
    op_case c = linear_case(32);
    device_config config = {.name = "cuda", .world = 1, .threads = 1, .benchmark = true};
    device *d;
    if (!emulated()) skip();
    must(device_open(&config, &d));
    control->slow_first = true;
    check_case_on(d, &c, 1, EXACT); /* Algorithms are timed at their first use. */
    int64_t first = control->first_products, fast = control->fast_products;
    check_case_on(d, &c, 2, EXACT);
    assert_int_equal(control->first_products - first, 0);
    assert_true(control->fast_products - fast >= 6); /* three products, each twice */
    device_close(&d);
}

static device *open_benchmarked(int precision)
{
    device_config config = {
        .name = "cuda", .world = 1, .threads = 1, .precision = precision, .benchmark = true};
    device *d;
    must(device_open(&config, &d));
    control->slow_first = true;
    return d;
}

/* Returns the number of launches for the gradients of a linear layer, after algorithms have been timed. */
static int64_t launches_of_linear(activation act, bool slow_sums)
{
    static op_case c;
    case_linear(&c, (linear_attributes){.m = 32, .in = 24, .out = 16, .bias = true, .act = act},
                (case_options){0});
    device *d = open_benchmarked(DEVICE_PRECISION_F32);
    control->slow_sums = slow_sums;
    check_case_on(d, &c, 1, EXACT);
    int64_t before = control->launches;
    check_case_on(d, &c, 1, EXACT);
    device_close(&d);
    return control->launches - before;
}

/* A product whose epilogue sums the bias's gradient may be slower than a plain product and an additional pass
 * over dy. If there is an activation, there is a pass over dy anyway. */
static void a_biass_gradient_is_summed_by_itself_where_that_is_faster(void **context)
{
    (void)context;
    if (!emulated()) skip();
    assert_int_equal(launches_of_linear(ACTIVATION_NONE, true) - launches_of_linear(ACTIVATION_NONE, false),
                     1);
    assert_int_equal(launches_of_linear(ACTIVATION_GELU, true) - launches_of_linear(ACTIVATION_GELU, false),
                     0);
    int64_t fast = control->fast_products;
    launches_of_linear(ACTIVATION_GELU, true);
    assert_true(control->fast_products > fast);
}

/* The graph of a convolution must give the values of the reference. Gradients that are added to existing ones
 * use an algorithm instead of a graph. */
static void a_convolution_runs_as_a_graph_where_that_is_faster(void **context)
{
    (void)context;
    op_case c = conv_case(4);
    if (!emulated()) skip();
    device *d = open_benchmarked(DEVICE_PRECISION_F32);
    check_case_on(d, &c, 1, EXACT);
    int64_t before = control->graphs;
    check_case_on(d, &c, 2, EXACT);
    assert_int_equal(control->graphs - before, 3 * 2);
    case_conv2d(&c, (conv2d_attributes){2, 7, 7, 4, 8, 3, 3, 2, 1, 1, 0, 0, true},
                (case_options){.micro_batch = true});
    check_case_on(d, &c, 1, EXACT);
    before = control->graphs;
    check_case_on(d, &c, 1, EXACT);
    assert_int_equal(control->graphs - before, 2);
    device_close(&d);
}

/* In bfloat16 the stored results and the probabilities are rounded to 2^-8. */
static void attention_runs_as_a_graph_where_that_is_faster(void **context)
{
    (void)context;
    static const attention_attributes shapes[] = {
        {2, 9, 2, 8, false, 0}, {1, 33, 2, 16, true, 0}, {2, 12, 2, 8, true, 48}};
    op_case c;
    if (!emulated()) skip();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        device *d = open_benchmarked(DEVICE_PRECISION_BF16);
        const device_fallback *f;
        case_attention(&c, shapes[i]);
        check_case_on(d, &c, 1, 0.05);
        int64_t before = control->graphs;
        check_case_on(d, &c, 1, 0.05);
        assert_int_equal(control->graphs - before, 2);
        assert_int_equal(fallbacks_of(d, &f), 0);
        device_close(&d);
    }
}

static void attention_that_cudnn_refuses_is_that_of_the_own_kernel(void **context)
{
    (void)context;
    op_case c;
    const device_fallback *f;
    if (!emulated()) skip();
    device *d = open_benchmarked(DEVICE_PRECISION_BF16);
    control->fails_search = true;
    case_attention(&c, (attention_attributes){2, 9, 2, 8, false, 0});
    int64_t before = control->graphs;
    check_case_on(d, &c, 1, 0.05);
    assert_int_equal(control->graphs - before, 0);
    assert_int_equal(fallbacks_of(d, &f), 2);
    assert_string_equal(f->instead, "an own kernel attends");
    device_close(&d);
}

/* ---- launches --------------------------------------------------------------------------------- */

enum { TENSORS = 100, ELEMENTS = 40, SPACE = TENSORS * 64 };

/* Packs gradients with gaps between them into a bucket without gaps. The last gradient is longer than the
 * chunk of a block. */
static void a_bucket_is_packed_by_one_launch(void **context)
{
    (void)context;
    enum { LAST = 5001, PACKED = (TENSORS - 1) * ELEMENTS + LAST, SIZE = SPACE + LAST };
    static float values[SIZE], found[PACKED];
    static uint16_t rounded[PACKED];
    device *d = device_setting_open(cuda);
    device_stream *s;
    device_memory from, to;
    device_range ranges[TENSORS];
    for (int i = 0; i < SIZE; i++) values[i] = (float)(i % 977) + 0.25f;
    must(device_stream_open(d, DEVICE_STREAM_COMPUTE, &s));
    must(device_allocate(d, DEVICE_MEMORY_PRIVATE, sizeof values, &from));
    must(device_allocate(d, DEVICE_MEMORY_PRIVATE, sizeof found, &to));
    must(device_upload(s, from.data, values, DTYPE_F32, DTYPE_F32, SIZE));
    for (int bf16 = 0; bf16 < 2; bf16++) {
        dtype type = bf16 ? DTYPE_BF16 : DTYPE_F32;
        for (int i = 0; i < TENSORS; i++)
            ranges[i] = (device_range){(char *)to.data + i * ELEMENTS * dtype_size(type),
                                       (float *)from.data + i * 64, i == TENSORS - 1 ? LAST : ELEMENTS};
        int64_t launches = control->launches, copies = control->copies;
        must(device_pack(s, ranges, TENSORS, type, DTYPE_F32, 3));
        if (emulated()) {
            assert_int_equal(control->launches - launches, 1);
            assert_int_equal(control->copies - copies, 0);
        }
        if (bf16)
            must(device_download(s, rounded, to.data, DTYPE_U8, DTYPE_U8, sizeof rounded));
        else
            must(device_download(s, found, to.data, DTYPE_F32, DTYPE_F32, PACKED));
        must(device_stream_synchronize(s));
        for (int i = 0, at = 0; i < TENSORS; i++)
            for (int64_t j = 0; j < ranges[i].count; j++, at++) {
                float expected = values[i * 64 + j] / 3.0f;
                if (bf16)
                    assert_int_equal(rounded[at], bf16_from_float(expected));
                else
                    assert_memory_equal(&found[at], &expected, sizeof expected);
            }
    }
    device_free(d, &from);
    device_free(d, &to);
    device_stream_close(&s);
    device_close(&d);
}

/* Returns the number of launches of step `step` of a case. */
static int64_t launches_of(const op_case *c, int step)
{
    device *d = device_setting_open(cuda);
    op_runner r;
    case_state state;
    op_runner_open(d, c, &r);
    case_state_open(c, &state);
    op_runner_load(&r, &state);
    int64_t before = control->launches;
    op_runner_run(&r, step, step + 1);
    int64_t launches = control->launches - before;
    case_state_close(&state);
    op_runner_close(&r);
    device_close(&d);
    return launches;
}

static void small_sums_of_columns_are_taken_by_one_launch(void **context)
{
    (void)context;
    static op_case c;
    case_batchnorm(&c, (batchnorm_attributes){8, 13, 11, 72, 1e-5, 0.1, ACTIVATION_RELU, false, false, 1},
                   (case_options){0});
    check_case(&c, cuda, EXACT);
    if (!emulated()) skip();
    assert_int_equal(launches_of(&c, 0), 2); /* one launch for the statistics, one for y */
    assert_int_equal(launches_of(&c, 1), 2); /* one launch for the sums, one for dx */
}

/* ---- a token that occurs often ---------------------------------------------------------------- */

/* If so many values of 0.1 are added in float32 one after another, the error is 1e-4 of the result. If they
 * are added in parts, the error is much smaller. */
static void a_frequent_tokens_gradient_is_summed_in_parts(void **context)
{
    (void)context;
    enum { ROWS = 20000, RARE = 7, HIDDEN = 3, VOCABULARY = 11, FREQUENT = 4 };
    op_desc op = {.kind = OP_embedding_backward,
                  .type = DTYPE_F32,
                  .u.embedding = {.batch = 1, .sequence = ROWS, .hidden = HIDDEN, .vocabulary = VOCABULARY}};
    static int32_t tokens[ROWS];
    static float dy[ROWS * HIDDEN], table[VOCABULARY * HIDDEN];
    double expected[VOCABULARY] = {0};
    device *d = device_setting_open(cuda);
    device_stream *s;
    device_kernel *kernel;
    device_memory memory[3], workspace;
    size_t bytes[3] = {sizeof tokens, sizeof dy, sizeof table};
    for (int i = 0; i < ROWS; i++) {
        tokens[i] = i % 1000 == 3 ? RARE : FREQUENT;
        for (int c = 0; c < HIDDEN; c++) dy[i * HIDDEN + c] = 0.1f;
        expected[tokens[i]] += (double)0.1f;
    }
    must(device_stream_open(d, DEVICE_STREAM_COMPUTE, &s));
    for (int i = 0; i < 3; i++) must(device_allocate(d, DEVICE_MEMORY_PRIVATE, bytes[i], &memory[i]));
    must(device_prepare(d, &op, NULL, &kernel));
    must(device_allocate(d, DEVICE_MEMORY_PRIVATE, device_kernel_workspace(kernel), &workspace));
    must(device_upload(s, memory[0].data, tokens, DTYPE_I32, DTYPE_I32, ROWS));
    must(device_upload(s, memory[1].data, dy, DTYPE_F32, DTYPE_F32, ROWS * HIDDEN));
    must(device_launch(s, kernel,
                       (void *[OP_MAX_OPERANDS]){[EMB_BWD_TOKENS] = memory[0].data,
                                                 [EMB_BWD_DY] = memory[1].data,
                                                 [EMB_BWD_DTABLE] = memory[2].data},
                       &(op_scalars){0}, workspace.data));
    must(device_download(s, table, memory[2].data, DTYPE_F32, DTYPE_F32, VOCABULARY * HIDDEN));
    must(device_stream_synchronize(s));
    for (int token = 0; token < VOCABULARY; token++)
        for (int c = 0; c < HIDDEN; c++) {
            double error = (double)table[token * HIDDEN + c] - expected[token];
            if (error > 1e-5 * expected[token] || error < -1e-5 * expected[token])
                fail_msg("token %d: %.9g, expected %.9g", token, table[token * HIDDEN + c], expected[token]);
        }
    for (int i = 0; i < 3; i++) device_free(d, &memory[i]);
    device_free(d, &workspace);
    device_release(&kernel);
    device_stream_close(&s);
    device_close(&d);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, end_faults)
    const struct CMUnitTest tests[] = {
        TEST(sums_that_cublaslt_refuses_are_taken_by_a_kernel),
        TEST(searches_of_cudnn_that_fail_are_counted),
        TEST(shapes_that_libraries_have_are_no_fallbacks),
        TEST(cudnn_is_given_its_stream_once),
        TEST(the_fastest_product_is_taken_where_algorithms_are_timed),
        TEST(a_biass_gradient_is_summed_by_itself_where_that_is_faster),
        TEST(a_convolution_runs_as_a_graph_where_that_is_faster),
        TEST(attention_runs_as_a_graph_where_that_is_faster),
        TEST(attention_that_cudnn_refuses_is_that_of_the_own_kernel),
        TEST(a_bucket_is_packed_by_one_launch),
        TEST(small_sums_of_columns_are_taken_by_one_launch),
        TEST(a_frequent_tokens_gradient_is_summed_in_parts),
    };
    return cmocka_run_group_tests_name("libraries and launches of the cuda device", tests, find_control,
                                       NULL);
}
