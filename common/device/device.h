/* A device runs operations, holds memory, and tells the time.
 *
 * There are five back ends:
 *
 *   reference     double precision, plain loops
 *   cpu           float32 on several threads
 *   cuda          a GPU, through a module that is opened at run time
 *   sim:PROFILE   no tensor bytes; an operation advances virtual time
 *   plan:NAME     no bytes and no time: counts the memory that device NAME would use
 *
 * The model is CUDA's. Work is launched on streams, and streams wait for fences. On the CPU launches are
 * synchronous: an operation runs on the calling thread, and a wait blocks. On the virtual device a wait
 * blocks only the calling fiber (common/sim/fiber.h). Outside of a fiber, a wait that cannot complete yet
 * returns STATUS_AGAIN, and the caller repeats the call.
 *
 * A fence is a timeline: a number that only grows. Work after device_stream_wait(stream, fence, v) begins
 * when the fence has reached v. Fences are never reset, so one fence serves every step.
 *
 * A device belongs to one rank. Only the thread of this rank calls functions of the device, unless a comment
 * says otherwise.
 *
 * device_impl.h is the interface of a back end. device.c finds a back end by name, and layout.c reorders
 * parameters. Each back end has a folder. The back ends cpu and reference share the code in host/. */
#ifndef COMMON_DEVICE_DEVICE_H
#define COMMON_DEVICE_DEVICE_H

#include "common/base/status.h"
#include "common/ops/op.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(name, option) adds a device. The option --device OPTION selects the device. The device's variable and
 * library are called device_NAME, and its folder is common/device/NAME. The build reads this list, too.
 * `plan` is not in the list because no run trains on the planning device. */
#define DEVICE_LIST(X)                                                                                       \
    X(cpu, "cpu")                                                                                            \
    X(cuda, "cuda")                                                                                          \
    X(reference, "reference")                                                                                \
    X(sim, "sim:PROFILE")

typedef struct device device;
typedef struct device_stream device_stream;
typedef struct device_fence device_fence;
typedef struct device_kernel device_kernel;
typedef struct device_record device_record;

/* The type to which matrix multiplications round their factors if tensors are stored as float32. */
typedef enum device_precision {
    DEVICE_PRECISION_F32,
    DEVICE_PRECISION_TF32,
    DEVICE_PRECISION_BF16
} device_precision;

typedef struct device_config {
    const char *name; /* "cpu", "reference", "cuda", "sim:PROFILE" or "plan:NAME" */
    int rank, world;  /* rank that uses the device, and number of ranks */
    int local_rank;   /* number of the rank on its machine, which picks the GPU */
    int threads;      /* number of compute threads of this rank; at least 1 */
    void *simulation; /* simulation that all ranks share, or NULL if the device is not virtual */
    int precision;
    bool share_gpu; /* cuda: true if several ranks may use one GPU */
    bool benchmark; /* cuda: true if the device times the algorithms of cuDNN and cuBLASLt, and uses the
                       fastest */
} device_config;

/* Operations that run with slower kernels, because a library does not support them. There is one
 * device_fallback for each pair of a kind of operation and a reason. */
typedef struct device_fallback {
    op_kind kind;
    int64_t count;    /* number of operations of this kind that fell back for this reason */
    char shape[96];   /* shape of the first operation that fell back, for example "4x28x28x1 to 6, 5x5,
                         bfloat16" */
    char reason[96];  /* reason, for example "cuDNN: CUDNN_STATUS_NOT_SUPPORTED" */
    char instead[64]; /* method used instead, for example "multiplied in TF32" */
} device_fallback;

