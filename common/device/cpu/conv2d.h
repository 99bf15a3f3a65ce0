/* Convolutions are computed in one of three ways:
 *   product  1x1 kernels: one matrix product, behind a gathering of pixels where the stride is not 1;
 *   points   outputs of few points: one product for every point and row of taps, so that only taps that
 *            meet the image are computed;
 *   winograd 3x3 kernels with a stride of 1 on whole tiles of outputs and many channels: fewer
 * multiplications; direct   all others: oneDNN's convolutions. The way depends on the shape of an image and
 * of the kernel alone, never on the batch, and the weights' layout on the forward pass's way: ranks with
 * unequal batches share arenas. docs/kernels-cpu.md has the measurements. */
#ifndef COMMON_DEVICE_CPU_CONV2D_H
#define COMMON_DEVICE_CPU_CONV2D_H

#include "common/device/cpu/kernel.h"
#include "common/device/cpu/layout.h"

typedef enum conv2d_way { CONV2D_PRODUCT, CONV2D_POINTS, CONV2D_WINOGRAD, CONV2D_DIRECT } conv2d_way;

typedef enum conv2d_pass { CONV2D_FORWARD, CONV2D_BACKWARD_DATA, CONV2D_BACKWARD_WEIGHTS } conv2d_pass;

conv2d_way conv2d_choose(const conv2d_attributes *a, conv2d_pass pass);

/* The tensors of any pass; w, x, y are the gradients where the pass computes those. */
typedef struct conv2d_operands {
    float *x, *w, *b, *y;
    bool add; /* backward_weights: to the gradient that is there */
} conv2d_operands;

/* ---- products (weights in layout HWIO) -------------------------------------------------------- */

size_t conv2d_product_workspace(const host_kernel *kernel, conv2d_pass pass);
void conv2d_product_run(const host_kernel *kernel, conv2d_pass pass, const conv2d_operands *o,
                        void *workspace);

/* ---- points (weights in layout HWIO) ---------------------------------------------------------- */

size_t conv2d_points_workspace(const conv2d_attributes *a, conv2d_pass pass);
void conv2d_points_run(const host_kernel *kernel, conv2d_pass pass, const conv2d_operands *o,
                       void *workspace);

/* ---- winograd (weights in layout BLOCKED) ------------------------------------------------------ */

/* Forward and with respect to x. */
size_t conv2d_winograd_workspace(const host_kernel *kernel, conv2d_pass pass);
void conv2d_winograd_run(const host_kernel *kernel, conv2d_pass pass, const cpu_layout *layout,
                         const conv2d_operands *o, void *workspace);

size_t conv2d_winograd_weights_workspace(const host_kernel *kernel);
void conv2d_winograd_weights_run(const host_kernel *kernel, const cpu_layout *layout,
                                 const conv2d_operands *o, void *workspace);

/* ---- direct (weights in layout HWIO or BLOCKED) ----------------------------------------------- */

typedef struct conv2d_direct conv2d_direct;

status conv2d_direct_open(cpu_device *d, const conv2d_attributes *a, conv2d_pass pass,
                          const cpu_layout *layout, conv2d_direct **out);
void conv2d_direct_close(conv2d_direct **direct);
size_t conv2d_direct_workspace(const conv2d_direct *direct);
/* `o->add` needs the workspace to hold the gradient, and so do backward_weights' other layouts. */
void conv2d_direct_run(const host_kernel *kernel, conv2d_direct *direct, const conv2d_operands *o,
                       void *workspace);

#endif
