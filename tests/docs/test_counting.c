/* Tests the device of docs/add-a-device.md: it computes as the cpu device does, and counts launches. */
#include "common/device/device_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

extern const device_backend device_counting;
int64_t counting_launches(const device *d, op_kind kind);

static void an_operation_runs_and_is_counted(void **state)
{
    (void)state;
    device *d = NULL;
    device_stream *s = NULL;
    device_kernel *kernel = NULL;
    float a[] = {1, 2, 3}, b[] = {10, 20, 30}, y[3] = {0};
    op_desc op = {.kind = OP_add, .type = DTYPE_F32, .u.elementwise = {.count = 3}};
    assert_int_equal(device_open_backend(&device_counting, &(device_config){.world = 1, .threads = 1}, &d),
                     STATUS_OK);
    assert_string_equal(device_get_info(d)->name, "counting");
    assert_int_equal(device_stream_open(d, DEVICE_STREAM_COMPUTE, &s), STATUS_OK);
    assert_int_equal(device_prepare(d, &op, NULL, &kernel), STATUS_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(device_launch(s, kernel, (void *[OP_MAX_OPERANDS]){a, b, y}, NULL, NULL), STATUS_OK);
    for (int i = 0; i < 3; i++) assert_true(y[i] == a[i] + b[i]);
    assert_int_equal(counting_launches(d, OP_add), 2);
    assert_int_equal(counting_launches(d, OP_fill), 0);
    device_release(&kernel);
    device_stream_close(&s);
    device_close(&d);
}

static void weights_have_the_order_of_the_cpu_device(void **state)
{
    (void)state;
    device *d = NULL;
    device_layout layout;
    op_desc op = {
        .kind = OP_conv2d_forward,
        .type = DTYPE_F32,
        .u.conv2d = {.n = 1, .h = 8, .w = 8, .c = 3, .k = 5, .r = 1, .s = 1, .stride = 1, .p = 8, .q = 8}};
    assert_int_equal(device_open_backend(&device_counting, &(device_config){.world = 1, .threads = 1}, &d),
                     STATUS_OK);
    assert_int_equal(device_choose_layout(d, &op, CONV_FWD_W, shape_4d(5, 3, 1, 1), &layout), STATUS_OK);
    assert_int_equal(layout.order, DEVICE_ORDER_RSCK);
    float plain[15], packed[15], back[15];
    for (int i = 0; i < 15; i++) plain[i] = (float)i;
    assert_int_equal(device_layout_pack(d, &layout, plain, packed), STATUS_OK);
    assert_int_equal(device_layout_unpack(d, &layout, packed, back), STATUS_OK);
    assert_memory_equal(back, plain, sizeof plain);
    device_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_operation_runs_and_is_counted),
        cmocka_unit_test(weights_have_the_order_of_the_cpu_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
