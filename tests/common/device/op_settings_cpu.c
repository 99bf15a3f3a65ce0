#include "tests/common/device/op_devices.h"

const device_setting device_settings[DEVICE_SETTINGS] = {{"reference", 1, 0}, {"cpu", 1, 0}, {"cpu", 2, 0}};
const int device_setting_first = 0, device_setting_count = 3;
