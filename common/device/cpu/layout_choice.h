/* Which layout a parameter has: what the kernels of its operation want. */
#ifndef COMMON_DEVICE_CPU_LAYOUT_CHOICE_H
#define COMMON_DEVICE_CPU_LAYOUT_CHOICE_H

#include "common/device/cpu/layout.h"

status cpu_choose_layout(device *d, const op_desc *op, int slot, shape parameter, device_layout *out);

#endif
