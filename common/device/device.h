/* Devices: where operations run and time passes.
 *
 * There are five back ends: `reference` (double precision, plain loops), `cpu`,
 * `cuda` (a module opened at run time), `sim:PROFILE` (no bytes; an operation advances virtual time) and
 * `plan:NAME` (no bytes and no time: the memory that NAME would use). The model is CUDA's: work is launched
 * on streams, and a stream waits for fences. On the CPU a stream is the calling thread: a launch is a call,
 * and a wait blocks. On the virtual device a fiber waits likewise (common/sim/fiber.h); elsewhere a wait
 * that cannot complete yet returns STATUS_AGAIN, and the caller repeats the call.
 *
 * A fence is a timeline: a number that only grows. Work after device_stream_wait(stream, fence, v)
 * begins when the fence has reached v. Fences are never reset: one serves every step.
 *
 * A device belongs to one rank; its functions are called by that rank's thread, unless stated otherwise.
 *
 * device_impl.h is the interface of a back end; device.c finds one in the list below; host/ is what back ends
 * in host memory share, and reference/, cpu/, cuda/, sim/ and plan/ are the back ends. */
#ifndef COMMON_DEVICE_DEVICE_H
#define COMMON_DEVICE_DEVICE_H

#include "common/base/status.h"
#include "common/ops/op.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A line adds a device: X(name, option) is device_name in the folder common/device/name and library
 * device_name, and
 * --device option. The build reads this list, too. `plan` is no device to train on. */
#define DEVICE_LIST(X)                                                                                       \
    X(cpu, "cpu")                                                                                            \
    X(cuda, "cuda")                                                                                          \
    X(reference, "reference")                                                                                \
    X(sim, "sim:PROFILE")

typedef struct device device;
typedef struct device_stream device_stream;
typedef struct device_fence device_fence;
typedef struct device_kernel device_kernel;
typedef struct device_graph device_graph;

/* The type in which matrix multiplications multiply where storage is float32. */
typedef enum device_precision {
    DEVICE_PRECISION_F32,
    DEVICE_PRECISION_TF32,
    DEVICE_PRECISION_BF16
} device_precision;

typedef struct device_config {
    const char *name; /* "cpu", "reference", "cuda", "sim:PROFILE", "plan:NAME" */
    int rank, world;  /* the device's rank */
    int local_rank;   /* picks the GPU */
    int threads;      /* compute threads of this rank; at least 1 */
    void *simulation; /* sim: the simulation that all ranks share; NULL otherwise */
    int precision;    /* device_precision */
    bool share_gpu;   /* cuda: ranks beyond the GPUs share them */
    bool benchmark;   /* cuda: times the libraries' algorithms and uses the fastest */
} device_config;

typedef struct device_info {
    const char *name;      /* "cpu" */
    char description[128]; /* "2 threads, AVX-512, oneDNN 2.6.3" */
    dtype compute_type;    /* of parameters, activations and gradients */
    bool bf16;             /* activations and their gradients are to be stored as bfloat16 */
    bool host_addressable; /* the host may read and write device memory */
    bool copy_engine;      /* copies from the host may overlap with the compute stream */
    bool real;             /* tensor bytes exist */
    bool simulated;        /* figures come from a model: reports must mark them */
    int64_t mark_error_ns; /* by how much the times of marks may be wrong on the host's clock; a GPU's change
                              it */
    bool plans;            /* nothing runs or is stored: only the ledger counts (plan/device_plan.c) */
} device_info;

status device_open(const device_config *config, device **out);
void device_close(device **d);
const device_info *device_get_info(const device *d);

/* Operations that a library of the device refused, and slower kernels run: an entry for each kind and reason.
 */
typedef struct device_fallback {
    op_kind kind;
    int64_t count;    /* of the operations prepared so */
    char shape[96];   /* of the first: "4x28x28x1 to 6, 5x5, bfloat16" */
    char reason[96];  /* "cuDNN: CUDNN_STATUS_NOT_SUPPORTED" */
    char instead[64]; /* "multiplied in TF32" */
} device_fallback;

/* Returns how many; *out is the device's. */
int device_fallbacks(const device *d, const device_fallback **out);

/* ---- memory ----------------------------------------------------------------------------------- */

typedef enum device_memory_kind {
    DEVICE_MEMORY_PRIVATE,
    DEVICE_MEMORY_SHARED, /* host-addressable devices: in a memfd that peers can map; else as PRIVATE */
    DEVICE_MEMORY_STAGING /* host memory from which the device copies fast (pinned on cuda) */
} device_memory_kind;

