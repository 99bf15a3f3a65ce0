/* The virtual device, `sim:PROFILE`: it has no tensor bytes, and each operation takes virtual time.
 *
 * The semantics are CUDA's. A launch costs the host its launch time and returns. The kernel begins when the
 * stream reaches it, and runs for the time that kernel_sim.c computes. device_stream_wait() is enqueued: the
 * stream waits, not the host, and any thread may advance the fence. Only device_stream_synchronize() makes
 * the host wait until the stream is empty. A fiber waits within the call; outside of a fiber the call returns
 * STATUS_AGAIN.
 *
 * Memory has addresses and sizes, and must not be accessed. Downloads give zeros at once, but the copy takes
 * time in the stream.
 *
 * If the profile declares launches as synchronous, as on a CPU, the host does the work, and
 * device_stream_wait() makes the host wait. Communication then slows down kernels by the share of the core
 * that the communication uses.
 *
 * One thread drives a simulation and calls all its devices. Time spent while an actor runs is charged to the
 * actor (common/sim/simulation.h). Time spent in an event that belongs to no actor is not charged. Outside
 * of events time is charged to the device's compute thread, sim_device_host().
 *
 * The files in the order in which data flow through them:
 *   device_sim.c   opening, memory, layouts, time
 *   kernel_sim.c   prices of operations
 *   stream_sim.c   streams as the host sees them: enqueueing, waiting, marks; CPU cores shared with agents
 *   stream_run.c   streams as the clock advances
 *   fence_sim.c    fences and their history
 *   agent_sim.c    engines' agents
 *
 * This header declares functions that device.h does not have, for the harness and for the virtual parts of
 * engines. */
#ifndef COMMON_DEVICE_SIM_DEVICE_SIM_H
#define COMMON_DEVICE_SIM_DEVICE_SIM_H

#include "common/device/device.h"
#include "common/sim/price.h"

/* Returns the simulation of the device (device_config.simulation), or NULL if the device is not virtual. */
simulation *sim_device_simulation(device *d);

/* Returns the actor of the rank's compute thread. */
sim_actor *sim_device_host(device *d);

/* Returns the actor to which work on the device is charged now. */
sim_actor *sim_device_actor(device *d);

/* Wakes `actor` when a fence of the device advances, unless the actor itself advances the fence. Agents need
 * a listener, because they poll fences. The caller stores the listener until sim_device_leave(). */
typedef struct sim_listener {
    sim_actor *actor;
    struct sim_listener *next;
} sim_listener;
void sim_device_listen(device *d, sim_listener *listener);
void sim_device_leave(device *d, sim_listener *listener);

/* Begin and end a period in which communication of this rank moves data and uses the share `load` of the
 * rank's GPU. During this period kernels of the compute streams use the rest of the GPU (price.h). */
void sim_device_begin_communication(device *d, sim_load load);
void sim_device_end_communication(device *d, sim_load load);

/* Makes the current actor spend the time of a launch that does not run a kernel. */
void sim_device_spend_launch(device *d);

/* Makes the current actor spend the time of an operation, and the time of a wait for its result. Agents that
 * compute on tensors use this function. It does nothing on a device that only plans memory. */
void sim_device_spend_op(device *d, const op_desc *op);

/* Returns true if launches are synchronous and tensors are in host memory, as on a CPU. */
bool sim_device_is_host(device *d);

/* Returns true for an address in the memory of a virtual device, which must not be accessed. */
bool sim_address(const void *address);

/* If cores are scarce, makes the agents of `d` share the core of `other`'s compute thread. `d` must not
 * compute anything itself. Must be called before the agents are opened. `other` must be closed after the
 * agents. */
void sim_device_share_core(device *d, device *other);

/* The next three functions do nothing if the device is not virtual. */

/* Sets the number of host threads of the rank's process that call modules under one interpreter lock. 0, the
 * default, means that there is no interpreter. If there is an interpreter, a launch takes the longer of two
 * times: the launch time plus the time of one call, or the time in which every thread makes one call. */
void sim_device_share_interpreter(device *d, int threads);

/* Makes the main thread of the process start to build `replicas` modules with `parameters` parameters
 * each. */
void sim_device_wire(device *d, int replicas, int parameters);
/* Makes the current actor wait until the replicas are built. */
void sim_device_await_wiring(device *d);

#endif