typedef struct device_info {
    const char *name;
    char description[128]; /* text such as "2 threads, AVX-512, oneDNN 2.6.3" */
    dtype compute_type;    /* type of parameters, activations and gradients */
    bool bf16;             /* true if activations and their gradients are stored as bfloat16 */
    bool host_addressable; /* true if the host may read and write device memory */
    bool copy_engine;      /* true if copies from the host may overlap with the compute stream */
    bool real;             /* true if tensors have bytes in memory */
    bool simulated;        /* true if times are predicted, which reports then say */
    /* Largest error so far in converting the time of a mark to the host's clock. Only GPUs set this field. */
    int64_t mark_error_ns;
    bool plans; /* true if the device only counts memory and runs no operation (plan/device_plan.c) */
    const device_fallback *fallbacks; /* [fallback_count] */
    int fallback_count;
} device_info;

status device_open(const device_config *config, device **out);
void device_close(device **d);
const device_info *device_get_info(const device *d);

/* ---- memory ----------------------------------------------------------------------------------- */

typedef enum device_memory_kind {
    DEVICE_MEMORY_PRIVATE,
    /* Like PRIVATE, but on a host-addressable device the memory is a memfd, which peers can map. */
    DEVICE_MEMORY_SHARED,
    DEVICE_MEMORY_STAGING /* host memory from which the device copies fast (pinned on cuda) */
} device_memory_kind;

typedef struct device_memory {
    void *data; /* start of the zeroed bytes: a device pointer on a GPU, and an address without memory on a
                   virtual device */
    size_t bytes;
    int fd; /* memfd if the memory is SHARED and the device is host-addressable, else -1 */
    device_memory_kind kind;
} device_memory;

/* Allocates zeroed memory that is aligned to at least 64 bytes, and to 2 MiB if it is large. Returns
 * STATUS_SYSTEM if there is not enough memory. The message then states the size. */
status device_allocate(device *d, device_memory_kind kind, size_t bytes, device_memory *out);
void device_free(device *d, device_memory *memory);

/* Returns true if an allocation has failed. */
bool device_has_refused(const device *d);

/* Pins `bytes` bytes of host memory, so that the device copies from and to `data` fast and asynchronously.
 * Does nothing if the device cannot use pinned memory. Unpin before freeing the memory. */
status device_pin(device *d, void *data, size_t bytes);
void device_unpin(device *d, void *data);

/* Copies `count` elements in stream order. Host elements are float32, or int32 for targets and tokens. Device
 * elements have the type `type`. Values are converted if the two types differ. The host memory must stay
 * valid until the stream has completed the copy. */
status device_upload(device_stream *s, void *to, const void *host, dtype host_type, dtype type,
                     int64_t count);
status device_download(device_stream *s, void *host, const void *from, dtype type, dtype host_type,
                       int64_t count);

/* Computes to[i] = from[i] / divisor in stream order, with a true division. Elements may have any type if the
 * types are equal and the divisor is 1. Otherwise the types must be float32, float16 or bfloat16. `to` may
 * equal `from` if the types are equal. `from` and `to` are in device memory or pinned memory. */
status device_convert(device_stream *s, void *to, dtype to_type, const void *from, dtype from_type,
                      int64_t count, double divisor);

/* Packs gradients into a bucket, or unpacks them. Converts like device_convert(), but with as few launches as
 * possible. On virtual devices device_pack() takes time, but device_convert() does not. The ranges must not
 * overlap. The caller may reuse `ranges` after the call. */
typedef struct device_range {
    void *to;
    const void *from;
    int64_t count; /* number of elements */
} device_range;
status device_pack(device_stream *s, const device_range *ranges, int count, dtype to_type, dtype from_type,
                   double divisor);

/* Computes to[i] = a[i] + b[i] in stream order; `to` may equal `a` or `b`. `to`, `a` and `b` are in device
 * memory. */
status device_add(device_stream *s, void *to, const void *a, const void *b, dtype type, int64_t count);

/* Copies `count` elements in stream order from the memory of another device, `owner`, that this process has
 * opened. A virtual device copies only between the GPUs of a process (simulation_config.per_process). */
status device_copy_from(device_stream *s, void *to, const device *owner, const void *from, dtype type,
                        int64_t count);

/* Clears the bytes in stream order. */
status device_clear(device_stream *s, void *data, size_t bytes);

