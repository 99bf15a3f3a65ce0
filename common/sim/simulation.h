/* A simulation: the virtual clock, the machines and the ranks on them. One thread drives it; all ranks of a
 * job are in it, and nothing of it is global.
 *
 * Where ranks lie: rank r on machine r / ranks_per_machine, GPU r % ranks_per_machine. Where a process drives
 * several GPUs (per_process), `ranks` are GPUs: number s * n + r is GPU s of process r of n, and those of a
 * process are neighbors.
 *
 * The files in the order in which data flow through them:
 *   constants.h       the constants of a profile
 *   profile.c         where profiles lie, the top level of their files; profile_read.c: constants and
 * topology draw.c            constants drawn from their ranges topology.c        machines as links, and the
 * routes between places cycles.c          rings over point-to-point links rings.c           the rings of a
 * group of GPUs nccl.c            what NCCL's collectives take over these rings algorithms.c      all-reduces
 * by other algorithms: which links they take, and for how long price.c           what work takes on devices
 * and hosts simulation.c      actors (virtual host threads), and the loop that runs them fiber.c actors that
 * block group.c           collectives of a group of ranks network.c         flows that share links;
 * network_solve.c: their rates queue.c           events in the order of virtual time */
#ifndef COMMON_SIM_SIMULATION_H
#define COMMON_SIM_SIMULATION_H

#include "common/sim/topology.h"

#include <assert.h>

struct simulation;

/* An actor is a virtual host thread: a rank's compute thread, an agent, a server. It has a time of its own,
 * to which it has come by what it did, and it may be ahead of the clock: a launch costs it host time and
 * nothing else, so it runs on until it must wait for something that the clock has not reached.
 *
 * The event queue wakes an actor: its time moves to the clock's, and `run` is called, which does what can be
 * done now. Where it must wait it says so with sim_actor_block, has itself woken by whatever it waits for,
 * and returns STATUS_AGAIN. What an actor does while it is ahead of the clock carries its own time; whoever
 * it tells must be woken at that time (sim_actor_wake with sim_actor_now), not at the clock's. */
typedef struct sim_actor {
    struct simulation *simulation;
    sim_event event;
    sim_time time;         /* that it has come to */
    const char *name;      /* "compute", for messages; not copied */
    const char *waits_for; /* NULL: for nothing */
    int rank;
    bool woken;                   /* since it blocked last */
    status (*run)(void *context); /* NULL: whoever drives it looks at `woken` */
    void *context;
    struct sim_fiber *fiber; /* fiber.h; NULL: none */
    struct sim_actor *core;  /* the compute thread on whose core it works; NULL: has one of its own */
    double core_share;       /* of its work, which that thread loses */
    sim_time lost;           /* a compute thread: to such actors, since it looked last */
    struct sim_actor *next, *previous; /* all actors of the simulation */
    struct sim_actor *next_waiting;    /* on the same stream or fence */
} sim_actor;

status sim_actor_open(struct simulation *simulation, sim_actor *a, int rank, const char *name);
/* Zeroed storage is left alone. */
void sim_actor_close(sim_actor *a);

/* What the actor does when it is woken; it may be set or changed while the actor sleeps. */
void sim_actor_set_run(sim_actor *a, status (*run)(void *context), void *context);

/* Has it woken at `at`, or at its own time where that is later; the earliest of several calls counts. */
void sim_actor_wake(sim_actor *a, sim_time at);

/* It works for so long. */
static inline void sim_actor_spend(sim_actor *a, sim_time duration)
{
    a->time += duration;
    if (a->core) a->core->lost += (sim_time)((double)duration * a->core_share);
}

/* It must wait, for `what` ("synchronize"; not copied). Returns STATUS_AGAIN. */
static inline status sim_actor_block(sim_actor *a, const char *what)
{
    assert(a->simulation); /* the clock itself cannot wait */
    a->waits_for = what;
    a->woken = false;
    return STATUS_AGAIN;
}

/* ---- the simulation ---- */

/* Of matrix products and convolutions; storage is float32. */
typedef enum sim_precision { SIM_FP32, SIM_TF32, SIM_BF16 } sim_precision;

/* What DataParallel gathers of each replica: what its module returns. */
typedef enum sim_gathered {
    SIM_GATHERS_LOSSES,
    SIM_GATHERS_OUTPUTS, /* and its outputs */
    SIM_GATHERS_CACHES   /* and the keys and values of its attention */
} sim_gathered;

