/* The inside of a recorder. For this folder only. */
#ifndef COMMON_TRACE_TRACE_IMPL_H
#define COMMON_TRACE_TRACE_IMPL_H

#include "common/trace/trace.h"

#include <stdatomic.h>

typedef enum trace_kind { TRACE_SLICE, TRACE_ASYNC, TRACE_FLOW, TRACE_MEMORY } trace_kind;

typedef struct trace_event {
    trace_kind kind;
    int32_t track; /* of slices and flows */
    const char *name;
    int64_t index, id, begin_ns, end_ns; /* flows: index is the point; memory: end_ns is bytes */
} trace_event;

struct trace {
    trace_event *events;
    int64_t capacity;
    atomic_bool on;
    _Atomic int64_t count; /* asked for, also beyond the capacity */
};

#endif
