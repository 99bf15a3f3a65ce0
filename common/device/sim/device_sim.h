/* The virtual device, `sim:PROFILE`: no tensor bytes, and time that passes by price.
 *
 * Semantics are CUDA's. A launch costs the host its launch time and returns; the kernel begins when the
 * stream reaches it, and takes as long as its price. device_stream_wait is enqueued: the stream waits, not
 * the host, whichever thread reaches the fence. Only device_stream_synchronize makes the host wait: a fiber
 * until the stream is empty; elsewhere it returns STATUS_AGAIN until then.
 * Memory has addresses and sizes and must not be accessed; downloads give zeros at once, but the copy takes
 * its time in the stream.
 *
 * A profile may define launches as calls (a CPU): then the host does the work itself, and waits in
 * device_stream_wait, too. Communication slows kernels there as far as it takes
 * their core.
 *
 * One thread drives a simulation and calls all its devices. Time spent within an actor's run is charged to
 * the actor (common/sim/simulation.h), within any other event to nobody, otherwise to the device's compute
 * thread, sim_device_host.
 *
 * The files in the order in which data flow through them:
 *   device_sim.c   opening, memory, layouts, time
 *   kernel_sim.c   prices of operations
 *   stream_sim.c   streams as the host sees them: enqueueing, waiting, marks; CPU cores shared with agents
 *   stream_run.c   streams as the clock advances
 *   fence_sim.c    fences and their history
 *   agent_sim.c    engines' agents
 *
 * Below is what engines' virtual parts and the harness use beyond device.h. */
#ifndef COMMON_DEVICE_SIM_DEVICE_SIM_H
#define COMMON_DEVICE_SIM_DEVICE_SIM_H

#include "common/device/device.h"
#include "common/sim/price.h"

/* The simulation that a device is part of: device_config.simulation. NULL: not a virtual device. */
simulation *sim_device_simulation(device *d);

/* The rank's compute thread. */
sim_actor *sim_device_host(device *d);

/* The actor that is charged for what is done on the device now. */
sim_actor *sim_device_actor(device *d);

/* Wakes `actor` at the time at which a fence of the device moves, unless the actor moves it itself: for
 * agents, which poll fences. The listener is the caller's storage until it is removed. */
typedef struct sim_listener {
    sim_actor *actor;
    struct sim_listener *next;
} sim_listener;
void sim_device_listen(device *d, sim_listener *listener);
void sim_device_leave(device *d, sim_listener *listener);

/* Communication of this rank that takes `load` of its GPU begins or stops moving data now. Meanwhile kernels
 * of its compute streams have the rest (price.h). */
void sim_device_begin_communication(device *d, sim_load load);
void sim_device_end_communication(device *d, sim_load load);

/* How long, in ns since it was opened, the stream has waited for fences: on a compute stream, exposed
 * communication. Where launches are calls, the host waits and measures itself. */
int64_t sim_stream_stalled_ns(const device_stream *s);

/* By how many ns, since it was opened, kernels of the stream have taken longer because of communication that
 * moved data at the same time; at the time of the mark in `slot`. */
int64_t sim_mark_slowed_ns(const device_stream *s, int slot);

/* The current actor launches something other than a kernel: its time passes. */
void sim_device_spend_launch(device *d);

/* The current actor runs an operation and waits for it: an agent's work on tensors. */
void sim_device_spend_op(device *d, const op_desc *op);

/* Launches are calls and tensors are in the host's memory, as on a CPU. */
bool sim_device_is_host(device *d);

/* Whether this is an address of a virtual device's memory, which must not be accessed. */
bool sim_address(const void *address);

/* Agents of `d`, which computes nothing itself, share the cores of `other`'s rank where cores are scarce.
 * Called before the agents are opened; `other` is closed after them. */
void sim_device_share_core(device *d, device *other);

/* How many host threads of the rank's process call modules under one interpreter lock; 0: the rank launches
 * without an interpreter, as initially. A launch then takes its call's time as well, or the calls of all
 * threads where that is longer. */
void sim_device_share_interpreter(device *d, int threads);

/* The main thread of that process begins to make `replicas` of so many parameters. */
void sim_device_wire(device *d, int replicas, int parameters);
/* The current actor waits until they exist. */
void sim_device_await_wiring(device *d);

/* In stream order: a copy from the memory of a device of the same simulation, over the links between their
 * GPUs. For devices whose launches are not calls, in a simulation whose processes drive several
 * (simulation_config.per_process). */
status sim_device_copy_from(device_stream *s, const device *from, dtype type, int64_t count);

/* Work in a stream that others finish: a collective, a message. The caller's storage until it has finished.
 */
typedef struct sim_task {
    void (*start)(struct sim_task *task); /* the stream has reached it, now */
    void *context;                        /* the caller's */
    device_stream *stream;                /* set by sim_task_enqueue */
} sim_task;
status sim_task_enqueue(device_stream *s, sim_task *task);
/* The stream continues. Once per task, at or after start(), which may call it. */
void sim_task_finish(sim_task *task);

#endif
