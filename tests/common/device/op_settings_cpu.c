#include "tests/common/device/op_devices.h"

const device_setting device_settings[DEVICE_SETTINGS] = {{"reference", 1}, {"cpu", 1}, {"cpu", 2}};
const int device_setting_count = 3;
