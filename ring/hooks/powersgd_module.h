/* PowerSGD's steps on a GPU, in libpsring_cuda.so. Matrices are in device memory. The columns of m, error and
 * q are in the order of the device's layout. All work is in stream order. Sums are computed in an order that
 * depends only on the shape. This order differs from the order on a CPU. */
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

/* Fails with STATUS_UNAVAILABLE if there is no module of this version. */
status powersgd_module_open(const powersgd_module **out);

/* Does the work of powersgd_start() for a matrix on a GPU, whose columns are in the order of `layout`.
 * Returns when the work is done. `scratch` is host memory for three matrices of this size. */
status powersgd_start_on_device(device *d, device_stream *s, const powersgd_matrix *x, int rank,
                                const char *name, const device_layout *layout, float *scratch);

#endif
