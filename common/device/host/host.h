/* Functions shared by the back ends in host memory (cpu, reference): memory (host_memory.c), streams that
 * are the calling thread, fences on a futex, the clock (host_stream.c), and kernels (host_kernel.c). */
#ifndef COMMON_DEVICE_HOST_HOST_H
#define COMMON_DEVICE_HOST_HOST_H

#include "common/device/device_impl.h"

/* Allocates PRIVATE memory with mmap and SHARED memory with a memfd. Private memory is zeroed and touched,
 * so that a step has no page faults; if it is large, huge pages are requested. */
status host_allocate(device *d, device_memory_kind kind, size_t bytes, device_memory *out);
void host_free(device *d, device_memory *memory);

/* Copies between host and device elements: equal types, or float32 and float64. */
status host_upload(device_stream *s, void *to, const void *host, dtype host_type, dtype type, int64_t count);
status host_download(device_stream *s, void *host, const void *from, dtype type, dtype host_type,
                     int64_t count);

/* Computes with the kernels of common/reduce. Does nothing on a device without bytes. */
status host_convert(device_stream *s, void *to, dtype to_type, const void *from, dtype from_type,
                    int64_t count, double divisor);
status host_pack(device_stream *s, const device_range *ranges, int count, dtype to_type, dtype from_type,
                 double divisor);
status host_add(device_stream *s, void *to, const void *a, const void *b, dtype type, int64_t count);
status host_clear(device_stream *s, void *data, size_t bytes);
status host_usage(device *d, int64_t *used_bytes, int64_t *total_bytes);

void host_keep_layout(device *d, const conv2d_attributes *a, device_layout *out);

status host_stream_open(device *d, device_stream_role role, device_stream **out);
void host_stream_close(device_stream *s);
status host_stream_signal(device_stream *s, device_fence *f, uint64_t value);
status host_stream_wait(device_stream *s, device_fence *f, uint64_t value);
status host_stream_synchronize(device_stream *s);

status host_fence_open(device *d, device_fence **out);
void host_fence_close(device_fence *f);
void host_fence_reach(device_fence *f, uint64_t value);
bool host_fence_reached(device_fence *f, uint64_t value);
void host_fence_fail(device_fence *f, const error_record *error);

status host_mark(device_stream *s, int slot);
int64_t host_mark_ns(device_stream *s, int slot);
int64_t host_now_ns(device *d);

/* Returns the number of processors on which this process may run. */
int host_processors(void);

typedef struct host_kernel host_kernel;

typedef struct host_call {
    const host_kernel *kernel;
    const op_desc *op; /* description in `kernel` */
    void *const *operands;
    const op_scalars *scalars; /* may be NULL */
    void *workspace;
} host_call;

typedef struct host_kernel_entry {
    void (*run)(const host_call *call);
    /* These may be NULL. `open` may set the kernel's state. `workspace` returns bytes. */
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
void host_release(device_kernel *kernel);
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

/* Copies rows [first, end), or all rows, in either direction of a concatenation. Elements have any type. */
void host_concat_rows(const host_call *call, int64_t first, int64_t end);
void host_concat(const host_call *call);

/* Slots for back ends that compute in host memory or do not compute. */
#define HOST_SHARED_SLOTS .convert = host_convert, .add = host_add, .clear = host_clear, .usage = host_usage

/* Slots for streams and fences. */
#define HOST_STREAM_SLOTS                                                                                    \
    .stream_open = host_stream_open, .stream_close = host_stream_close, .stream_signal = host_stream_signal, \
    .stream_synchronize = host_stream_synchronize, .fence_open = host_fence_open,                            \
    .fence_close = host_fence_close, .fence_reach = host_fence_reach, .fence_fail = host_fence_fail,         \
    .mark = host_mark

/* Slots of a back end in host memory, except for opening, layouts and kernels. */
#define HOST_BACKEND_SLOTS                                                                                   \
    HOST_SHARED_SLOTS, HOST_STREAM_SLOTS,                                                                    \
        .allocate = host_allocate, .free = host_free, .upload = host_upload, .download = host_download,      \
        .pack = host_pack, .stream_wait = host_stream_wait, .fence_reached = host_fence_reached,             \
        .mark_ns = host_mark_ns, .now_ns = host_now_ns, .release = host_release

#endif
