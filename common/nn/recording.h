/* The recorded times and memory of a training step, which replace the layers of a model. A recorded model
 * runs only on virtual devices: the engines exchange its parameters and gradients as they do for any model,
 * and a segment takes the time that was recorded. */
#ifndef COMMON_NN_RECORDING_H
#define COMMON_NN_RECORDING_H

#include <stdint.h>

/* A part of a pass. A segment ends where a gradient becomes ready, or where the next parameter is used for
 * the first time. */
typedef struct nn_segment {
    int64_t kernel_ns;  /* time in which the device computes */
    int64_t idle_ns;    /* time in which the device waits for its host */
    int64_t live_bytes; /* activations in memory after the segment */
    int64_t peak_bytes; /* most activations in memory within the segment; at least those before and after */
    /* Time of the arithmetic alone and of the memory traffic alone, as fractions of the kernels' time. They
     * say how much communication slows down the kernels (sim_parts in price.h). */
    float arithmetic, traffic;
    int *uses; /* [use_count] parameters that the segment reads, or whose gradients it writes */
    int use_count;
    int *ready; /* [ready_count] parameters whose gradients are ready after the segment, in this order */
    int ready_count;
} nn_segment;

typedef struct nn_recording {
    int64_t batch;     /* samples per rank and step */
    int64_t ranks;     /* ranks of the recorded job */
    int64_t update_ns; /* time in which one device updates all parameters, or 0 if it was not recorded */
    /* [segment_count] The first `forward_count` are the forward pass, the next `loss_count` the loss, and the
     * others the backward pass. `loss_count` is 0 if the forward pass contains the loss. */
    nn_segment *segments;
    int segment_count, forward_count, loss_count;
} nn_recording;

/* Returns the number of gradients that become ready. */
int nn_recording_gradients(const nn_recording *recording);

/* Frees the recording and its segments. `recording` may be NULL. */
void nn_recording_free(nn_recording *recording);

#endif
