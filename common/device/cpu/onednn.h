/* oneDNN's C interface, version 2 or 3, with this project's error codes. Running a primitive allocates no
 * memory. Only onednn.c depends on the version. */
#ifndef COMMON_DEVICE_CPU_ONEDNN_H
#define COMMON_DEVICE_CPU_ONEDNN_H

#include "common/base/status.h"

#include <oneapi/dnnl/dnnl.h>

#include <stdbool.h>

/* Converts a oneDNN status. Fails with STATUS_SYSTEM if memory ran out, else with STATUS_INTERNAL and
 * "oneDNN: WHAT: TEXT". */
status onednn_check(dnnl_status_t rc, const char *what);

typedef struct onednn_tensor {
    int rank; /* 0 if the tensor is absent */
    dnnl_dims_t dims;
    dnnl_data_type_t type;
    dnnl_format_tag_t tag; /* dnnl_format_tag_any if oneDNN chooses the layout */
} onednn_tensor;

typedef struct onednn_convolution {
    dnnl_prop_kind_t pass;    /* dnnl_forward_training, dnnl_backward_data or dnnl_backward_weights */
    onednn_tensor x, w, b, y; /* only the forward pass uses b */
    dnnl_dims_t strides, padding;
} onednn_convolution;

/* Creates the description of a primitive whose scratchpad the caller provides. A backward pass needs the
 * forward pass's description as `hint`. */
status onednn_convolution_desc(dnnl_engine_t engine, const onednn_convolution *c,
                               const_dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *out);

/* A primitive and its arguments, of which the last one is the scratchpad. The caller zeroes the struct before
 * onednn_primitive_open() or onednn_reorder_open(), and closes the primitive even if the call fails. */
enum { ONEDNN_MAX_ARGUMENTS = 5 };
typedef struct onednn_primitive {
    dnnl_primitive_t primitive;
    int count;
    dnnl_exec_arg_t arguments[ONEDNN_MAX_ARGUMENTS];
    size_t scratchpad_bytes;
} onednn_primitive;

/* `arguments` [count] lists oneDNN's DNNL_ARG_* constants, without the scratchpad. */
status onednn_primitive_open(dnnl_engine_t engine, const_dnnl_primitive_desc_t desc, int count,
                             const int *arguments, onednn_primitive *out);
void onednn_primitive_close(onednn_primitive *p);

/* Ends the process if a run has failed: with abort() if memory ran out, else with an assertion. */
void onednn_expect(dnnl_status_t rc);

/* Runs the primitive. `data` has a pointer for each argument. A failure ends the process like
 * onednn_expect(). */
void onednn_primitive_run(const onednn_primitive *p, dnnl_stream_t stream, const void *const *data);

/* Returns the size in bytes of an argument's tensor in the layout that oneDNN chose. */
size_t onednn_argument_bytes(const onednn_primitive *p, int index);

/* Opens a primitive that reorders argument `index` of `p` from the layout of `tensor` to the layout that
 * oneDNN chose, or in the other direction if `back`. The arguments of the reorder are source, destination,
 * scratchpad. Leaves `out` zeroed if the layouts are equal. */
status onednn_reorder_open(dnnl_engine_t engine, const onednn_primitive *p, int index,
                           const onednn_tensor *tensor, bool back, onednn_primitive *out);

#endif
