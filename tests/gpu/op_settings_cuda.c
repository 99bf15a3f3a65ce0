#include "tests/common/device/op_devices.h"

const device_setting device_settings[DEVICE_SETTINGS] = {{"reference", 1, 0}, {"cuda", 1, 0}};
const int device_setting_first = 1, device_setting_count = 2;
