/* Links as fluid: flows share directed resources max-min fairly.
 *
 * A resource is one direction of a link, a port, or a memory, with a capacity. A flow carries bytes along a
 * route, a list of resources; all of them see its rate, weighted (a copy inside a memory passes it twice;
 * a protocol that spends half of the wire on flags weighs 2). Rates are max-min fair: no flow can be faster
 * without making slower one that is not faster than itself (Bertsekas and Gallager, "Data Networks", 1992,
 * section 6.5.2: progressive filling). They change only when flows start or end, and then are computed anew
 * only where that may have changed them (network_solve.c).
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
    double capacity;                 /* bytes a picosecond */
    double used;                     /* by its flows, bytes per picosecond */
    double fastest;                  /* no flow has a higher rate, except flows that are being solved */
    int32_t first, flow_count, room; /* ids of its flows in n->flow_ids, in the order in which they came */
    int32_t place;                   /* in n->links while a solution has reached it, else -1 */
    bool dirty;                      /* flows have left that it had held back */
    bool full;                       /* it holds flows back: none of its flows is faster than they */
} sim_resource;

/* The part that is being solved: copies of what its inner loops need, side by side and found by number. A
 * list of pointers through all that a flow and a resource are would miss the caches at every step. */
typedef struct sim_part_flow {
    double rate, new_rate, limit;
    struct sim_flow *flow;
    int32_t first_hop, hop_count; /* in n->hops */
} sim_part_flow;

typedef struct sim_part_hop {
    double weight;
    int32_t link; /* in n->links and n->filling */
} sim_part_hop;

typedef struct sim_part_link {
    int32_t resource, inside; /* hops of the part's flows on it */
    double free, load;    /* the capacity that flows outside leave to those inside, and the weight of these */
    double level;         /* at which it became full */
    bool filled, changed; /* in this round: it became full; a rate on it became another */
} sim_part_link;

/* Of a link while rates rise: what is left to the flows whose rates are not known yet, their weight and
 * number. */
typedef struct sim_filling {
    double left, weight;
    double share;                  /* of each of them; negative: to be computed */
    int32_t unfixed, first_member; /* in n->members: the flows inside, the one visited last first */
} sim_filling;

/* Receives the bytes that a flow has put on a resource between two times; `what` is the flow's. */
typedef struct sim_meter {
    void (*passed)(void *context, int32_t resource, const char *what, sim_time begin, sim_time end,
                   double bytes);
    void *context;
} sim_meter;

typedef struct sim_network {
    sim_queue *queue;
    sim_meter meter;         /* `passed` NULL: nobody measures */
    sim_resource *resources; /* [resource_count] */
    int32_t resource_count;
    sim_event solve; /* after all other events of the instant */
    int32_t *dirty;  /* [resource_count] */
    int32_t dirty_count;
    struct sim_flow **fresh; /* [flow_capacity] that have no rate yet */
    int32_t fresh_count;
    sim_part_link *links; /* [resource_count] */
    sim_filling *filling; /* [resource_count] */
    int32_t *part;        /* [resource_count] of the links those that are not full yet */
    sim_part_flow *flows; /* [flow_capacity] */
    bool *known;          /* [flow_capacity] whether a flow's new rate is */
    sim_part_hop *hops;   /* [hop_capacity] flow by flow */
    int32_t *members;     /* [hop_capacity] link by link, in n->flows */
    int32_t flow_capacity, registered;
    int32_t hop_capacity, registered_hops;
    int32_t *flow_ids,
        *other_flow_ids; /* [id_room] flows of the resources; the spare array that pack_ids fills */
    int32_t id_room, used_ids;
    struct sim_flow **by_id; /* [flow_capacity] */
    bool *visited;           /* [flow_capacity] by id: the solution has reached the flow */
    int32_t *free_ids;       /* [flow_capacity] of flows that are no more */
    int32_t free_count, ids;
    int64_t solved;        /* rates computed so far */
    struct sim_flow *left; /* that has just left; who comes now, the same way, takes its place and rate */
    int32_t left_dirty;    /* dirty resources before */
} sim_network;

/* capacities [count], in bytes per picosecond (SIM_GB_PER_S). */
status sim_network_init(sim_network *n, sim_queue *queue, const double *capacities, int32_t count);
void sim_network_deinit(sim_network *n);

/* The caller's storage; one transfer at a time. What solutions read comes first. */
typedef struct sim_flow {
    sim_hop_use *hops; /* [hop_capacity] */
    int32_t hop_count, id;
    double limit;     /* of the rate; INFINITY: none */
    double rate;      /* bytes a picosecond */
    double remaining; /* bytes at `since` */
    sim_time since;
    sim_event event;
    sim_network *network;
    void (*left)(void *context);    /* the last byte has left; may be NULL */
    void (*arrived)(void *context); /* the last byte has arrived */
    void *context;
    sim_time latency;
    const char *what; /* "copy", for a meter; the owner's, not copied; may be NULL */
    double bytes;     /* of the whole transfer */
    sim_time begun;
    int32_t hop_capacity;
    bool waiting, active, on_the_way; /* to begin; moving; all has left, not all has arrived */
} sim_flow;

/* Takes the memory for routes of up to `most_hops`: starting never fails. `rank` orders its events; the
 * callbacks are told `context`. */
status sim_flow_init(sim_network *n, sim_flow *f, int rank, int32_t most_hops, void (*left)(void *context),
                     void (*arrived)(void *context), void *context);
/* A flow that is under way is abandoned. Zeroed storage is left alone. */
void sim_flow_deinit(sim_flow *f);

/* Begins at `at`, or now where that is later: an actor that sends is ahead of the clock. The route is copied.
 * Without resources and limit it leaves at once. */
void sim_flow_start(sim_flow *f, sim_time at, const sim_hop_use *route, int32_t hops, double bytes,
                    double limit, sim_time latency);

/* network_solve.c: gives every flow that is connected with a dirty resource its new rate and the time of its
 * end. */
void sim_network_solve(void *network);

static inline bool sim_flow_busy(const sim_flow *f)
{
    return f->waiting || f->active || f->on_the_way;
}

#endif
