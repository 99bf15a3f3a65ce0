/* Tests the fit of a straight line through the times of messages of several sizes. */
#include "harness/report/fit.h"
#include "tests/support/check.h"

#include <math.h>

static void a_line_without_noise_is_found_exactly(void **state)
{
    (void)state;
    const double bytes[] = {1e3, 1e4, 1e5, 1e6}, latency = 2e-3, bandwidth = 5e7;
    double seconds[4];
    line_fit f;
    for (int i = 0; i < 4; i++) seconds[i] = latency + bytes[i] / bandwidth;
    assert_int_equal(fit_line(bytes, seconds, 4, &f), STATUS_OK);
    assert_true(fabs(f.latency_s - latency) < 1e-12);
    assert_true(fabs(f.bandwidth_bytes_per_s - bandwidth) < 1);
    assert_true(f.r_squared > 0.999999);
    assert_int_equal(f.points, 4);
}

static void intervals_hold_the_truth_and_shrink_with_more_points(void **state)
{
    (void)state;
    const double latency = 1e-3, bandwidth = 1e8;
    double bytes[40], seconds[40], width[2];
    for (int k = 0; k < 2; k++) {
        int count = k ? 40 : 8;
        line_fit f;
        for (int i = 0; i < count; i++) {
            bytes[i] = 1000.0 * (1 + i % 8) * (1 + i % 8) * (1 + i % 8) * (1 + i % 8);
            seconds[i] = (latency + bytes[i] / bandwidth) * (1 + (i % 3 - 1) * 0.02);
        }
        assert_int_equal(fit_line(bytes, seconds, count, &f), STATUS_OK);
        assert_true(f.latency_interval.low < latency && latency < f.latency_interval.high);
        assert_true(f.bandwidth_interval.low < bandwidth && bandwidth < f.bandwidth_interval.high);
        width[k] = f.latency_interval.high - f.latency_interval.low;
    }
    assert_true(width[1] < width[0]);
}

static void two_sizes_equal_sizes_and_times_of_zero_are_refused(void **state)
{
    (void)state;
    const double bytes[] = {1, 2, 3}, equal[] = {4, 4, 4}, seconds[] = {1, 2, 3}, zero[] = {1, 0, 3};
    line_fit f;
    assert_int_equal(fit_line(bytes, seconds, 2, &f), STATUS_CONFIG);
    error_clear();
    assert_int_equal(fit_line(equal, seconds, 3, &f), STATUS_CONFIG);
    error_clear();
    assert_int_equal(fit_line(bytes, zero, 3, &f), STATUS_CONFIG);
    error_clear();
}

static void times_that_do_not_grow_have_no_upper_bandwidth(void **state)
{
    (void)state;
    const double bytes[] = {1, 2, 3, 4}, seconds[] = {1, 1, 1, 1};
    line_fit f;
    assert_int_equal(fit_line(bytes, seconds, 4, &f), STATUS_OK);
    assert_true(isinf(f.bandwidth_bytes_per_s) && isinf(f.bandwidth_interval.high));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_without_noise_is_found_exactly),
        cmocka_unit_test(intervals_hold_the_truth_and_shrink_with_more_points),
        cmocka_unit_test(two_sizes_equal_sizes_and_times_of_zero_are_refused),
        cmocka_unit_test(times_that_do_not_grow_have_no_upper_bandwidth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
