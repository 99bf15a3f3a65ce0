/* Models traffic as a fluid. Flows share directed resources, and the rates of the flows are max-min fair.
 *
 * A resource is one direction of a link, a port, or a memory, and has a capacity. A flow carries bytes along
 * a route, which is a list of resources. On each resource of its route, a flow uses a capacity that is the
 * rate of the flow times a weight. A copy inside a memory has weight 2, because each byte passes the memory
 * twice. A protocol that uses half of a link's bandwidth for flags also has weight 2. Rates are max-min fair
 * if the rate of a flow can rise only when an equal or lower rate of another flow falls (Bertsekas and
 * Gallager, "Data Networks", 1992, section 6.5.2: progressive filling). Rates change only when a flow starts
 * or ends. network_solve.c then recomputes only the rates that may have changed.
 *
 * Flows with the same route and the same limit form a bundle. They have the same rate, so the solver
 * computes one rate per bundle.
 *
 * If there are many bundles, a flow that starts or ends would change almost all rates. Therefore rates are
 * only nearly fair then (sim_network_is_coarse()): a full resource may keep a small unused part, which a flow
 * that starts can take, and flows that a full resource limits may have slightly different rates. The work per
 * flow then depends on the number of flows on its own route.
 *
 * The last byte of a flow arrives `latency` after it has left. During the latency a flow uses no capacity. */
#ifndef COMMON_SIM_NETWORK_H
#define COMMON_SIM_NETWORK_H

#include "common/sim/queue.h"

typedef struct sim_hop_use {
    int32_t resource;
    double weight;
} sim_hop_use;

typedef struct sim_resource {
    double capacity; /* in bytes per picosecond */
    double used;     /* capacity that flows use, in bytes per picosecond */
    /* Upper bound of the rates of the resource's flows. Flows whose rates are being solved are not
     * included. */
    double fastest;
    /* Range of n->bundle_ids that holds the ids of the resource's bundles, in the order in which the bundles
     * started. */
    int32_t first, bundle_count, room;
    /* Index into n->links if the resource is in the part that is being solved, else -1. */
    int32_t place;
    /* True if a flow has left a full resource since the last solution. */
    bool dirty;
    /* True if no capacity is left, so that the resource limits its fastest flows. */
    bool full;
} sim_resource;

enum { SIM_BUNDLE_HOPS = 8 };

/* The flows that carry bytes over the same route with the same limit. A flow whose route has more than
 * SIM_BUNDLE_HOPS hops is alone in its bundle. */
typedef struct sim_bundle {
    double rate, limit;            /* rate of each flow that has a rate */
    int32_t hop_count;             /* 0 if the bundle is not in use */
    int32_t members, rated;        /* number of flows, and number of flows that have a rate */
    bool visited;                  /* true if the bundle is in the part that is being solved */
    bool fresh;                    /* true if the bundle is in n->fresh */
    uint32_t hash;                 /* hash of the route, the limit and the number of hops */
    int32_t next;                  /* next bundle in the same bucket, or -1 */
    struct sim_flow *flows;        /* list of the flows, newest first */
    const sim_hop_use *long_route; /* hops of the only flow if they do not fit into `route`, else NULL */
    sim_hop_use route[SIM_BUNDLE_HOPS];
} sim_bundle;

/* The next three structs describe the part of the network that is being solved. Arrays of these structs hold
 * copies of the fields that inner loops read. Without the copies, the loops would follow pointers to bundles
 * and resources, and miss the caches at every step. */
typedef struct sim_part_bundle {
    double rate, new_rate, limit;
    struct sim_flow *flows;
    int32_t id, first_hop, hop_count; /* first_hop and hop_count are a range of n->hops */
    bool has_new_flows;               /* true if a flow of the bundle has no rate yet */
} sim_part_bundle;

typedef struct sim_part_hop {
    double weight; /* total weight of the bundle's flows */
    int32_t link;  /* index into n->links and n->filling */
} sim_part_hop;

typedef struct sim_part_link {
    /* `resource` is the index of the resource. `inside` is the number of hops of the part that use the
     * resource. */
    int32_t resource, inside;
    /* `free` is the capacity that flows outside of the part leave to the part. `load` is the total weight of
     * the part's hops on the link. */
    double free, load;
    double level;
    /* `filled` is true if the link became full in this round, `changed` if the rate of a flow on the link
     * changed */
    bool filled, changed;
} sim_part_link;

/* State of a link while rates rise. `left` is the remaining capacity, and `weight` is the total weight of the
 * flows whose rate is not known yet. */
typedef struct sim_filling {
    double left, weight;
    /* Rate at which the link becomes full if all flows without a known rate have this rate. Negative if the
     * share has not been computed. */
    double share;
    /* `unfixed` is the number of flows without a known rate. `first_member` is the index in n->members of the
     * link's first flow. */
    int32_t unfixed, first_member;
} sim_filling;

/* A function that measures traffic. It receives the number of bytes that a flow has put on a resource between
 * two times. `what` is sim_flow.what. */
typedef struct sim_meter {
    void (*passed)(void *context, int32_t resource, const char *what, sim_time begin, sim_time end,
                   double bytes);
    void *context;
} sim_meter;

