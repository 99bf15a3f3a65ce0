/* A simulation contains the virtual clock, the machines and all ranks of a job. One thread drives the
 * simulation. There is no global state.
 *
 * Rank r is GPU r % ranks_per_machine of machine r / ranks_per_machine. If a process drives several GPUs
 * (per_process), every GPU counts as a rank. If there are n processes, rank s * n + r is GPU s of process r,
 * and the GPUs of a process are adjacent.
 *
 * The files of this folder, in the order in which data flow through them:
 *
 *     constants.h       the constants of a profile
 *     profile.c         finds profiles, reads the top level of their files
 *     profile_read.c    reads constants and topology
 *     draw.c            draws constants from their ranges
 *     cluster.c         composes a profile of a GPU and a wiring that the user describes
 *     topology.c        machines as links, and the routes between places
 *     topology_file.c   reads the links from nvidia-smi topo -m
 *     cycles.c          rings over point-to-point links
 *     rings.c           the rings of a group of GPUs
 *     nccl.c            the times of NCCL's collectives over rings
 *     algorithms.c      all-reduces by other algorithms: their links and times
 *     price.c           the time of work on devices and hosts
 *     simulation.c      actors (virtual host threads), and the loop that runs them
 *     fiber.c           actors that block
 *     group.c           collectives of a group of ranks
 *     network.c         flows that share links
 *     network_solve.c   the rates of flows
 *     queue.c           events in the order of virtual time */
#ifndef COMMON_SIM_SIMULATION_H
#define COMMON_SIM_SIMULATION_H

#include "common/sim/topology.h"

#include <assert.h>

struct simulation;

/* An actor is a virtual host thread, such as the compute thread of a rank, an agent, or a server. Each actor
 * has a local time, which its work advances. The local time may be ahead of the clock, because an actor
 * continues until it must wait for an event. For example, a kernel launch only adds host time to the local
 * time.
 *
 * The event queue wakes an actor. The local time of the actor then advances to the time of the clock, unless
 * the local time is already later, and `run` does the work that is possible now. To wait, `run` calls
 * sim_actor_block(), makes sure that an event will wake the actor, and returns STATUS_AGAIN. An actor acts at
 * its local time. Therefore it must pass its local time, and not the time of the clock, to sim_actor_wake()
 * when it wakes another actor. */
typedef struct sim_actor {
    struct simulation *simulation;
    sim_event event;
    sim_time time;         /* local time of the actor */
    const char *name;      /* name for messages, such as "compute"; borrowed */
    const char *waits_for; /* description of the awaited event, or NULL */
    int rank;
    bool woken; /* true if the actor has been woken since it last blocked */
    /* function that does the actor's work, or NULL if the driver checks `woken` instead */
    status (*run)(void *context);
    void *context;
    struct sim_fiber *fiber; /* fiber of the actor (fiber.h), or NULL if the actor is no fiber */
    struct sim_actor *core;  /* compute thread on whose core the actor works, or NULL for a separate core */
    double core_share;       /* fraction of the actor's working time that `core` loses */
    /* Time for which other actors have occupied this actor's core, and that has not been added to this
     * actor's work yet. */
    sim_time lost;
    struct sim_actor *next, *previous;
    struct sim_actor *next_waiting; /* next actor that waits for the same stream or fence */
} sim_actor;

status sim_actor_open(struct simulation *simulation, sim_actor *a, int rank, const char *name);
/* Closes an actor. Does nothing if the struct is all zeros. */
void sim_actor_close(sim_actor *a);

/* Sets the function that runs when the actor is woken. May be called while the actor waits. */
void sim_actor_set_run(sim_actor *a, status (*run)(void *context), void *context);

/* Wakes the actor at time `at`, or at the local time of the actor if that is later. If there are several
 * calls, the earliest time counts. */
void sim_actor_wake(sim_actor *a, sim_time at);

/* Advances the local time by work of `duration`. */
static inline void sim_actor_spend(sim_actor *a, sim_time duration)
{
    a->time += duration;
    if (a->core) a->core->lost += (sim_time)((double)duration * a->core_share);
}

/* Marks the actor as waiting for `what`, e.g. "synchronize". Borrows `what`. Returns STATUS_AGAIN. */
static inline status sim_actor_block(sim_actor *a, const char *what)
{
    assert(a->simulation); /* The clock is the only actor without a simulation, and the clock cannot wait. */
    a->waits_for = what;
    a->woken = false;
    return STATUS_AGAIN;
}

/* ---- the simulation ---- */

/* Precision of matrix products and convolutions. Under SIM_BF16 and SIM_FP16 activations have two bytes per
 * element. */
typedef enum sim_precision { SIM_FP32, SIM_TF32, SIM_BF16, SIM_FP16 } sim_precision;

/* The results that DataParallel gathers from each replica of a module. */
typedef enum sim_gathered {
    SIM_GATHERS_LOSSES,
    SIM_GATHERS_OUTPUTS, /* losses and outputs */
    SIM_GATHERS_CACHES   /* losses, outputs, and the keys and values of attention */
} sim_gathered;

/* A change of a constant of the profile. All values of the constant are replaced or multiplied. */
typedef struct sim_override {
    sim_constant constant;
    double value;
    bool multiplies;
} sim_override;

