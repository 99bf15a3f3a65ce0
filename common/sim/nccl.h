/* The model with which NCCL predicts the times of its collectives and chooses the algorithm and the protocol
 * (NCCL 2.2x, src/graph/tuning.cc). The constants come from the profile.
 *
 *   time = latency + bytes / algorithm bandwidth
 *   ring: algorithm bandwidth = bus bandwidth * n / steps, steps = 2 (n - 1) for an all-reduce
 *   tree: algorithm bandwidth = bus bandwidth / 2, all-reduce only
 *
 * `bytes` is the size of the whole buffer, as in nccl-tests. */
#ifndef COMMON_SIM_NCCL_H
#define COMMON_SIM_NCCL_H

#include "common/sim/rings.h"

typedef enum sim_protocol { SIM_LL, SIM_LL128, SIM_SIMPLE, SIM_PROTOCOL_COUNT } sim_protocol;
/* The first two algorithms are NCCL's. */
typedef enum sim_algorithm {
    SIM_RING,
    SIM_TREE,
    SIM_TWO_SHOT,
    SIM_HIERARCHICAL,
    SIM_ALGORITHM_COUNT,
    /* ring or tree, whichever NCCL's model chooses for the size of the call */
    SIM_LIBRARY = SIM_ALGORITHM_COUNT
} sim_algorithm;

/* Collectives, and their numbers of steps for n ranks. */
typedef enum sim_collective {
    SIM_ALL_REDUCE,     /* 2 (n - 1) steps */
    SIM_REDUCE_SCATTER, /* n - 1 steps */
    SIM_ALL_GATHER,     /* n - 1 steps */
    SIM_BROADCAST,      /* n steps, pipelined, so bus bandwidth = algorithm bandwidth */
    SIM_REDUCE
} sim_collective;

/* Cost of a collective over a group with one algorithm and one protocol. */
typedef struct sim_nccl_cost {
    double latency; /* latency of calls that are smaller than plateau_bytes, in picoseconds */
    double plateau; /* factor by which the latency grows for calls of at least plateau_bytes */
    double plateau_bytes;
    /* algorithm bandwidth, in bytes per picosecond; 0 if algorithm and protocol cannot be combined */
    double bandwidth;
    double bus; /* bus bandwidth, in bytes per picosecond that every rank sends */
} sim_nccl_cost;

void sim_nccl_cost_of(const sim_rings *r, sim_collective c, sim_algorithm a, sim_protocol p,
                      sim_nccl_cost *out);

/* Returns the time that the model predicts. For a tree, applies NCCL's correction of the bandwidth, which
 * depends on `bytes`. Returns SIM_NEVER if the protocol or the algorithm is not possible. */
sim_time sim_nccl_time(const sim_rings *r, sim_collective c, sim_algorithm a, sim_protocol p, double bytes);

/* Returns the protocol with the shortest time, and sets *time. */
sim_protocol sim_nccl_choose(const sim_rings *r, sim_collective c, sim_algorithm a, double bytes,
                             sim_time *time);

/* Returns the latency of a call with a buffer of `bytes` bytes. */
sim_time sim_nccl_latency(const sim_nccl_cost *cost, double bytes);
/* Returns the time of one hop of a ring. The hop is between machines if `crosses` is true, else within a
 * machine. */
sim_time sim_nccl_hop(const sim_rings *r, sim_protocol p, bool crosses);

/* Latencies in us that algorithms.c uses. `base_us` is the latency of a call, `hop_us` of a hop within a
 * machine, and `outer_hop_us` of a hop between machines. A hop between machines has the latency of a tree's
 * hop. (NCCL's latency of a ring's hop assumes that hops within a machine run at the same time.) */
typedef struct sim_nccl_link {
    double base_us, hop_us, outer_hop_us;
} sim_nccl_link;
/* Computes the latencies for a protocol. Returns false if the GPUs do not support the protocol. */
bool sim_nccl_link_of(const sim_rings *r, sim_protocol p, sim_nccl_link *out);
/* Returns the bus bandwidth that a protocol reaches on links that allow the bus bandwidth `bus`. Both
 * bandwidths are in bytes per picosecond that every rank sends. */
double sim_nccl_bus(const sim_rings *r, sim_protocol p, double bus);

#endif
