/* Tests a slow stream of a real device (device_stream_slow_down()). It checks only lower bounds of times,
 * since a sleep may take longer. */
#include "common/device/device.h"

#include "common/base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { COUNT = 1 << 20, LAUNCHES = 10 };

typedef struct fixture {
    device *device;
    device_stream *stream, *other;
    device_kernel *kernel;
    double *values;
} fixture;

static int set_up(void **context)
{
    fixture *f = calloc(1, sizeof *f);
    device_config config = {.name = "reference", .world = 1, .threads = 1};
    op_desc op = {.kind = OP_activation_forward,
                  .type = DTYPE_F64,
                  .u.elementwise = {.count = COUNT, .act = ACTIVATION_GELU}};
    *context = f;
    if (!f) return -1;
    f->values = calloc(COUNT, sizeof *f->values);
    return !f->values || device_open(&config, &f->device) ||
           device_stream_open(f->device, DEVICE_STREAM_COMPUTE, &f->stream) ||
           device_stream_open(f->device, DEVICE_STREAM_COMPUTE, &f->other) ||
           device_prepare(f->device, &op, NULL, &f->kernel);
}

static int tear_down(void **context)
{
    fixture *f = *context;
    if (f->kernel) device_release(&f->kernel);
    device_stream_close(&f->stream);
    device_stream_close(&f->other);
    device_close(&f->device);
    free(f->values);
    free(f);
    error_clear();
    return 0;
}

typedef struct duration {
    int64_t wall_ns, computed_ns;
} duration;

static duration launch(const fixture *f, device_stream *s)
{
    void *operands[OP_MAX_OPERANDS] = {[ACT_FWD_X] = f->values, [ACT_FWD_Y] = f->values};
    int64_t begin = clock_now_ns(), used = clock_cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < LAUNCHES; i++)
        assert_int_equal(device_launch(s, f->kernel, operands, &(op_scalars){0}, NULL), STATUS_OK);
    return (duration){clock_now_ns() - begin, clock_cpu_ns(CLOCK_THREAD_CPUTIME_ID) - used};
}

/* The bound is a tenth less than three times the time: the processor time of the launches includes the
 * sleeps. */
static void what_is_launched_takes_the_factor_longer(void **context)
{
    const fixture *f = *context;
    device_stream_slow_down(f->stream, 3);
    duration d = launch(f, f->stream);
    if (d.wall_ns < 27 * d.computed_ns / 10)
        fail_msg("%d us for %d us of computation, expected three times that", (int)(d.wall_ns / 1000),
                 (int)(d.computed_ns / 1000));
}

/* A second factor replaces the first. */
static void a_factor_of_one_ends_it(void **context)
{
    const fixture *f = *context;
    device_stream_slow_down(f->stream, 1000);
    device_stream_slow_down(f->stream, 1);
    duration d = launch(f, f->stream);
    assert_true(d.computed_ns > 0 && d.wall_ns < 100 * d.computed_ns);
}

/* If the other streams were slow, they would sleep a second for each millisecond. */
static void other_streams_of_the_device_are_as_fast_as_before(void **context)
{
    const fixture *f = *context;
    device_stream_slow_down(f->stream, 1000);
    duration d = launch(f, f->other);
    assert_true(d.computed_ns > 0 && d.wall_ns < 100 * d.computed_ns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_launched_takes_the_factor_longer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_factor_of_one_ends_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(other_streams_of_the_device_are_as_fast_as_before, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
