/* The devices on which operation tests run, besides the reference. */
#ifndef TESTS_COMMON_DEVICE_OP_DEVICES_H
#define TESTS_COMMON_DEVICE_OP_DEVICES_H

#include "common/device/device.h"

typedef struct device_setting {
    const char *name;
    int threads;
    int precision; /* device_precision */
} device_setting;

/* The reference first, then the devices under test: the cpu with one thread and with two, or cuda
 * (tests/gpu), whichever the program was linked with. What the reference must do itself is tested next to the
 * cpu: there device_setting_first is 0, elsewhere 1. */
enum { DEVICE_SETTINGS = 3 };
extern const device_setting device_settings[DEVICE_SETTINGS];
extern const int device_setting_first, device_setting_count;

/* Opens it for rank 0 of 1, with device_config.benchmark where the environment has OP_BENCHMARK. A device
 * that this machine lacks (STATUS_UNAVAILABLE) skips the test, any other failure ends it. */
device *device_setting_open(device_setting setting);

#endif
