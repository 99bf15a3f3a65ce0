/* The internals of the virtual device, for the files of this folder. */
#ifndef COMMON_DEVICE_SIM_SIM_IMPL_H
#define COMMON_DEVICE_SIM_SIM_IMPL_H

#include "common/device/device_impl.h"
#include "common/device/sim/device_sim.h"
#include "common/sim/price.h"

typedef struct sim_stream sim_stream;
typedef struct sim_fence sim_fence;

typedef struct sim_peer {
    struct sim_peer *next;
    const device *from;
    sim_route route;
} sim_peer;

typedef struct sim_device {
    device base;
    simulation *simulation;
    bool owns_simulation;
    sim_actor host;
    sim_stream *streams;
    sim_listener *listeners;
    bool synchronous; /* true if launches are synchronous, as on a CPU */
    /* True if a launch overlaps with its kernel: the operation takes the longer of the two times. */
    bool hides_launches;
    /* Time of the host for a launch, time of the host for a wait, and time of every kernel in addition to its
     * work. */
    sim_time launch, synchronize, overhead;
    sim_time launch_alone; /* value of `launch` without the time for an interpreter */
    bool contends;         /* true if other ranks of the machine slow down kernels */
    double slowdown;       /* factor by which a slow GPU, too few cores and a slow stream lengthen kernels */
    double slowdown_alone; /* value of `slowdown` without the factor of a slow stream */
    sim_actor *core;       /* core that the compute thread and the rank's agents share */
    /* Fraction of the agents' working time that the compute thread loses if cores are scarce, else 0. */
    double host_share;
    bool at_work;      /* true while the compute thread is in core_work() of stream_sim.c */
    int communicating; /* number of collectives and copies that move data now */
    int sharing;       /* number of those with a share; the shares of several do not add up */
    sim_load load;     /* share of this GPU that collectives and copies use */
    /* Seed of random numbers, or 0 without jitter, and number of launches so far. */
    uint64_t jitter, launches;
    /* Bytes in use, largest number of bytes that were in use, and address of the next allocation. */
    uint64_t memory_used, memory_most, memory_next;
    sim_route up, down;
    double copy_rate; /* bytes that a copy moves per picosecond if there is no other traffic */
    sim_peer *peers;
    error_record *failure;
} sim_device;

typedef enum command_kind {
    COMMAND_KERNEL, /* `value` is the time in picoseconds that the kernel takes without communication */
    COMMAND_COPY,   /* `value` is the number of bytes, and `object` is the route */
    COMMAND_MARK,   /* `slot` is the slot of the mark */
    COMMAND_SIGNAL, /* `value` is the value of the fence, and `object` is the fence */
    COMMAND_WAIT    /* `value` is the value of the fence, and `object` is the fence */
} command_kind;

typedef struct sim_command {
    command_kind kind;
    int32_t slot;
    const char *what;  /* name of a kernel */
    sim_time enqueued; /* time at which the host enqueued the command; the command cannot start earlier */
    int64_t value;
    void *object;
    sim_parts parts;
} sim_command;

/* A stream is a queue of commands, evaluated up to the current time. `at` is the time at which the last
 * command ended. While the head is a copy that has begun, `at` is the time at which it began. */
struct sim_stream {
    device_stream base;
    sim_stream *next;
    /* Event at the time at which the stream must be advanced next (stream_run.c). */
    sim_event event;
    sim_command *commands; /* ring buffer */
    uint32_t head, count, capacity;
    sim_time at;
    sim_time slowed; /* time that kernels lost to communication so far */
    bool started;
    sim_time begun;
    sim_time since; /* time at which a kernel has `remaining` picoseconds of work left */
    int64_t remaining;
    bool copied; /* true if the head is a copy that has ended */
    bool advancing;
    sim_fence *waits_on; /* fence that the head waits for, or NULL */
    sim_stream *next_waiting;
    sim_actor *waiters; /* actors that wait in device_stream_synchronize() */
    bool failed;
    sim_flow flow;
    struct sim_mark {
        int64_t at_ns, slowed_ns;
    } * marks; /* [mark_capacity] */
    int mark_capacity;
};

/* The values that a fence has reached, and the times at which it reached them. Values and times are in
 * ascending order. Streams may need the time of an earlier value, so a fence keeps at least FENCE_HISTORY
 * entries, and all entries ahead of the clock. */
