/* PowerSGD's steps on a GPU, in libpsring_cuda.so. Matrices lie in device memory, in whatever order of
 * columns the device has for them: m, error and q have the same one. Everything is in stream order. Sums are
 * computed in an order that depends only on the shape; it differs from the CPU's. */
#ifndef RING_HOOKS_POWERSGD_MODULE_H
#define RING_HOOKS_POWERSGD_MODULE_H

#include "common/device/device.h"
#include "ring/hooks/powersgd.h"

enum { POWERSGD_MODULE_VERSION = 1 };
#define POWERSGD_MODULE_SYMBOL "psring_powersgd_module"

typedef struct powersgd_module {
    int version;
    status (*project)(device_stream *s, const powersgd_matrix *x, int rank);
    status (*back_project)(device_stream *s, const powersgd_matrix *x, int rank);
    status (*restore)(device_stream *s, const powersgd_matrix *x, int rank);
} powersgd_module;

/* STATUS_UNAVAILABLE if there is no module of this version. */
status powersgd_module_open(const powersgd_module **out);

/* powersgd_start() for a matrix on a GPU, whose columns lie as `layout` has them; returns when it is done.
 * `scratch` has room for three matrices on the host; the factors are smaller than the matrix. */
status powersgd_start_on_device(device *d, device_stream *s, const powersgd_matrix *x, int rank,
                                const char *name, const device_layout *layout, float *scratch);

#endif
