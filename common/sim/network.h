/* Models traffic as a fluid: flows share directed resources max-min fairly.
 *
 * A resource is one direction of a link, a port, or a memory, with a capacity. A flow carries bytes along a
 * route, a list of resources. Each resource of the route carries the flow's rate times a weight. A copy
 * inside a memory has weight 2, since each byte passes the memory twice. A protocol that uses half of a
 * link's bandwidth for flags also has weight 2. Rates are max-min fair: one flow's rate can rise only if an
 * equal or lower rate of another flow falls (Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2:
 * progressive filling). Rates change only when flows start or end. network_solve.c then computes only the
 * rates that may have changed.
 *
 * The last byte of a flow arrives `latency` after it leaves; latency takes no capacity. */
#ifndef COMMON_SIM_NETWORK_H
#define COMMON_SIM_NETWORK_H

#include "common/sim/queue.h"

typedef struct sim_hop_use {
    int32_t resource;
    double weight;
} sim_hop_use;

typedef struct sim_resource {
    double capacity; /* bytes per picosecond */
    double used;     /* bytes per picosecond that the resource's flows use */
    /* Upper bound of the rates of the resource's flows, except flows that are being solved. */
    double fastest;
    /* Range of n->flow_ids that holds the ids of the resource's flows, in the order in which the flows
     * started. */
    int32_t first, flow_count, room;
    /* Index into n->links if the solution has reached the resource, else -1. */
    int32_t place;
    /* True if a flow has left a full resource since the last solution. */
    bool dirty;
    /* True if the resource has no spare rate, so that it limits its fastest flows. */
    bool full;
} sim_resource;

/* The part of the network that is being solved: copies of the fields that inner loops read, in arrays.
 * Following pointers through whole flows and resources would miss the caches at every step. */
typedef struct sim_part_flow {
    double rate, new_rate, limit;
    struct sim_flow *flow;
    int32_t first_hop, hop_count; /* range of n->hops */
} sim_part_flow;

typedef struct sim_part_hop {
    double weight;
    int32_t link; /* index into n->links and n->filling */
} sim_part_hop;

typedef struct sim_part_link {
    int32_t resource, inside; /* index of the resource, and number of the part's hops on it */
    double free, load;        /* capacity that is left by flows outside the part, and total weight of the
                               * part's hops */
    double level;
    bool filled, changed; /* true if, in this round, the link became full; true if a rate on the link
                           * changed */
} sim_part_link;

/* State of a link while rates rise: remaining capacity, and weight and number of the flows whose rate is
 * not known yet. */
typedef struct sim_filling {
    double left, weight;
    double share; /* rate at which these flows fill the link, or negative if not computed */
    /* Number of flows without a known rate, and index in n->members of the link's first flow, which was
     * visited last. */
    int32_t unfixed, first_member;
} sim_filling;

/* Receives the bytes that a flow has put on a resource between two times. `what` is sim_flow.what. */
typedef struct sim_meter {
    void (*passed)(void *context, int32_t resource, const char *what, sim_time begin, sim_time end,
                   double bytes);
    void *context;
} sim_meter;

typedef struct sim_network {
    sim_queue *queue;
    sim_meter meter;         /* `passed` is NULL if nobody measures */
    sim_resource *resources; /* [resource_count] */
    int32_t resource_count;
    sim_event solve; /* solves the rates, after all other events of the instant */
    int32_t *dirty;  /* [resource_count] */
    int32_t dirty_count;
    struct sim_flow **fresh; /* [flow_capacity] flows without a rate */
    int32_t fresh_count;
    sim_part_link *links; /* [resource_count] */
    sim_filling *filling; /* [resource_count] */
    int32_t *part;        /* [resource_count] links that are not full yet */
    sim_part_flow *flows; /* [flow_capacity] */
    bool *known;          /* [flow_capacity] true if a flow's new rate is known */
    sim_part_hop *hops;   /* [hop_capacity] hops of the part, flow by flow */
    int32_t *members;     /* [hop_capacity] indices into n->flows, link by link */
    int32_t flow_capacity, registered;
    int32_t hop_capacity, registered_hops;
    /* [id_room] ids of the resources' flows, and a spare array for pack_ids(). */
    int32_t *flow_ids, *other_flow_ids;
    int32_t id_room, used_ids;
    struct sim_flow **by_id; /* [flow_capacity] */
    bool *visited;           /* [flow_capacity] by id, true if the solution has reached the flow */
    int32_t *free_ids;       /* [flow_capacity] ids of closed flows */
    int32_t free_count, ids;
    int64_t solved;
    /* The flow that has just left. A flow that starts now on the same route takes over its rate. */
    struct sim_flow *left;
    int32_t left_dirty; /* dirty_count before the flow left */
} sim_network;

/* Opens a network of `count` resources. Capacities are in bytes per picosecond (SIM_GB_PER_S). */
status sim_network_init(sim_network *n, sim_queue *queue, const double *capacities, int32_t count);
void sim_network_deinit(sim_network *n);

/* A flow, in the caller's storage, which carries one transfer at a time. The fields that solutions read come
 * first. */
typedef struct sim_flow {
    sim_hop_use *hops; /* [hop_capacity] */
    int32_t hop_count, id;
    double limit;     /* highest rate, or INFINITY */
    double rate;      /* bytes per picosecond */
    double remaining; /* remaining bytes at time `since` */
    sim_time since;
    sim_event event;
    sim_network *network;
    void (*left)(void *context);    /* the last byte has left; may be NULL */
    void (*arrived)(void *context); /* the last byte has arrived */
    void *context;
    sim_time latency;
    const char *what; /* name for a meter, e.g. "copy"; borrowed; may be NULL */
    double bytes;
    sim_time begun;
    int32_t hop_capacity;
    /* `waiting`: not yet begun. `active`: bytes leave. `on_the_way`: all bytes have left, but not all have
     * arrived. */
    bool waiting, active, on_the_way;
} sim_flow;

/* Allocates memory for routes of up to `most_hops`, so starting never fails. `rank` orders the flow's
 * events. The callbacks receive `context`. */
status sim_flow_init(sim_network *n, sim_flow *f, int rank, int32_t most_hops, void (*left)(void *context),
                     void (*arrived)(void *context), void *context);
/* Abandons a flow that is under way. Does nothing for zeroed storage. */
void sim_flow_deinit(sim_flow *f);

/* Starts a transfer at `at`, or now if `at` has passed. `at` may be later than now, since an actor that sends
 * may be ahead of the clock. Copies the route. A transfer without resources and limit leaves at once. */
void sim_flow_start(sim_flow *f, sim_time at, const sim_hop_use *route, int32_t hops, double bytes,
                    double limit, sim_time latency);

/* network_solve.c: computes the rate and the end of every flow that a dirty resource affects. */
void sim_network_solve(void *network);

static inline bool sim_flow_busy(const sim_flow *f)
{
    return f->waiting || f->active || f->on_the_way;
}

#endif