/* Sets *used_bytes to the memory that all processes use on the device, and *total_bytes to the memory of the
 * device, as the driver reports them. Sets both to -1 if the device has no driver. */
status device_usage(device *d, int64_t *used_bytes, int64_t *total_bytes);

/* On a virtual device, takes the time of packing `count` elements, because the simulated library flattens
 * tensors before it sends them. Does nothing on real devices, because they send lists of pieces. */
status device_flatten(device_stream *s, dtype type, int64_t count);

/* Enables direct copies from the memory of `owner`, a device of another rank of this process, if the
 * hardware supports them. Otherwise copies go through the host. In both cases device_convert() may read
 * the memory. Does nothing on devices that are not GPUs. */
status device_enable_peer(device *d, const device *owner);

/* ---- parameter layouts ------------------------------------------------------------------------ */

/* Order of a parameter's elements in the arenas. Imported and exported parameters are always in PyTorch's
 * order. No order has padding. */
typedef enum device_order {
    /* PyTorch's order: [k, c, r, s] for convolution weights, [out, c, h, w] for linear weights after an
     * image. */
    DEVICE_ORDER_PLAIN,
    DEVICE_ORDER_KRSC, /* PyTorch's order in memory format channels_last */
    DEVICE_ORDER_RSCK,
    DEVICE_ORDER_BLOCKED /* [k/b, c/b, r, s, b of c, b of k], with a block size b that divides k and c */
} device_order;

typedef struct device_layout {
    int64_t elements;
    int64_t k, c, r, s, block; /* PLAIN does not use these sizes */
    device_order order;
    bool plain; /* true if the elements are in PyTorch's order */
} device_layout;

/* Chooses the best layout for the parameter in `slot` of the forward operation `op`. `parameter` is the shape
 * of the parameter in PyTorch. */
status device_choose_layout(device *d, const op_desc *op, int slot, shape parameter, device_layout *out);

/* Reorder a parameter from PyTorch's order to the device's order, and back. `plain` and `packed` are in host
 * memory, with elements of the device's type. If the device is not host-addressable, the caller copies
 * between host and device. */
status device_layout_pack(device *d, const device_layout *layout, const void *plain, void *packed);
status device_layout_unpack(device *d, const device_layout *layout, const void *packed, void *plain);

/* ---- operations ------------------------------------------------------------------------------- */

/* Prepares an operation: chooses the algorithm, creates library objects, and allocates everything that a
 * launch needs. `layout` is the layout of the operation's weights, or NULL if it has none. */
status device_prepare(device *d, const op_desc *op, const device_layout *layout, device_kernel **out);
void device_release(device_kernel **kernel);

/* Returns the bytes of scratch memory that a launch needs. */
size_t device_kernel_workspace(const device_kernel *kernel);

/* Runs the operation (cpu), enqueues it (cuda), or computes its time (sim). `operands` has OP_MAX_OPERANDS
 * slots (op.h). `scalars` may be NULL if the operation reads none. `workspace` has device_kernel_workspace()
 * bytes. */
status device_launch(device_stream *s, device_kernel *kernel, void *const *operands,
                     const op_scalars *scalars, void *workspace);

/* ---- streams and fences ----------------------------------------------------------------------- */

typedef enum device_stream_role {
    DEVICE_STREAM_COMPUTE,
    DEVICE_STREAM_COMMUNICATION,
    DEVICE_STREAM_COPY /* copies from the host */
} device_stream_role;

status device_stream_open(device *d, device_stream_role role, device_stream **out);
void device_stream_close(device_stream **s);

/* Makes operations that are launched from now on take `factor` >= 1 times as long, as on a slow machine. A
 * virtual GPU multiplies the prices of operations. On a real device the launching thread waits until the
 * operation has ended, and sleeps for the additional time. The planning device ignores the factor. A later
 * call replaces the factor; 1 ends the slowdown. */
void device_stream_slow_down(device_stream *s, double factor);

