/* oneDNN's C interface with our errors and without allocation in a run. */
#ifndef COMMON_DEVICE_CPU_ONEDNN_H
#define COMMON_DEVICE_CPU_ONEDNN_H

#include "common/base/status.h"

#include <oneapi/dnnl/dnnl.h>

#include <stdbool.h>

/* STATUS_SYSTEM for lack of memory, else STATUS_INTERNAL: "oneDNN: WHAT: TEXT". */
status onednn_check(dnnl_status_t rc, const char *what);

/* Attributes of a primitive whose scratchpad is the caller's. */
status onednn_attributes(dnnl_primitive_attr_t *out);

/* A memory object whose data are set before each run. */
status onednn_memory(dnnl_engine_t engine, const dnnl_memory_desc_t *md, dnnl_memory_t *out);

/* A primitive that copies between layouts, or NULL where they are equal. */
typedef struct onednn_reorder {
    dnnl_primitive_t primitive;
    dnnl_memory_t from, to, scratchpad;
    size_t scratchpad_bytes;
} onednn_reorder;

status onednn_reorder_open(dnnl_engine_t engine, const dnnl_memory_desc_t *from, const dnnl_memory_desc_t *to,
                           onednn_reorder *out);
void onednn_reorder_close(onednn_reorder *reorder);
void onednn_reorder_run(const onednn_reorder *reorder, dnnl_stream_t stream, const float *from, float *to,
                        void *scratchpad);

/* Runs; a failure is a defect of ours and asserts. */
void onednn_execute(dnnl_primitive_t primitive, dnnl_stream_t stream, int count, const dnnl_exec_arg_t *args);
void onednn_point(dnnl_memory_t memory, const void *data);

#endif