enum { FENCE_HISTORY = 4 };

struct sim_fence {
    device_fence base;
    struct sim_reached {
        uint64_t value;
        sim_time at;
    } * history;
    int reached, capacity;
    bool failed;
    sim_stream *streams; /* streams whose head waits for the fence */
    sim_actor *waiters;  /* hosts that wait for the fence, if launches are synchronous */
};

static inline sim_queue *sim_queue_of(const sim_device *d)
{
    return &d->simulation->queue;
}

static inline sim_device *sim_device_of(const sim_stream *s)
{
    return (sim_device *)s->base.device;
}

static inline sim_actor *sim_actor_of(sim_device *d)
{
    return simulation_actor(d->simulation, &d->host);
}

/* Copies the device's failure into the error record of the calling thread. */
status sim_device_failed(const sim_device *d);

/* Reports to the recorder that a stream ran `what` from `begin` to `end`. */
static inline void sim_record(const sim_device *d, device_stream_role role, const char *what, sim_time begin,
                              sim_time end)
{
    const sim_recorder *r = &d->simulation->recorder;
    if (r->ran) r->ran(r->context, d->base.config.rank, (int)role, what, begin, end);
}

/* sim_NAME implements the slot NAME of device_backend, in kernel_sim.c, stream_sim.c or fence_sim.c. */
#define SIM_FUNCTIONS(X)                                                                                     \
    X(prepare)                                                                                               \
    X(release)                                                                                               \
    X(launch)                                                                                                \
    X(add)                                                                                                   \
    X(copy_from)                                                                                             \
    X(mark_slowed_ns)                                                                                        \
    X(pack)                                                                                                  \
    X(upload)                                                                                                \
    X(download)                                                                                              \
    X(stream_open)                                                                                           \
    X(stream_close)                                                                                          \
    X(stream_signal)                                                                                         \
    X(stream_wait)                                                                                           \
    X(stream_synchronize)                                                                                    \
    X(mark) X(mark_ns) X(fence_open) X(fence_close) X(fence_reach) X(fence_reached) X(fence_fail)
#define SIM_FUNCTION(name) DEVICE_FUNCTION(sim, name)
SIM_FUNCTIONS(SIM_FUNCTION)
#undef SIM_FUNCTION

/* ---- kernel_sim.c ---- */
typedef struct sim_kernel {
    device_kernel base;
    double price; /* time of the operation in picoseconds, at full speed and without contention */
    double contention;
    sim_parts parts;
    /* Number of elements for which `price` was computed if launches list pieces, else 0. */
    double elements;
} sim_kernel;

/* Returns the time that a launch of the kernel takes on this device if no communication runs at the same
 * time. */
sim_time sim_kernel_time(sim_device *d, const sim_kernel *kernel, const op_scalars *scalars);

/* ---- stream_sim.c ---- */
/* Recomputes the compute thread's rate after communication has begun or ended, because communication shares
 * the thread's core. */
void sim_core_changed(sim_device *d);

/* ---- stream_run.c: streams as the clock advances ---- */
status sim_stream_push(sim_stream *s, sim_command command);
/* Runs the commands that are due, and schedules the next call. */
void sim_stream_advance(void *stream);
/* Continues the stream at `start`, or at `reached` if that is later, and records the difference as a wait. */
void sim_stream_pass(sim_stream *s, sim_time start, sim_time reached);
/* Continues the stream when the copy at its head has ended. */
void sim_stream_copied(void *stream);
/* Continues the stream after the fence that its head waits for has been reached or has failed. */
void sim_stream_resume(sim_stream *s, bool failed);

/* ---- fence_sim.c ---- */
/* Returns the time at which the fence reaches `value`, or SIM_NEVER if the time is unknown. */
sim_time sim_fence_time(const sim_fence *f, uint64_t value);
void sim_fence_reach_at(sim_fence *f, uint64_t value, sim_time at);
/* Adds a stream whose head waits for the fence. The fence resumes the stream later. */
void sim_fence_add_stream(sim_fence *f, sim_stream *s);
void sim_fence_remove_stream(sim_fence *f, sim_stream *s);

/* sim_add_waiter() adds an actor to a list unless the actor is already in the list. sim_wake_waiters() wakes
 * all actors in a list and empties the list. */
void sim_add_waiter(sim_actor **list, sim_actor *a);
void sim_wake_waiters(sim_actor **list, sim_time at);

#endif