status device_fence_open(device *d, device_fence **out);
void device_fence_close(device_fence **f);

/* Makes the fence reach `value` when the stream has completed the work launched so far. */
status device_stream_signal(device_stream *s, device_fence *f, uint64_t value);

/* Makes work launched on the stream from now on begin when the fence has reached `value`. On a CPU the call
 * blocks, and calls the idle function meanwhile (device_set_idle). The virtual device may return
 * STATUS_AGAIN. */
status device_stream_wait(device_stream *s, device_fence *f, uint64_t value);

/* Advances the fence to `value` from the host. Any thread may call this function. */
void device_fence_reach(device_fence *f, uint64_t value);
bool device_fence_reached(device_fence *f, uint64_t value);

/* Makes every present and future wait for the fence end with the error. Any thread may call this function. */
void device_fence_fail(device_fence *f, const error_record *error);

/* Makes every later wait for a GPU's streams, every later synchronization, and device_mark_wait() return the
 * error, because results on the streams may be incomplete. Only the first error counts. Does nothing on other
 * devices, because no work continues on them after a failure. Any thread may call this function. */
void device_fail(device *d, const error_record *error);

/* Waits until the stream has completed its work. The virtual device may return STATUS_AGAIN. */
status device_stream_synchronize(device_stream *s);

/* ---- recorded work ---------------------------------------------------------------------------- */

/* If *record is NULL, records the operations that this thread launches on the stream until
 * device_record_end(). If *record is not NULL, the thread must make the same calls again: the launches do
 * nothing, and the recorded operations run with the recorded operands and scalars. Copies from or to the
 * host, marks and fences are not recorded. They run when they are called, in order with the recorded
 * operations. Call device_record_end() even if an operation failed. Fails with STATUS_CONFIG on all devices
 * except cuda. */
status device_record_begin(device_stream *s, device_record **record);
status device_record_end(device_stream *s);
void device_record_close(device_record **record);

/* A function that a blocking wait on a CPU calls repeatedly, so that an engine makes progress on the waiting
 * thread. The function sets *worked to true if it did anything. If `idle` is NULL, a wait spins briefly and
 * then sleeps until the fence advances. */
typedef status (*device_idle_function)(void *context, bool *worked);
void device_set_idle(device *d, device_idle_function idle, void *context);

/* ---- time ------------------------------------------------------------------------------------- */

/* A mark records the time at which the stream completes the work that has been launched so far. The time is
 * in ns, on a clock that all ranks with this kind of device share. On a CPU this is CLOCK_MONOTONIC. On a GPU
 * a mark is an event, and its time is known only later, so read marks after the step. A slot holds its last
 * mark. */
enum { DEVICE_MARKS = 4096 };
status device_mark(device_stream *s, int slot);
int64_t device_mark_ns(device_stream *s, int slot);
/* Returns the total time in ns by which simultaneous communication has delayed kernels of the stream, from
 * the opening of the stream to the mark. Returns -1 on real devices, where this time cannot be measured. */
int64_t device_mark_slowed_ns(device_stream *s, int slot);

/* Makes work launched on `s` from now on wait until the stream `of` has reached the mark. The mark must have
 * been made before the call. The slot may be reused after the call. The host does not wait. Does nothing if
 * launches are synchronous. Virtual devices do not support the wait. */
status device_stream_wait_mark(device_stream *s, device_stream *of, int slot);

/* Returns true if the stream has reached the mark or will never reach it. Always returns true if launches are
 * synchronous. Any thread may call this function, unless the mark is made again at the same time. Virtual
 * devices do not support device_mark_passed(). */
bool device_mark_passed(device_stream *s, int slot);

/* Blocks the host until the stream has reached the mark. Returns at once if launches are synchronous. Virtual
 * devices do not support the wait. */
status device_mark_wait(device_stream *s, int slot);

/* Returns the present time of the host, by the wall clock or by the virtual clock. */
int64_t device_now_ns(device *d);

#endif
