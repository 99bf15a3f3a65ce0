/* Tests layouts of parameters: they have no padding, lose no element, and have the order that the device's
 * files describe. */
#include "tests/common/device/cpu/cpu_test.h"
#include "tests/common/device/op_runner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* Packs the numbers 0, 1, 2, ... and checks that each of them occurs once. Unpacking must give the same
 * numbers again. */
static void check_layout(device *d, const device_layout *layout, int64_t elements, const char *what)
{
    assert_int_equal(layout->elements, elements);
    float *plain = cpu_test_blank(elements), *packed = cpu_test_blank(elements),
          *back = cpu_test_blank(elements);
    char *seen = calloc((size_t)elements, 1);
    assert_non_null(seen);
    for (int64_t i = 0; i < elements; i++) plain[i] = (float)i;
    must(device_layout_pack(d, layout, plain, packed));
    must(device_layout_unpack(d, layout, packed, back));
    cpu_test_equal(what, back, plain, elements);
    for (int64_t i = 0; i < elements; i++) {
        if (!(packed[i] >= 0 && packed[i] < (float)elements) || seen[(int64_t)packed[i]])
            fail_msg("%s: element %lld of the packed array is %g, which is none or another's", what,
                     (long long)i, packed[i]);
        seen[(int64_t)packed[i]] = 1;
    }
    free(plain);
    free(packed);
    free(back);
    free(seen);
}

static void convolution_weights_round_trip_without_padding(void **context)
{
    (void)context;
    static const int64_t channels[] = {1, 3, 6, 8, 10, 16, 24, 32, 48, 64, 84, 120};
    static const int64_t images[] = {1, 2, 4, 7, 32}, kernels[] = {1, 3, 5, 7};
    enum { CHANNELS = sizeof channels / sizeof channels[0] };
    device *d = cpu_test_open(1);
    for (int i = 0; i < CHANNELS * CHANNELS; i++)
        for (int j = 0; j < 5 * 4; j++) {
            int64_t c = channels[i % CHANNELS], k = channels[i / CHANNELS], r = kernels[j % 4],
                    h = images[j / 4];
            op_desc op = {.kind = OP_conv2d_forward,
                          .u.conv2d = {.n = 4,
                                       .h = h,
                                       .w = h,
                                       .c = c,
                                       .k = k,
                                       .r = r,
                                       .s = r,
                                       .stride = 1,
                                       .pad_h = r / 2,
                                       .pad_w = r / 2,
                                       .p = h,
                                       .q = h}};
            device_layout layout = cpu_test_layout(d, &op, CONV_FWD_W, shape_4d(k, c, r, r));
            check_layout(d, &layout, k * c * r * r, "weights");
        }
    device_close(&d);
}

static void weights_behind_an_image_turn_from_chw_to_hwc(void **context)
{
    (void)context;
    enum { OUT = 7, C = 5, H = 3, W = 4, IN = C * H * W };
    device *d = cpu_test_open(1);
    op_desc op = {.kind = OP_linear_forward,
                  .u.linear = {.m = 2, .in = IN, .out = OUT, .flat_c = C, .flat_h = H, .flat_w = W}};
    device_layout layout = cpu_test_layout(d, &op, LINEAR_FWD_W, shape_2d(OUT, IN));
    float plain[OUT * IN], packed[OUT * IN];
    check_layout(d, &layout, OUT * IN, "weights");
    for (int i = 0; i < OUT * IN; i++) plain[i] = (float)i;
    must(device_layout_pack(d, &layout, plain, packed));
    for (int o = 0; o < OUT; o++)
        for (int h = 0; h < H; h++)
            for (int w = 0; w < W; w++)
                for (int c = 0; c < C; c++) {
                    float expected = plain[o * IN + (c * H + h) * W + w];
                    float found = packed[o * IN + (h * W + w) * C + c];
                    if (found != expected)
                        fail_msg("out %d h %d w %d c %d: %g, expected %g", o, h, w, c, found, expected);
                }
    device_close(&d);
}

static void other_parameters_stay_in_pytorchs_order(void **context)
{
    (void)context;
    device *d = cpu_test_open(1);
    op_desc conv = {.kind = OP_conv2d_forward, .u.conv2d = {.k = 64, .bias = true}};
    op_desc linear = {.kind = OP_linear_forward, .u.linear = {.m = 8, .in = 84, .out = 10, .bias = true}};
    device_layout bias = cpu_test_layout(d, &conv, CONV_FWD_B, shape_1d(64));
    device_layout weights = cpu_test_layout(d, &linear, LINEAR_FWD_W, shape_2d(10, 84));
    assert_true(bias.plain && weights.plain);
    assert_int_equal(bias.elements, 64);
    assert_int_equal(weights.elements, 840);
    device_close(&d);
}

static void a_convolution_refuses_weights_of_another_layout(void **context)
{
    (void)context;
    device *d = cpu_test_open(1);
    op_desc op = {.kind = OP_conv2d_forward,
                  .type = DTYPE_F32,
                  .u.conv2d = {.n = 1,
                               .h = 8,
                               .w = 8,
                               .c = 16,
                               .k = 16,
                               .r = 3,
                               .s = 3,
                               .stride = 1,
                               .pad_h = 1,
                               .pad_w = 1,
                               .p = 8,
                               .q = 8}};
    device_kernel *kernel = NULL;
    assert_int_equal(device_prepare(d, &op, NULL, &kernel), STATUS_INTERNAL);
    assert_null(kernel);
    assert_string_equal(error_message(),
                        "conv2d_forward: weights: the layout was not chosen for a convolution");
    error_clear();
    device_close(&d);
}

static void what_cannot_run_is_refused_with_a_reason(void **context)
{
    (void)context;
    device_config config = {.name = "cpu", .world = 1, .threads = 0};
    device *d = NULL;
    assert_int_equal(device_open(&config, &d), STATUS_USAGE);
    assert_string_equal(error_message(), "device cpu: threads: expected an integer of 1 or more, got 0");
    error_clear();
    d = cpu_test_open(1);
    op_desc op = {.kind = OP_add, .type = DTYPE_F64, .u.elementwise = {.count = 4}};
    device_kernel *kernel = NULL;
    assert_int_equal(device_prepare(d, &op, NULL, &kernel), STATUS_INTERNAL);
    assert_string_equal(error_message(), "device cpu: add: expected float32, got float64");
    error_clear();
    device_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolution_weights_round_trip_without_padding),
        cmocka_unit_test(weights_behind_an_image_turn_from_chw_to_hwc),
        cmocka_unit_test(other_parameters_stay_in_pytorchs_order),
        cmocka_unit_test(a_convolution_refuses_weights_of_another_layout),
        cmocka_unit_test(what_cannot_run_is_refused_with_a_reason),
    };
    return cmocka_run_group_tests_name("parameter layouts of the cpu device", tests, NULL, NULL);
}
