/* The table of back ends: the one place that knows them all. */
#ifndef COMMON_DEVICE_REGISTRY_H
#define COMMON_DEVICE_REGISTRY_H

#include "common/device/device_impl.h"

/* Finds the back end of `name` ("cpu", "sim:PROFILE" by its part before the colon). STATUS_USAGE names
 * what was found and what is allowed. */
status device_find_backend(const char *name, const device_backend **out);

#endif
