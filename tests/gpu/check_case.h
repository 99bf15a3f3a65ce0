/* Compares one case on the device `cuda` with the reference. */
#ifndef TESTS_GPU_CHECK_CASE_H
#define TESTS_GPU_CHECK_CASE_H

#include "tests/common/device/op_case.h"
#include "tests/common/device/op_devices.h"

/* Runs the case `times` times on `d`, and once on the reference. Fails the test if a tensor differs by more
 * than `tolerance`. */
void check_case_on(device *d, const op_case *c, int times, double tolerance);

/* Opens the device of `setting`, and runs check_case_on() once. */
void check_case(const op_case *c, device_setting setting, double tolerance);

#endif
