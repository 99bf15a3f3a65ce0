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
    SIM_LIBRARY = SIM_ALGORITHM_COUNT /* ring or tree, as NCCL's model chooses for the size of the call */
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
    double latency; /* latency of small calls, in picoseconds */
    double plateau; /* factor that multiplies the latency of calls of at least plateau_bytes */
    double plateau_bytes;
    double bandwidth; /* algorithm bandwidth, in bytes per picosecond; 0 if the combination is not possible */
    double bus;       /* bus bandwidth: bytes per picosecond that every rank sends */
} sim_nccl_cost;

void sim_nccl_cost_of(const sim_rings *r, sim_collective c, sim_algorithm a, sim_protocol p,
                      sim_nccl_cost *out);

/* Returns the time in the model. For a tree, includes NCCL's correction of the bandwidth, which depends on
 * the size. Returns SIM_NEVER if the protocol or the algorithm is not possible. */
sim_time sim_nccl_time(const sim_rings *r, sim_collective c, sim_algorithm a, sim_protocol p, double bytes);

/* Returns the protocol with the shortest time, and sets *time. */
sim_protocol sim_nccl_choose(const sim_rings *r, sim_collective c, sim_algorithm a, double bytes,
                             sim_time *time);

/* Returns the latency of a call of `bytes`. */
sim_time sim_nccl_latency(const sim_nccl_cost *cost, double bytes);
/* Returns the time of one hop of a ring, within a machine or between machines. */
sim_time sim_nccl_hop(const sim_rings *r, sim_protocol p, bool crosses);

/* Latencies in us, which algorithms.c uses: of a call, of a hop within a machine, and of a hop between
 * machines. Between machines it is the latency of a tree, because no other hop hides it. */
typedef struct sim_nccl_link {
    double base_us, hop_us, outer_hop_us;
} sim_nccl_link;
/* Computes the latencies for a protocol. Returns false if the GPUs do not support the protocol. */
bool sim_nccl_link_of(const sim_rings *r, sim_protocol p, sim_nccl_link *out);
/* Returns the bus bandwidth that a protocol reaches on links with the bus bandwidth `bus`. Both are in bytes
 * per picosecond that every rank sends. */
double sim_nccl_bus(const sim_rings *r, sim_protocol p, double bus);

#endif
