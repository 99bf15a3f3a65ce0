/* One case on the device `cuda` and on the reference. */
#ifndef TESTS_GPU_CHECK_CASE_H
#define TESTS_GPU_CHECK_CASE_H

#include "tests/common/device/op_case.h"
#include "tests/common/device/op_devices.h"

/* Runs the case `times` times on `d`, and once on the reference; fails the test where a tensor differs by
 * more. */
void check_case_on(device *d, const op_case *c, int times, double tolerance);

/* The same once on a device that is opened for it. */
void check_case(const op_case *c, device_setting setting, double tolerance);

#endif
