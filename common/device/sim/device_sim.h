/* The virtual device, `sim:PROFILE`: no tensor bytes, and time that passes by price.
 *
 * Semantics are CUDA's. A launch costs the host its launch time and returns; the kernel begins when the
 * stream has come to it, and takes its price. device_stream_wait is enqueued: the stream waits, not the host,
 * whoever reaches the fence. Only device_stream_synchronize makes the host wait and may return STATUS_AGAIN,
 * until the clock has come to where the stream runs dry; call it again then. Memory has addresses and sizes
 * and must not be touched; downloads give zeros at once, but the copy takes its time in the stream.
 *
 * A profile may say that launches are calls (a CPU): then the host does the work itself, and
 * device_stream_wait returns STATUS_AGAIN as long as the fence has not been reached. There rho has no effect.
 *
 * One thread drives a simulation and calls all its devices. Within an actor's run the actor is charged
 * (actor.h), within any other event nobody; otherwise the device's own compute thread, sim_device_host.
 *
 * Below is what engines' virtual parts and the harness use beyond device.h. */
#ifndef COMMON_DEVICE_SIM_DEVICE_SIM_H
#define COMMON_DEVICE_SIM_DEVICE_SIM_H

#include "common/device/device.h"
#include "common/sim/simulation.h"

/* The simulation that a device is part of: device_config.simulation. NULL: not a virtual device. */
simulation *sim_device_simulation(device *d);

/* The rank's compute thread. */
sim_actor *sim_device_host(device *d);

/* Who is charged for what is done on the device now. */
sim_actor *sim_device_actor(device *d);

/* Wakes `actor` whenever a fence of the device moves, at the time at which it does, unless it moves the fence
 * itself: for agents, which poll fences. The listener is the caller's storage; it leaves before it ends. */
typedef struct sim_listener {
    sim_actor *actor;
    struct sim_listener *next;
} sim_listener;
void sim_device_listen(device *d, sim_listener *listener);
void sim_device_leave(device *d, sim_listener *listener);

/* Communication of this rank begins and ends to move data, now. While any does, its compute streams advance
 * by 1 - rho. */
void sim_device_begin_communication(device *d);
void sim_device_end_communication(device *d);

/* For how long, in ns since it was opened, the stream has waited for fences: on a compute stream,
 * communication that nothing hid. Where launches are calls the host waits, and knows itself. */
int64_t sim_stream_stalled_ns(const device_stream *s);

/* As sim_stream_stalled_ns, at the time of the mark in `slot`. */
int64_t sim_mark_stalled_ns(const device_stream *s, int slot);

/* Whoever acts now launches something that is no kernel: its time passes. */
void sim_device_spend_launch(device *d);

/* Kernels take `factor` times as long as they would: of a straggler. */
void sim_device_slow_down(device *d, double factor);

/* Whoever acts now has an operation done, alone, and waits for it: an agent's work on tensors. */
void sim_device_spend_op(device *d, const op_desc *op);

/* Launches are calls and tensors lie in the host's memory, as on a CPU. */
bool sim_device_is_host(device *d);

/* An address of a virtual device's memory, which must not be touched. */
bool sim_address(const void *address);

/* Agents of `d`, which computes nothing itself, work on the cores of the other one's rank, where cores are short. Before
 * they are opened; `other` is closed behind them. */
void sim_device_share_core(device *d, device *other);

/* So many host threads of the rank's process launch under one interpreter lock. 1 at first. */
void sim_device_share_interpreter(device *d, int threads);

/* Work in a stream whose end is decided elsewhere: a collective, a message. The caller's storage until it has
 * finished. */
typedef struct sim_task {
    void (*start)(struct sim_task *task); /* the stream has come to it, now */
    void *context;                        /* the caller's */
    device_stream *stream;                /* set by sim_task_enqueue */
} sim_task;
status sim_task_enqueue(device_stream *s, sim_task *task);
/* From now on the stream goes on. Once, at or behind the start; start() may call it. */
void sim_task_finish(sim_task *task);

#endif