typedef struct device_memory {
    void *data; /* zeroed; on a GPU a device pointer; on the virtual device not accessible */
    size_t bytes;
    int fd; /* SHARED on a host-addressable device: the memfd; else -1 */
    device_memory_kind kind;
} device_memory;

/* Aligned to 64 bytes at least, to 2 MiB where large. STATUS_SYSTEM: the message has the size. */
status device_allocate(device *d, device_memory_kind kind, size_t bytes, device_memory *out);
void device_free(device *d, device_memory *memory);

/* Whether an allocation has failed. */
bool device_has_refused(const device *d);

/* Lets the device copy from and to this host memory fast and asynchronously; does nothing on other devices.
 * Unpin before the memory is freed. */
status device_pin(device *d, void *data, size_t bytes);
void device_unpin(device *d, void *data);

/* Copies in stream order. `count` elements; host elements are float32 (or int32 for targets and tokens),
 * device elements of `type`; converts where the device computes in another type. The host side must
 * stay valid until the stream has completed the copy. */
status device_upload(device_stream *s, void *to, const void *host, dtype host_type, dtype type,
                     int64_t count);
status device_download(device_stream *s, void *host, const void *from, dtype type, dtype host_type,
                       int64_t count);

/* In stream order: to[i] = from[i] / divisor, a true division. Between equal types with a divisor of 1 it is
 * a copy of any type; float32, float16 and bfloat16 are converted into each other. `to` may be `from` where
 * the types are equal. Both are device memory or pinned. */
status device_convert(device_stream *s, void *to, dtype to_type, const void *from, dtype from_type,
                      int64_t count, double divisor);

/* The same for gradients on their way into or out of a bucket: all ranges by as few launches as the device
 * can. Unlike device_convert(), it takes time on virtual devices. Ranges do not overlap; `ranges` is free
 * when it returns. */
typedef struct device_range {
    void *to;
    const void *from;
    int64_t count; /* elements */
} device_range;
status device_pack(device_stream *s, const device_range *ranges, int count, dtype to_type, dtype from_type,
                   double divisor);

/* In stream order: to[i] = a[i] + b[i]; `to` may be either. All are device memory. */
status device_add(device_stream *s, void *to, const void *a, const void *b, dtype type, int64_t count);

/* In stream order: bytes become zero. */
status device_clear(device_stream *s, void *data, size_t bytes);

/* Memory in use on the device by all processes, and its total, from the driver; -1 where there is no driver.
 */
status device_usage(device *d, int64_t *used_bytes, int64_t *total_bytes);

/* A virtual GPU spends the time of a pack of `count` elements: its library flattens tensors before it sends
 * them. Real devices send lists of pieces, and spend nothing. */
status device_flatten(device_stream *s, dtype type, int64_t count);

/* ---- one rank's memory for another's --------------------------------------------------------------
 *
 * GPUs of one machine copy from each other's memory without the host. The owner describes an allocation of
 * kind SHARED, the description travels as bytes, and a peer on the same machine opens it. */

enum { DEVICE_SHARE_BYTES = 128 };
typedef struct device_share {
    uint8_t bytes[DEVICE_SHARE_BYTES];
} device_share;

/* STATUS_CONFIG where the device's memory cannot be opened by others. */
status device_share_memory(device *d, const device_memory *memory, device_share *out);

/* `data` may be an operand of device_convert(), on either side, until the owner frees it. */
typedef struct device_peer {
    void *data;
    bool mapped; /* the back end's */
} device_peer;

/* STATUS_CONFIG with the reason where this device cannot access the owner's. Close before the owner frees. */
status device_peer_open(device *d, const device_share *share, device_peer *out);
void device_peer_close(device *d, device_peer *peer);

/* ---- parameter layouts ------------------------------------------------------------------------ */

/* The order of a parameter's elements in the arenas; only imports and exports use PyTorch's. No order has
 * padding. */
typedef enum device_order {
    DEVICE_ORDER_PLAIN, /* PyTorch's: convolution weights [k, c, r, s], linear weights after an image [out, c,
                           h, w] */
    DEVICE_ORDER_KRSC,  /* the same with channels last */
    DEVICE_ORDER_RSCK,
    DEVICE_ORDER_BLOCKED /* [k/b, c/b, r, s, b of c, b of k], the block b dividing both */
} device_order;

typedef struct device_layout {
    int64_t elements;
    int64_t k, c, r, s, block; /* not of PLAIN */
    device_order order;
    bool plain; /* equal to PyTorch's order */
} device_layout;

/* The best layout for operation `op`, a forward operation with the parameter in `slot`; `shape` is PyTorch's.
 */
status device_choose_layout(device *d, const op_desc *op, int slot, shape parameter, device_layout *out);