/* A constant of the profile that a simulation replaces, all its values; or multiplies them. */
typedef struct sim_override {
    sim_constant constant;
    double value;
    bool multiplies;
} sim_override;

typedef struct simulation_config {
    const char *profile; /* name or file; NULL: SIM_DEFAULT_PROFILE */
    int world;           /* ranks, at least 1 */
    int machines;        /* 0: as many as the ranks fill */
    int processes;   /* that a machine's ranks are; 0: one process per rank. More than one: kappa applies */
    int per_process; /* GPUs of one machine that a process drives; it divides `world`; 0: one */
    sim_precision precision;
    int present;             /* ranks that are simulated, the first ones; 0: all. See simulation_present() */
    bool launches_are_calls; /* whatever the profile says: for hosts that read what devices write */
    bool unlimited_memory;   /* GPUs never run out of memory */
    uint64_t jitter_seed;    /* 0: all GPUs are alike and every kernel takes what it should */
    double link_rate,
        link_latency; /* GB/s and us of the network instead of the profile's; 0: the profile's */
    bool python; /* DataParallel's replicas are threads of one Python process; else the host costs nothing */
    sim_gathered gathered; /* with losses in the replicas */
    int draw;              /* 0: the constants' values; 1 to SIM_DRAWS: drawn from their ranges (profile.h) */
    const sim_override *overrides; /* [override_count], borrowed; after the draw */
    int override_count;
} simulation_config;

/* Receives what a stream of a rank has run: `stream` is the device's number for its role, `what` the name of
 * an operation, "copy", or SIM_WAIT, itself: it has waited for a fence. */
#define SIM_WAIT "wait"
typedef struct sim_recorder {
    void (*ran)(void *context, int rank, int stream, const char *what, sim_time begin, sim_time end);
    void *context;
} sim_recorder;

typedef struct simulation {
    simulation_config config;
    sim_recorder recorder; /* `ran` NULL: nobody records */
    sim_profile *profile;
    sim_topology *topology;
    sim_queue queue;
    sim_network network;
    int ranks_per_machine;
    sim_actor *actors;  /* all, newest first */
    sim_actor *current; /* that runs; NULL: the driver itself */
    sim_actor clock;    /* who acts where an event does, and no actor: always at the present */
    bool firing;
    status failure; /* of an actor: nothing runs any more */
    bool stopping;
    void *devices; /* the device back end's, shared by all ranks */
    void (*free_devices)(void *devices);
    struct sim_group *groups; /* group.h: of all ranks */
    sim_time wired; /* when the replicas of this step exist, as far as the host of DataParallel makes them */
} simulation;

/* STATUS_USAGE: no such profile. STATUS_DATA: a profile that is none. STATUS_CONFIG: more ranks than the
 * machines have GPUs, or a precision that they do not have. */
status simulation_open(const simulation_config *config, simulation **out);
/* Close it after all its actors, flows and devices. */
void simulation_close(simulation **s);

/* Of a machine. */
int simulation_processes(const simulation *s);

/* Where a rank is. */
sim_place simulation_gpu(const simulation *s, int rank);
sim_place simulation_host(const simulation *s, int rank); /* the socket nearest to its GPU */

static inline sim_time simulation_now(const simulation *s)
{
    return s->queue.now;
}

/* Who acts now: the actor that runs; in an event that is none's, the clock; else `driver`, who drives. */
static inline sim_actor *simulation_actor(simulation *s, sim_actor *driver)
{
    if (s->current || !s->firing) return s->current ? s->current : driver;
    s->clock.time = s->queue.now;
    return &s->clock;
}

/* How many of the ranks are really there: the first ones. The others do what these do, at the same time. */
static inline int simulation_present(const simulation *s)
{
    return s->config.present ? s->config.present : s->config.world;
}

/* Runs events until none are left or simulation_stop is called; the failure of the first actor that fails. */
status simulation_run(simulation *s);

/* Ends simulation_run after the present event: for the actor that knows that the job is done, where others
 * have deadlines for ever. */
void simulation_stop(simulation *s);

/* Runs events until something wakes `a`, at once where that has happened already. STATUS_INTERNAL, with who
 * waits for what, where nothing will. */
status simulation_run_until_woken(simulation *s, sim_actor *a);

/* STATUS_INTERNAL: an actor still waits for something and no event is left that could end it. */
status simulation_check_finished(const simulation *s);

#endif
