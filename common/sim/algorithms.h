/* All-reduce algorithms. An algorithm determines which links are used, how many bytes every rank sends over
 * the links, and how many hops follow one another. The latencies of the hops add up. In the table, B is the
 * number of bytes of the buffer. There are n ranks on m machines, and g = n / m ranks per machine:
 *
 *                 phases                                    sent per rank, on average   hops
 *   ring          one                                       2 (n - 1) / n B             2 (n - 1)
 *   tree          one: up and down, pipelined               2 (n - 1) / n B             2 (g - 1) + 2 log2 m
 *   two-shot      reduce-scatter and all-gather, with all   2 (n - 1) / n B             2
 *                 n - 1 peers at the same time
 *   hierarchical  reduce-scatter in machines; all-reduce    2 (g - 1) / g B             2 (g - 1)
 *                 over equal local ranks; all-gather        + 2 (m - 1) / m B / g       + 2 (m - 1)
 *
 * Ring and tree are NCCL's algorithms, whose times nccl.h models. A tree is a chain within a machine. Between
 * machines there are two binary trees, each for half of the data (Sanders, Speck, Traeff, "Two-tree
 * algorithms for full bandwidth broadcast, reduction and scan", 2009). The times of two-shot and hierarchical
 * are computed from NCCL's latencies of a call and of a hop, from the bandwidth of the links, and from the
 * fraction of this bandwidth that NCCL's protocols reach. Phases run one after another. */
#ifndef COMMON_SIM_ALGORITHMS_H
#define COMMON_SIM_ALGORITHMS_H

#include "common/sim/nccl.h"

enum { SIM_PHASES_MOST = 3 };

typedef struct sim_phase {
    /* [use_count] Resources that the phase uses. The weight of a resource is the number of bytes that pass
     * the resource for each byte that a rank sends. */
    sim_hop_use *uses;
    int use_count;
    double share; /* ratio of the bytes that every rank sends to the bytes of the buffer */
    /* rate at which every rank sends if nothing else uses the links, in bytes per picosecond */
    double bus;
    int hops, outer_hops; /* number of hops within machines, and of hops between machines */
} sim_phase;

typedef struct sim_plan {
    sim_algorithm algorithm;
    const sim_rings *rings;
    /* [resource_count] Used while a phase is planned. The number of bytes that pass each resource for each
     * byte that a rank sends. */
    double *loads;
    int count;
    sim_phase phases[SIM_PHASES_MOST];
} sim_plan;

/* Cost of one phase of a call. */
typedef struct sim_phase_cost {
    /* number of bytes of the phase's flow, and the highest rate of the flow in bytes per picosecond */
    double sent, limit;
    sim_time latency;
} sim_phase_cost;

/* Plans all-reduces with `algorithm` over the group of `rings`. Borrows `rings`. Returns STATUS_CONFIG if
 * `algorithm` is SIM_HIERARCHICAL and machines have different numbers of members. */
status sim_plan_open(const sim_rings *rings, sim_algorithm algorithm, sim_plan *out);
void sim_plan_close(sim_plan *plan);

/* Computes the costs of all phases with the protocol that is fastest for `bytes`. Returns the time of the
 * call if nothing else uses the links. */
sim_time sim_plan_cost(const sim_plan *plan, double bytes, sim_phase_cost costs[SIM_PHASES_MOST]);

/* Returns the number of messages that a rank sends in a call. For a tree this is the average over the ranks.
 */
int64_t sim_plan_messages(const sim_plan *plan);

#endif
