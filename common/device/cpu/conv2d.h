/* Convolutions, computed by one of four algorithms:
 *   gemm       For 1x1 kernels, and with AVX2 for most kernels whose stride is not 1. Gathers the inputs of
 *              each output pixel in a row, then multiplies matrices.
 *   per pixel  For few output pixels. Computes one small multiplication per output pixel and row of taps,
 *              only for taps inside the image.
 *   winograd   For 3x3 kernels with stride 1, whole tiles of outputs and many channels. Needs fewer
 *              multiplications.
 *   direct     For all other convolutions. Calls oneDNN.
 *
 * The algorithm of the forward pass determines the layout of the weights. The algorithm depends on the shapes
 * of the image and the kernel, never on the batch, so ranks with unequal batches use the same layout.
 * docs/kernels-cpu.md has the reasons. */
#ifndef COMMON_DEVICE_CPU_CONV2D_H
#define COMMON_DEVICE_CPU_CONV2D_H

#include "common/device/cpu/kernel.h"

typedef enum conv2d_pass { CONV2D_FORWARD, CONV2D_BACKWARD_DATA, CONV2D_BACKWARD_WEIGHTS } conv2d_pass;

/* The tensors of a pass. In both backward passes, y holds dy. backward_data writes dx to x, and
 * backward_weights writes dw to w. */
typedef struct conv2d_operands {
    float *x, *w, *b, *y;
    bool add; /* backward_weights: true if the result is added to the existing gradient */
} conv2d_operands;

typedef struct conv2d_algorithm {
    size_t (*workspace)(const host_kernel *kernel);
    void (*run)(const host_kernel *kernel, const conv2d_operands *o, void *workspace);
} conv2d_algorithm;

/* Weights must be in order RSCK for gemm and per_pixel, and in BLOCKED for winograd. direct accepts both. */
extern const conv2d_algorithm conv2d_gemm, conv2d_per_pixel, conv2d_winograd, conv2d_direct;

typedef struct conv2d_primitive conv2d_primitive;
typedef struct conv2d_state {
    const conv2d_algorithm *algorithm;
    conv2d_pass pass;
    int64_t block;               /* number of channels per block in the weights' layout; 1 for RSCK */
    conv2d_primitive *primitive; /* NULL except for `direct` */
    size_t bias_offset;          /* offset in the workspace of the bias sums of backward_weights */
} conv2d_state;

static inline const conv2d_state *conv2d_state_of(const host_kernel *kernel)
{
    return kernel->state;
}

void conv2d_choose_layout(device *d, const conv2d_attributes *a, device_layout *out);

bool conv2d_winograd_pays(const conv2d_attributes *a);

status conv2d_primitive_open(const host_kernel *kernel, conv2d_primitive **out);
void conv2d_primitive_close(conv2d_primitive **primitive);

#endif
