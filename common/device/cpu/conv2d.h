/* Convolutions, by one of four algorithms:
 *   gemm       1x1 kernels, and with AVX2 most strides: matrix multiplications, after a gathering of what
 *              taps meet;
 *   per pixel  outputs of few pixels: one small multiplication per output pixel and row of taps, so that
 *              only taps that meet the image are computed;
 *   winograd   3x3 kernels with a stride of 1, whole tiles of outputs and many channels: fewer
 *              multiplications;
 *   direct     all others: oneDNN's convolutions.
 * The algorithm depends on the shape of an image and of the kernel, never on the batch, and the weights'
 * layout on the forward pass's algorithm: ranks with unequal batches share arenas. docs/kernels-cpu.md has
 * the reasons. */
#ifndef COMMON_DEVICE_CPU_CONV2D_H
#define COMMON_DEVICE_CPU_CONV2D_H

#include "common/device/cpu/kernel.h"

/* In the order of the operations. */
typedef enum conv2d_pass { CONV2D_FORWARD, CONV2D_BACKWARD_DATA, CONV2D_BACKWARD_WEIGHTS } conv2d_pass;

/* The tensors of any pass; w, x, y are the gradients where the pass computes those. */
typedef struct conv2d_operands {
    float *x, *w, *b, *y;
    bool add; /* backward_weights: to the gradient that is there */
} conv2d_operands;

typedef struct conv2d_algorithm {
    size_t (*workspace)(const host_kernel *kernel);
    void (*run)(const host_kernel *kernel, const conv2d_operands *o, void *workspace);
} conv2d_algorithm;

/* Each in its own file. The weights of the first two are in the order RSCK, Winograd's in BLOCKED, those of
 * `direct` in either. */
extern const conv2d_algorithm conv2d_gemm, conv2d_per_pixel, conv2d_winograd, conv2d_direct;

/* A kernel's state. */
typedef struct conv2d_primitive conv2d_primitive;
typedef struct conv2d_state {
    const conv2d_algorithm *algorithm;
    conv2d_pass pass;
    int64_t block;               /* of channels in the weights' layout; 1: RSCK */
    conv2d_primitive *primitive; /* of `direct`, else NULL */
    size_t bias_offset;          /* backward_weights: of the bias's sums in the workspace */
} conv2d_state;

static inline const conv2d_state *conv2d_state_of(const host_kernel *kernel)
{
    return kernel->state;
}

/* The back end's slot. */
void conv2d_choose_layout(device *d, const conv2d_attributes *a, device_layout *out);

bool conv2d_winograd_pays(const conv2d_attributes *a);

/* oneDNN's convolution. */
status conv2d_primitive_open(const host_kernel *kernel, conv2d_primitive **out);
void conv2d_primitive_close(conv2d_primitive **primitive);

#endif