/* From PyTorch's order to the device's and back; both in host memory, `type` is the device's. Where the
 * device is not host-addressable the caller copies. */
status device_layout_pack(device *d, const device_layout *layout, const void *plain, void *packed);
status device_layout_unpack(device *d, const device_layout *layout, const void *packed, void *plain);

/* ---- operations ------------------------------------------------------------------------------- */

/* Prepares an operation: chooses the algorithm, creates library objects. `layout` is the layout of the
 * operation's weights where it has any, else NULL. All allocation happens here. */
status device_prepare(device *d, const op_desc *op, const device_layout *layout, device_kernel **out);
void device_release(device_kernel **kernel);

/* Bytes of scratch memory that a launch needs. */
size_t device_kernel_workspace(const device_kernel *kernel);

/* Runs (cpu), enqueues (cuda) or prices (sim). `operands` has OP_MAX_OPERANDS slots (op.h); `scalars`
 * may be NULL where the operation reads none; `workspace` has device_kernel_workspace() bytes. */
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

/* Operations that are launched from now on take `factor` >= 1 times as long, as on a slow machine. A virtual
 * GPU multiplies their prices. On a real one each launch waits until the operation has ended, and the
 * launching thread then sleeps. A device that plans ignores it. */
void device_stream_slow_down(device_stream *s, double factor);

status device_fence_open(device *d, device_fence **out);
void device_fence_close(device_fence **f);

/* When the stream's work so far is done the fence reaches `value`. */
status device_stream_signal(device_stream *s, device_fence *f, uint64_t value);

/* Work launched on the stream from now on begins when the fence has reached `value`. On a CPU it blocks
 * the caller, which calls `idle` meanwhile (device_set_idle). STATUS_AGAIN on the virtual device. */
status device_stream_wait(device_stream *s, device_fence *f, uint64_t value);

/* The host advances the fence to `value`. Any thread. */
void device_fence_reach(device_fence *f, uint64_t value);
bool device_fence_reached(device_fence *f, uint64_t value);

/* A failed fence ends every wait on it, present and future, with the error. Any thread. */
void device_fence_fail(device_fence *f, const error_record *error);

/* From now on waits and synchronizations of a GPU's streams, and device_mark_wait(), return the error: what
 * streams have done may be incomplete. The first error counts. Other devices have nothing that outlives a
 * failure. Any thread. */
void device_fail(device *d, const error_record *error);

/* Waits until the stream's work is done. STATUS_AGAIN on the virtual device. */
status device_stream_synchronize(device_stream *s);

/* ---- recorded work ---------------------------------------------------------------------------- */

/* From begin to end, what this thread launches on the stream is recorded and does not run; `out` may then be
 * launched repeatedly, with the recorded operands and scalars. Only operations may be recorded: no copies
 * from or to the host, no marks, no fences. End the recording even if an operation failed. STATUS_CONFIG on
 * all devices but cuda. */
status device_capture_begin(device_stream *s);
status device_capture_end(device_stream *s, device_graph **out);
status device_graph_launch(device_stream *s, device_graph *graph);
void device_graph_close(device_graph **graph);

/* What a blocking wait calls repeatedly on a CPU: an engine that progresses inline. *worked is set to whether
 * it did anything. NULL: the wait spins briefly, then sleeps until the fence moves. */
typedef status (*device_idle_function)(void *context, bool *worked);
void device_set_idle(device *d, device_idle_function idle, void *context);

/* ---- time ------------------------------------------------------------------------------------- */

/* The time at which the stream's work so far is done, in ns, on the clock that all ranks of the device's
 * kind share: CLOCK_MONOTONIC on a CPU. On a GPU a mark is an event whose time is known later, so marks
 * are recorded by slot and read after the step. */
enum { DEVICE_MARKS = 4096 };
status device_mark(device_stream *s, int slot);
int64_t device_mark_ns(device_stream *s, int slot);

/* What waits for a mark that was made before. On a device whose launches are calls, it has passed; not for
 * virtual ones.
 *
 *   device_stream_wait_mark   work launched on `s` from now on: the stream `of` has reached the mark. No host
 * thread takes part, and the slot may be used again at once. device_mark_passed        whether the stream has
 * reached it, or never will. Any thread, if the mark is not made again at the same time. device_mark_wait the
 * host */
status device_stream_wait_mark(device_stream *s, device_stream *of, int slot);
bool device_mark_passed(device_stream *s, int slot);
status device_mark_wait(device_stream *s, int slot);

/* Time as the host sees it: wall clock, or the virtual clock. */
int64_t device_now_ns(device *d);

#endif
