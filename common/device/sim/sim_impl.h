/* The internals of the virtual device, for the files of this folder. */
#ifndef COMMON_DEVICE_SIM_SIM_IMPL_H
#define COMMON_DEVICE_SIM_SIM_IMPL_H

#include "common/device/device_impl.h"
#include "common/device/sim/device_sim.h"
#include "common/sim/price.h"

typedef struct sim_stream sim_stream;
typedef struct sim_fence sim_fence;

/* How a device of the same process is reached. */
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
    sim_stream *streams; /* linked */
    sim_listener *listeners;
    bool synchronous;    /* launches are calls, */
    bool hides_launches; /* on a device without launches: they cost what exceeds the kernel */
    sim_time launch, synchronize, overhead; /* host time of a launch and a wait; fixed time of a kernel */
    sim_time launch_alone;                  /* without an interpreter */
    bool contends;                          /* kernels are slowed by other ranks of the machine, */
    double slowdown;                        /* and by this factor: this GPU's speed, too few cores */
    sim_actor *core;                        /* that its agents share with the host */
    double host_share;         /* of its agents' work that the compute thread loses where cores are scarce */
    bool at_work;              /* the compute thread, in stream_sim.c's core_work() */
    int communicating;         /* collectives and copies that move data now, */
    sim_load load;             /* and what they take of this GPU */
    uint64_t jitter, launches; /* start of the random stream, or 0; kernels so far */
    uint64_t memory_used, memory_most, memory_next; /* bytes; the next address */
    sim_route up, down;                             /* host to device and back */
    double copy_rate;                               /* without other traffic, bytes per picosecond */
    sim_peer *peers;
    error_record *failure; /* of a fence for which a stream waited */
} sim_device;

typedef enum command_kind {
    COMMAND_KERNEL, /* value: picoseconds without contention */
    COMMAND_COPY,   /* value: bytes; object: the route */
    COMMAND_MARK,   /* slot */
    COMMAND_SIGNAL, /* value; object: the fence */
    COMMAND_WAIT,   /* likewise */
    COMMAND_TASK    /* object: the task */
} command_kind;

typedef struct sim_command {
    command_kind kind;
    int32_t slot;
    const char *what;  /* a kernel's name */
    sim_time enqueued; /* by the host; it cannot begin earlier */
    int64_t value;
    void *object;
    sim_parts parts; /* of a kernel */
} sim_command;

/* A stream is a queue of commands, evaluated up to the current time. Commands before the head are done, the
 * last of them at time `at`. The head may have begun. */
struct sim_stream {
    device_stream base;
    sim_stream *next;      /* of the device */
    sim_event event;       /* when the next command with an effect on others begins, or the last one ends */
    sim_command *commands; /* ring */
    uint32_t head, count, capacity;
    sim_time at;
    sim_time stalled; /* waited for fences so far */
    sim_time slowed;  /* lost by kernels to communication so far */
    bool started;     /* the head: */
    sim_time begun;   /*   when it began */
    sim_time since;   /*   a kernel has `remaining` picoseconds of work left at this time */
    int64_t remaining;
    bool head_done; /*   a task or copy that has ended */
    bool advancing;
    sim_fence *waits_on; /* the fence in whose list the stream is */
    sim_stream *next_waiting;
    sim_actor *waiters; /* in device_stream_synchronize */
    bool failed;
    sim_flow flow; /* of copies */
    struct sim_mark {
        int64_t at_ns, slowed_ns;
    } * marks; /* [mark_capacity] */
    int mark_capacity;
};

/* The values that a fence has reached and when, oldest first, in ascending time. Streams may need an earlier
 * one: at least FENCE_HISTORY are kept, and all ahead of the clock. */
enum { FENCE_HISTORY = 4 };

struct sim_fence {
    device_fence base;
    struct sim_reached {
        uint64_t value;
        sim_time at;
    } * history;
    int reached, capacity; /* entries */
    bool failed;
    sim_stream *streams; /* whose head waits for it */
    sim_actor *waiters;  /* hosts, where launches are calls */
};

static inline sim_queue *sim_queue_of(const sim_device *d)
{
    return &d->simulation->queue;
}

static inline sim_actor *sim_actor_of(sim_device *d)
{
    return simulation_actor(d->simulation, &d->host);
}

/* Copies the device's failure into the caller's record. */
status sim_device_failed(const sim_device *d);

/* A stream has run `what` between two times. */
static inline void sim_record(const sim_device *d, device_stream_role role, const char *what, sim_time begin,
                              sim_time end)
{
    const sim_recorder *r = &d->simulation->recorder;
    if (r->ran) r->ran(r->context, d->base.config.rank, (int)role, what, begin, end);
}

/* ---- kernel_sim.c ---- */
status sim_prepare(device *d, const op_desc *op, const device_layout *layout, device_kernel **out);
void sim_release(device_kernel *kernel);
/* How long a launch takes on this device without contention. */
sim_time sim_kernel_time(sim_device *d, const device_kernel *kernel, const op_scalars *scalars);
sim_parts sim_kernel_parts(const device_kernel *kernel);

/* ---- stream_sim.c: the back end's functions ---- */
status sim_stream_open(device *d, device_stream_role role, device_stream **out);
void sim_stream_close(device_stream *s);
status sim_launch(device_stream *s, device_kernel *kernel, void *const *operands, const op_scalars *scalars,
                  void *workspace);
status sim_pack(device_stream *s, const device_range *ranges, int count, dtype to_type, dtype from_type,
                double divisor);
status sim_upload(device_stream *s, void *to, const void *host, dtype host_type, dtype type, int64_t count);
status sim_download(device_stream *s, void *host, const void *from, dtype type, dtype host_type,
                    int64_t count);
status sim_signal(device_stream *s, device_fence *f, uint64_t value);
status sim_wait(device_stream *s, device_fence *f, uint64_t value);
status sim_synchronize(device_stream *s);
status sim_mark(device_stream *s, int slot);
int64_t sim_mark_ns(device_stream *s, int slot);
/* Communication has begun or ended: it shares the compute thread's core. */
void sim_core_changed(sim_device *d);

/* ---- stream_run.c: streams as the clock advances ---- */
status sim_stream_push(sim_stream *s, sim_command command);
/* Runs what is due, and schedules the next call. */
void sim_stream_advance(void *stream);
/* Continues at `start`, or when a fence was reached if that is later. */
void sim_stream_pass(sim_stream *s, sim_time start, sim_time reached);
/* The head, a copy or task, has ended now. */
void sim_stream_head_ended(sim_stream *s);
/* A fence that the head waits for has been reached or has failed. */
void sim_stream_resume(sim_stream *s, bool failed);

/* ---- fence_sim.c ---- */
status sim_fence_open(device *d, device_fence **out);
void sim_fence_close(device_fence *f);
void sim_fence_reach(device_fence *f, uint64_t value);
bool sim_fence_reached(device_fence *f, uint64_t value);
void sim_fence_fail(device_fence *f, const error_record *error);
/* When the fence reached or will reach `value`; SIM_NEVER: unknown. */
sim_time sim_fence_time(const sim_fence *f, uint64_t value);
void sim_fence_reach_at(sim_fence *f, uint64_t value, sim_time at);
/* The stream's head waits; the fence resumes it. */
void sim_fence_add_stream(sim_fence *f, sim_stream *s);
void sim_fence_remove_stream(sim_fence *f, sim_stream *s);

/* Adds an actor to a list of waiters, once; wakes all of a list and empties it. */
void sim_add_waiter(sim_actor **list, sim_actor *a);
void sim_wake_waiters(sim_actor **list, sim_time at);

#endif
