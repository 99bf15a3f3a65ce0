/* The devices on which the operation tests run. */
#ifndef TESTS_COMMON_DEVICE_OP_DEVICES_H
#define TESTS_COMMON_DEVICE_OP_DEVICES_H

#include "common/device/device.h"

typedef struct device_setting {
    const char *name;
    int threads;
    int precision; /* A device_precision. */
} device_setting;

/* The first setting is the reference device. The devices under test follow: the cpu with one thread and with
 * two, or cuda (tests/gpu), depending on the files that the program was linked with. Programs for the cpu
 * also test the reference device itself, so their device_setting_first is 0. For cuda it is 1. */
enum { DEVICE_SETTINGS = 3 };
extern const device_setting device_settings[DEVICE_SETTINGS];
extern const int device_setting_first, device_setting_count;

/* Opens the device for rank 0 of 1, with device_config.benchmark if OP_BENCHMARK is set in the environment.
 * Skips the test if this machine does not have the device (STATUS_UNAVAILABLE). Any other failure ends the
 * test. */
device *device_setting_open(device_setting setting);

#endif