typedef struct sim_network {
    sim_queue *queue;
    sim_meter meter;         /* `passed` is NULL if traffic is not measured */
    sim_resource *resources; /* [resource_count] */
    int32_t resource_count;
    sim_event solve; /* event that computes the rates; it fires after all other events of the same time */
    int32_t *dirty;  /* [resource_count] */
    int32_t dirty_count;
    int32_t *fresh; /* [flow_capacity] ids of bundles with new flows, which have no rate yet */
    int32_t fresh_count;
    sim_part_link *links;   /* [resource_count] */
    sim_filling *filling;   /* [resource_count] */
    int32_t *part;          /* [resource_count] indices of links that are not full yet */
    sim_part_bundle *parts; /* [flow_capacity] */
    bool *known;            /* [flow_capacity] true if the new rate of the bundle is known */
    sim_part_hop *hops;     /* [hop_capacity] hops of the part, bundle by bundle */
    int32_t *members; /* [hop_capacity] indices into n->parts of the bundles of each link, link by link */
    int32_t flow_capacity, registered;
    int32_t hop_capacity, registered_hops;
    /* [id_room] ids of the resources' bundles, and a spare array for pack_ids(). */
    int32_t *bundle_ids, *other_bundle_ids;
    int32_t id_room, used_ids;
    sim_bundle *bundles; /* [flow_capacity] */
    int32_t *buckets;    /* [flow_capacity] first bundle with a hash, modulo flow_capacity, or -1 */
    int32_t *free_ids;   /* [flow_capacity] ids of bundles that have ended */
    int32_t free_count, ids;
    int32_t coarse_from; /* number of bundles, SIM_COARSE_BUNDLES unless a test changes it */
    int64_t solved;      /* number of rates that have been computed */
    /* The flow that has just left, or NULL. A flow that starts at the same time on the same route takes over
     * the rate of `left`. */
    struct sim_flow *left;
    int32_t left_dirty; /* value of dirty_count before the flow left */
} sim_network;

/* Number of bundles above which rates are nearly fair, and the part of a full resource that may then stay
 * unused. Flows that a full resource limits may differ by SIM_UNEQUAL. */
enum { SIM_COARSE_BUNDLES = 4096 };
#define SIM_UNUSED 0.03
#define SIM_UNEQUAL 0.25

static inline bool sim_network_is_coarse(const sim_network *n)
{
    return n->ids - n->free_count > n->coarse_from;
}

/* Opens a network of `count` resources. Capacities are in bytes per picosecond (SIM_GB_PER_S). */
status sim_network_init(sim_network *n, sim_queue *queue, const double *capacities, int32_t count);
void sim_network_deinit(sim_network *n);

/* A flow, which carries one transfer at a time. The caller stores the flow. The fields that
 * sim_network_solve() reads come first. */
typedef struct sim_flow {
    struct sim_flow *next, *previous; /* neighbors in the bundle's list */
    double rate;      /* rate now, in bytes per picosecond, or 0 if the flow has no rate yet */
    double remaining; /* remaining bytes at time `since` */
    sim_time since;
    sim_event event;
    sim_hop_use *hops; /* [hop_capacity] */
    int32_t hop_count, bundle;
    double limit; /* highest possible rate, or INFINITY */
    sim_network *network;
    void (*left)(void *context);    /* called when the last byte has left; may be NULL */
    void (*arrived)(void *context); /* called when the last byte has arrived */
    void *context;
    sim_time latency;
    const char *what; /* name that a meter receives, e.g. "copy"; borrowed; may be NULL */
    double bytes;
    sim_time begun;
    int32_t hop_capacity;
    /* `waiting` is true if the transfer has not begun, `active` while bytes leave, and `on_the_way` if all
     * bytes have left but not all have arrived. */
    bool waiting, active, on_the_way;
} sim_flow;

/* Opens a flow. Allocates memory for routes of up to `most_hops` hops, so that sim_flow_start() never fails.
 * `rank` is the rank of the flow's events (queue.h). The callbacks receive `context`. */
status sim_flow_init(sim_network *n, sim_flow *f, int rank, int32_t most_hops, void (*left)(void *context),
                     void (*arrived)(void *context), void *context);
/* Closes a flow, and abandons its transfer if it has not ended. Does nothing if `f` is all zeros. */
void sim_flow_deinit(sim_flow *f);

/* Starts a transfer at `at`, or now if `at` has passed. `at` may be later than now, because the sending
 * actor's local time may be ahead of the clock. Copies the route. A transfer without resources and without a
 * limit leaves at once. */
void sim_flow_start(sim_flow *f, sim_time at, const sim_hop_use *route, int32_t hops, double bytes,
                    double limit, sim_time latency);

static inline const sim_hop_use *sim_bundle_hops(const sim_bundle *b)
{
    return b->long_route ? b->long_route : b->route;
}

/* Computes the rate and the end of every flow that a dirty resource affects (network_solve.c). */
void sim_network_solve(void *network);

static inline bool sim_flow_busy(const sim_flow *f)
{
    return f->waiting || f->active || f->on_the_way;
}

#endif
