/* The planning device: where only the ledger moves.
 *
 * "plan:NAME" takes layouts and kernels from the device NAME, so that arenas and workspace have the sizes that
 * they have there. Memory is address space without pages, an operation and a copy do nothing, and whoever
 * waits goes on at once. */
#ifndef COMMON_DEVICE_PLAN_PLAN_H
#define COMMON_DEVICE_PLAN_PLAN_H

#include "common/device/device_impl.h"

extern const device_backend device_plan;

#endif
