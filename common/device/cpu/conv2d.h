/* Convolutions, by one of four algorithms:
 *   gemm       1x1 kernels: one matrix multiplication, after a gathering of pixels where the stride is not 1;
 *   per pixel  outputs of few pixels: one small multiplication per output pixel and row of taps, so that only taps
 *              that meet the image are computed;
 *   winograd   3x3 kernels with a stride of 1, whole tiles of outputs and many channels: fewer multiplications;
 *   direct     all others: oneDNN's convolutions.
 * The algorithm depends on the shape of an image and of the kernel, never on the batch, and the weights' layout on the
 * forward pass's algorithm: ranks with unequal batches share arenas. docs/kernels-cpu.md has the measurements. */
#ifndef COMMON_DEVICE_CPU_CONV2D_H
#define COMMON_DEVICE_CPU_CONV2D_H

#include "common/device/cpu/kernel.h"
#include "common/device/cpu/layout.h"

typedef enum conv2d_algorithm { CONV2D_GEMM, CONV2D_PER_PIXEL, CONV2D_WINOGRAD, CONV2D_DIRECT } conv2d_algorithm;

typedef enum conv2d_pass { CONV2D_FORWARD, CONV2D_BACKWARD_DATA, CONV2D_BACKWARD_WEIGHTS } conv2d_pass;

conv2d_algorithm conv2d_choose(const conv2d_attributes *a, conv2d_pass pass);

/* The tensors of any pass; w, x, y are the gradients where the pass computes those. */
typedef struct conv2d_operands {
    float *x, *w, *b, *y;
    bool add; /* backward_weights: to the gradient that is there */
} conv2d_operands;

/* ---- gemm: conv2d_gemm_cpu.c; weights in layout HWIO ------------------------------------------ */

size_t conv2d_gemm_workspace(const host_kernel *kernel, conv2d_pass pass);
void conv2d_gemm_run(const host_kernel *kernel, conv2d_pass pass, const conv2d_operands *o, void *workspace);

/* ---- per pixel: conv2d_per_pixel_cpu.c; weights in layout HWIO -------------------------------- */

size_t conv2d_per_pixel_workspace(const conv2d_attributes *a, conv2d_pass pass);
void conv2d_per_pixel_run(const host_kernel *kernel, conv2d_pass pass, const conv2d_operands *o, void *workspace);

/* ---- winograd: conv2d_winograd_cpu.c; weights in layout BLOCKED ------------------------------- */

bool conv2d_winograd_pays(const conv2d_attributes *a);

size_t conv2d_winograd_workspace(const host_kernel *kernel, conv2d_pass pass);
void conv2d_winograd_run(const host_kernel *kernel, conv2d_pass pass, const cpu_layout *layout,
                         const conv2d_operands *o, void *workspace);

/* ---- direct: conv2d_direct_cpu.c; weights in layout HWIO or BLOCKED --------------------------- */

typedef struct conv2d_direct conv2d_direct;

status conv2d_direct_open(cpu_device *d, const conv2d_attributes *a, conv2d_pass pass,
                          const cpu_layout *layout, conv2d_direct **out);
void conv2d_direct_close(conv2d_direct **direct);
size_t conv2d_direct_workspace(const conv2d_direct *direct);
void conv2d_direct_run(const host_kernel *kernel, conv2d_direct *direct, const conv2d_operands *o, void *workspace);

#endif