typedef struct simulation_config {
    const char *profile; /* name or file of the profile; NULL for SIM_DEFAULT_PROFILE */
    int world;           /* number of ranks, at least 1 */
    int machines;        /* number of machines, or 0 for as many as the ranks fill */
    int adapters;        /* number of network adapters per machine, or 0 for those of the profile */
    /* Rate of all adapters over the rate of the network's core (sim_wiring). */
    double oversubscription;
    /* Number of processes per machine, or 0 for one process per rank. If a machine runs several processes,
     * kappa slows down their operations (sim_price_contention()). */
    int processes;
    /* Number of GPUs that each process drives, or 0 for one GPU. The GPUs of a process are in one machine.
     * The number must divide `world`. */
    int per_process;
    sim_precision precision;
    /* Number of ranks that are simulated, or 0 for all ranks. The simulated ranks begin with rank 0. See
     * simulation_present(). */
    int present;
    /* True if launches are always synchronous, even if the profile says otherwise. Used if the host reads
     * device memory. */
    bool launches_are_calls;
    bool unlimited_memory; /* true if GPUs never run out of memory */
    /* Seed of the jitter. If the seed is 0, all GPUs are equal, and every kernel takes its expected time. */
    uint64_t jitter_seed;
    /* Bandwidth of the network in GB/s and latency of the network in us. For a value of 0, the profile's
     * value is used. */
    double link_rate, link_latency;
    /* True if DataParallel's replicas are threads of one Python process. If false, the Python code takes no
     * time. */
    bool python;
    sim_gathered gathered; /* results that are gathered from the replicas if the replicas compute losses */
    /* Number of a random draw from the ranges of the constants, 1 to SIM_DRAWS, or 0 for the values of the
     * constants (profile.h). */
    int draw;
    double efficiency; /* factor of all efficiencies, which is applied after `draw`, or 0 for 1 */
    /* [override_count] Changes of constants, which are applied after `efficiency`. Borrowed. */
    const sim_override *overrides;
    int override_count;
} simulation_config;

/* A function that records the work that a stream of a rank has run. `stream` is the number of the stream on
 * the device. `what` is the name of an operation, "copy", or the pointer SIM_WAIT for a wait on a fence. */
#define SIM_WAIT "wait"
typedef struct sim_recorder {
    void (*ran)(void *context, int rank, int stream, const char *what, sim_time begin, sim_time end);
    void *context;
} sim_recorder;

typedef struct simulation {
    simulation_config config;
    sim_recorder recorder; /* `ran` is NULL if there is no recorder */
    sim_profile *profile;
    sim_topology *topology;
    sim_queue queue;
    sim_network network;
    int ranks_per_machine;
    sim_actor *actors;  /* all actors, newest first */
    sim_actor *current; /* actor that is running, or NULL if the driver is running */
    /* Actor of the events that belong to no other actor. The local time of this actor is always the time of
     * the clock. */
    sim_actor clock;
    bool firing;
    status failure; /* first failure of an actor; after a failure no actor runs */
    bool stopping;
    void *devices; /* state of the device back end, shared by all ranks */
    void (*free_devices)(void *devices);
    struct sim_group *groups; /* group.h */
    /* Time at which DataParallel's process has created the replicas of the current step. */
    sim_time wired;
    double update_factor; /* recorded time of an update / modeled time; 0 if no time is recorded */
} simulation;

/* Returns STATUS_USAGE if the profile does not exist, STATUS_DATA if the profile is not valid, and
 * STATUS_CONFIG if there are more ranks than GPUs or if the GPUs do not support the precision. */
status simulation_open(const simulation_config *config, simulation **out);
/* Closes the simulation. All actors, flows and devices must be closed before the simulation. */
void simulation_close(simulation **s);

/* Returns the number of processes per machine. */
int simulation_processes(const simulation *s);

/* Returns the place of a rank's GPU. */
sim_place simulation_gpu(const simulation *s, int rank);
/* Returns the place of the socket that is nearest to the rank's GPU. */
sim_place simulation_host(const simulation *s, int rank);

static inline sim_time simulation_now(const simulation *s)
{
    return s->queue.now;
}

/* Returns the actor that acts now. If an actor is running, returns this actor. In an event that belongs to no
 * actor, returns the clock. Outside of events, returns `driver`. */
static inline sim_actor *simulation_actor(simulation *s, sim_actor *driver)
{
    if (s->current || !s->firing) return s->current ? s->current : driver;
    s->clock.time = s->queue.now;
    return &s->clock;
}

/* Returns the number of ranks that are simulated. The simulated ranks begin with rank 0. The other ranks are
 * assumed to do the same work at the same times. */
static inline int simulation_present(const simulation *s)
{
    return s->config.present ? s->config.present : s->config.world;
}

/* Runs events until none are left or simulation_stop() is called. Returns the first failure of an actor. */
status simulation_run(simulation *s);

/* Ends simulation_run() after the current event. The actor that ends the job must call this function, because
 * other actors may schedule deadlines for ever. */
void simulation_stop(simulation *s);

/* Runs events until an event wakes `a`. Returns at once if `a` has been woken before. Returns
 * STATUS_INTERNAL, with a list of waiting actors, if no event is left. */
status simulation_run_until_woken(simulation *s, sim_actor *a);

/* Returns STATUS_INTERNAL if an actor still waits after the last event. */
status simulation_check_finished(const simulation *s);

#endif
