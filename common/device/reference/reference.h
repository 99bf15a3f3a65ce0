/* The reference back end: double precision, plain loops, one thread, parameters in PyTorch's layout.
 * Obviously right and slow: the oracle of every other back end. */
#ifndef COMMON_DEVICE_REFERENCE_REFERENCE_H
#define COMMON_DEVICE_REFERENCE_REFERENCE_H

#include "common/device/device_impl.h"

extern const device_backend device_reference;

#endif
