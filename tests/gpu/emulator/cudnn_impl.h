/* Declarations that the files of the emulated cuDNN share. */
#ifndef TESTS_GPU_EMULATOR_CUDNN_IMPL_H
#define TESTS_GPU_EMULATOR_CUDNN_IMPL_H

#include <cudnn.h>

struct emulated_cudnn {
    cudaStream_t stream;
};

struct emulated_tensor {
    cudnnDataType_t type;
    int n, c, h, w; /* For filters, these are k, c, r, s. */
};

struct emulated_convolution {
    int pad_h, pad_w, stride_h, stride_w;
    cudnnDataType_t compute;
    cudnnMathType_t math;
};

typedef enum direction { FORWARD, BACKWARD_DATA, BACKWARD_FILTER } direction;

/* A convolution that is enqueued, or recorded in a graph. */
typedef struct emulated_convolution_work {
    struct emulated_tensor x, w, y;
    struct emulated_convolution conv;
    void *data[3]; /* Addresses of x, w and y. */
    direction way;
    float alpha, beta;
} emulated_convolution_work;

/* Runs an emulated_convolution_work. */
void emulator_convolve(void *work);

#endif
