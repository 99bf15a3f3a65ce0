/* The time that NCCL expects its collectives to take: the model with which it chooses algorithm and protocol
 * itself (NCCL 2.2x, src/graph/tuning.cc), with the constants of the profile.
 *
 *   time = latency + bytes / algorithm bandwidth
 *   ring: algorithm bandwidth = bus bandwidth * n / steps, steps = 2 (n - 1) for an all-reduce
 *   tree: algorithm bandwidth = bus bandwidth / 2, all-reduce only
 *
 * bytes are those of the whole buffer, as nccl-tests counts them. */
#ifndef COMMON_SIM_NCCL_H
#define COMMON_SIM_NCCL_H

#include "common/sim/rings.h"

typedef enum sim_protocol { SIM_LL, SIM_LL128, SIM_SIMPLE, SIM_PROTOCOL_COUNT } sim_protocol;
/* NCCL has the first two. */
typedef enum sim_algorithm {
    SIM_RING,
    SIM_TREE,
    SIM_TWO_SHOT,
    SIM_HIERARCHICAL,
    SIM_ALGORITHM_COUNT,
    SIM_LIBRARY = SIM_ALGORITHM_COUNT /* of a call: ring or tree, as NCCL's model chooses by size */
} sim_algorithm;

/* The collectives that differ in their steps. */
typedef enum sim_collective {
    SIM_ALL_REDUCE,     /* 2 (n - 1) steps */
    SIM_REDUCE_SCATTER, /* n - 1 */
    SIM_ALL_GATHER,     /* n - 1 */
    SIM_BROADCAST,      /* n, pipelined: bus bandwidth = algorithm bandwidth */
    SIM_REDUCE
} sim_collective;

/* A collective over a group with one algorithm and protocol. */
typedef struct sim_nccl_cost {
    double latency; /* picoseconds, for small calls */
    double plateau; /* its factor from plateau_bytes on */
    double plateau_bytes;
    double bandwidth; /* of the algorithm, bytes per picosecond; 0: not possible here */
    double bus;       /* bytes per picosecond that every rank sends */
} sim_nccl_cost;

void sim_nccl_cost_of(const sim_rings *r, sim_collective c, sim_algorithm a, sim_protocol p,
                      sim_nccl_cost *out);

/* The time that the model gives, with NCCL's correction of a tree's bandwidth by size; SIM_NEVER where the
 * protocol or algorithm is not possible. */
sim_time sim_nccl_time(const sim_rings *r, sim_collective c, sim_algorithm a, sim_protocol p, double bytes);

/* The protocol with the least time, and that time. */
sim_protocol sim_nccl_choose(const sim_rings *r, sim_collective c, sim_algorithm a, double bytes,
                             sim_time *time);

/* The latency of such a call, and the time of one hop of a ring beyond what the base takes. */
sim_time sim_nccl_latency(const sim_nccl_cost *cost, double bytes);
sim_time sim_nccl_hop(const sim_rings *r, sim_protocol p, bool crosses);

/* What other algorithms (algorithms.h) take from the model: the latencies of a call, of a hop in a machine,
 * and of one between machines that nothing hides, in us; false: the GPUs do not have the protocol. */
typedef struct sim_nccl_link {
    double base_us, hop_us, outer_hop_us;
} sim_nccl_link;
bool sim_nccl_link_of(const sim_rings *r, sim_protocol p, sim_nccl_link *out);
/* What the protocol leaves of `bus`, bytes a picosecond that every rank sends. */
double sim_nccl_bus(const sim_rings *r, sim_protocol p, double bus);

#endif
