/* The virtual device `sim:PROFILE`: device_sim.h says what it is. */
#ifndef COMMON_DEVICE_SIM_SIM_H
#define COMMON_DEVICE_SIM_SIM_H

#include "common/device/device_impl.h"

extern const device_backend device_sim;

#endif
