/* The interface of a back end, only for implementers of devices. Other code includes device.h.
 *
 * A back end is one const struct with every slot set, except for slots whose comments allow NULL. A back
 * end's structs begin with the structs below. device.c allocates devices, streams and fences. It sets all
 * members of the structs below except for device.info, and then calls the open function. It calls the close
 * function before it frees the memory, also if the open function has failed. */
#ifndef COMMON_DEVICE_DEVICE_IMPL_H
#define COMMON_DEVICE_DEVICE_IMPL_H

#include "common/device/device.h"

/* Disables this warning, because many functions of an interface do not use all of their parameters. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* A recorded graph of launches. */
typedef struct device_graph {
    device *device;
} device_graph;

typedef struct device_backend {
    const char *name;
    /* Opens a module and sets *backend to the back end of this module, which replaces the present one. `load`
     * is NULL if the back end needs no module. */
    status (*load)(const struct device_backend **backend);
    size_t device_bytes, stream_bytes, fence_bytes;
    status (*open)(device *d);
    void (*close)(device *d); /* NULL if there is nothing to do */

    status (*allocate)(device *d, device_memory_kind kind, size_t bytes, device_memory *out);
    void (*free)(device *d, device_memory *memory);
    /* `pin` and `unpin` are NULL if pinning host memory has no effect. */
    status (*pin)(device *d, void *data, size_t bytes);
    void (*unpin)(device *d, void *data);
    status (*upload)(device_stream *s, void *to, const void *host, dtype host_type, dtype type,
                     int64_t count);
    status (*download)(device_stream *s, void *host, const void *from, dtype type, dtype host_type,
                       int64_t count);

    status (*convert)(device_stream *s, void *to, dtype to_type, const void *from, dtype from_type,
                      int64_t count, double divisor);
    status (*pack)(device_stream *s, const device_range *ranges, int count, dtype to_type, dtype from_type,
                   double divisor);
    status (*add)(device_stream *s, void *to, const void *a, const void *b, dtype type, int64_t count);
    /* `copy_from` is NULL if `convert` reaches the memory of other devices. */
    status (*copy_from)(device_stream *s, const device *from, dtype type, int64_t count);
    status (*clear)(device_stream *s, void *data, size_t bytes);
    status (*usage)(device *d, int64_t *used_bytes, int64_t *total_bytes); /* NULL if there is no driver */

    status (*enable_peer)(device *d, const device *owner); /* NULL if there is nothing to enable */

    /* Changes `out`, which describes PyTorch's order, if the kernels need the weights of a convolution in a
     * different order. */
    void (*choose_layout)(device *d, const conv2d_attributes *a, device_layout *out);

    /* If `prepare` fails, *out is NULL, or a kernel that device.c releases. */
    status (*prepare)(device *d, const op_desc *op, const device_layout *layout, device_kernel **out);
    void (*release)(device_kernel *kernel);
    status (*launch)(device_stream *s, device_kernel *kernel, void *const *operands,
                     const op_scalars *scalars, void *workspace);

    /* The next four functions are NULL if there is nothing to do. */
    status (*stream_open)(device_stream *s);
    void (*stream_close)(device_stream *s);
    status (*fence_open)(device_fence *f);
    void (*fence_close)(device_fence *f);
    status (*stream_signal)(device_stream *s, device_fence *f, uint64_t value);
    status (*stream_wait)(device_stream *s, device_fence *f, uint64_t value);
    status (*stream_synchronize)(device_stream *s);
    void (*stream_slow_down)(device_stream *s, double factor); /* NULL if launching threads sleep instead */

    void (*fence_reach)(device_fence *f, uint64_t value);
    bool (*fence_reached)(device_fence *f, uint64_t value);
    void (*fence_fail)(device_fence *f, const error_record *error);

    /* The next four functions are NULL if the device cannot record. */
    status (*capture_begin)(device_stream *s);
    status (*capture_end)(device_stream *s, device_graph **out);
    status (*graph_launch)(device_stream *s, device_graph *graph);
    void (*graph_close)(device_graph *graph);

    /* The next four functions are NULL if launches are synchronous, and on virtual devices. */
    status (*stream_wait_mark)(device_stream *s, device_stream *of, int slot);
    bool (*mark_passed)(device_stream *s, int slot);
    status (*mark_wait)(device_stream *s, int slot);
    void (*fail)(device *d, const error_record *error);

    status (*mark)(device_stream *s, int slot);
    int64_t (*mark_ns)(device_stream *s, int slot);
    int64_t (*mark_slowed_ns)(device_stream *s, int slot); /* NULL if the device does not know the time */
    int64_t (*now_ns)(device *d);
} device_backend;

/* Declares the function PREFIX_NAME for the slot NAME. */
#define DEVICE_FUNCTION(prefix, name) __typeof__(*((const device_backend *)0)->name) prefix##_##name;

struct device {
    const device_backend *backend;
    device_config config;
    device_info info;
    device_idle_function idle;
    void *idle_context;
    bool refused; /* true if an allocation of this device has failed */
};

struct device_stream {
    device *device;
    device_stream_role role;
    device_record *record; /* the record, or NULL unless launches are recorded or replayed */
    double stretch;        /* factor of device_stream_slow_down() minus 1; 0 if the stream is not slow */
    int64_t debt_ns;       /* time that the launching thread still has to sleep */
};

struct device_fence {
    device *device;
};

struct device_kernel {
    device *device;
    op_desc op;
    size_t workspace;
};

#define DEVICE_DECLARE(name, option) extern const device_backend device_##name;
DEVICE_LIST(DEVICE_DECLARE)
#undef DEVICE_DECLARE
extern const device_backend device_plan;

/* Opens a device of the back end. device_open() finds the back end by its name. */
status device_open_backend(const device_backend *backend, const device_config *config, device **out);

#endif
