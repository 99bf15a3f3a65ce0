/* Functions shared by the back ends cpu and reference: memory (host_memory.c), streams whose work runs on the
 * calling thread, fences on a futex, the clock (host_stream.c), and kernels (host_kernel.c). */
#ifndef COMMON_DEVICE_HOST_HOST_H
#define COMMON_DEVICE_HOST_HOST_H

#include "common/base/doorbell.h"
#include "common/device/device_impl.h"

/* host_NAME implements the slot NAME of device_backend. */
#define HOST_SHARED(X) X(convert) X(clear) /* slots that back ends without computation use, too */
#define HOST_STREAMS(X) X(stream_signal) X(stream_synchronize) X(fence_reach) X(fence_fail) X(mark)
#define HOST_OTHERS(X)                                                                                       \
    X(allocate)                                                                                              \
    X(free)                                                                                                  \
    X(add) X(upload) X(download) X(pack) X(stream_wait) X(fence_reached) X(mark_ns) X(now_ns) X(release)
#define HOST_DECLARE(name) DEVICE_FUNCTION(host, name)
HOST_SHARED(HOST_DECLARE)
HOST_STREAMS(HOST_DECLARE)
HOST_OTHERS(HOST_DECLARE)
#undef HOST_DECLARE
#define HOST_SLOT(name) .name = host_##name,
#define HOST_STREAM_SLOTS                                                                                    \
    HOST_STREAMS(HOST_SLOT).stream_bytes = sizeof(host_stream), .fence_bytes = sizeof(host_fence)
/* Initializes the slots that cpu and reference share. These are all slots except for opening, layouts and
 * kernels. */
#define HOST_BACKEND_SLOTS HOST_SHARED(HOST_SLOT) HOST_OTHERS(HOST_SLOT) HOST_STREAM_SLOTS

typedef struct host_stream {
    device_stream base;
    int64_t marks[DEVICE_MARKS];
} host_stream;

typedef struct host_fence {
    device_fence base;
    _Atomic uint64_t value;
    doorbell moved;
    atomic_bool failing; /* set by the thread that writes `error` */
    atomic_bool failed;  /* set after `error` is written */
    error_record error;
} host_fence;

void host_keep_layout(device *d, const conv2d_attributes *a, device_layout *out);

/* Returns the number of processors on which this process may run. */
int host_processors(void);

typedef struct host_kernel host_kernel;

typedef struct host_call {
    const host_kernel *kernel;
    const op_desc *op; /* description of the operation, which is stored in `kernel` */
    void *const *operands;
    const op_scalars *scalars; /* NULL if the operation reads no scalars */
    void *workspace;
} host_call;

typedef struct host_kernel_entry {
    void (*run)(const host_call *call);
    /* The functions below may be NULL. `open` may set the kernel's state. `workspace` returns the size of the
     * workspace in bytes. */
    status (*open)(host_kernel *kernel, const device_layout *layout);
    void (*close)(host_kernel *kernel);
    size_t (*workspace)(const host_kernel *kernel);
} host_kernel_entry;

struct host_kernel {
    device_kernel base;
    const host_kernel_entry *entry;
    int threads;
    void *state;
};

status host_prepare(device *d, const op_desc *op, const device_layout *layout, const host_kernel_entry *entry,
                    device_kernel **out);
status host_launch(device_stream *s, device_kernel *kernel, void *const *operands, const op_scalars *scalars,
                   void *workspace);

static inline bool host_accumulates(const host_call *call)
{
    return call->op->accumulate || (call->scalars && call->scalars->accumulate);
}

static inline int64_t host_rows(const host_call *call, int64_t all)
{
    return call->scalars && call->scalars->rows > 0 ? call->scalars->rows : all;
}

/* Kernels of gather_rows and scatter_rows, for elements of any type. They run on one thread. */
void host_gather_rows(const host_call *call);
void host_scatter_rows(const host_call *call);

/* host_concat_rows() concatenates or splits rows [first, end), depending on the operation. host_concat() does
 * this for all rows. Elements may have any type. */
void host_concat_rows(const host_call *call, int64_t first, int64_t end);
void host_concat(const host_call *call);

#endif
