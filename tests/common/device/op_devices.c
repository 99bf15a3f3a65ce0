#include "tests/common/device/op_devices.h"

#include "tests/common/device/op_runner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

device *device_setting_open(device_setting setting)
{
    device_config config = {.name = setting.name,
                            .world = 1,
                            .threads = setting.threads,
                            .precision = setting.precision,
                            .benchmark = getenv("OP_BENCHMARK") != NULL};
    device *d = NULL;
    status rc = device_open(&config, &d);
    if (rc == STATUS_UNAVAILABLE) {
        error_clear();
        skip();
    }
    must(rc);
    return d;
}
