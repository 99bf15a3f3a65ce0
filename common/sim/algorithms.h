/* All-reduces by algorithm: which links they take, how many bytes every rank sends over them, and how many
 * hops one after another their latency has. B bytes, n ranks on m machines of g = n / m:
 *
 *                 phases                                      sent by a rank, on average   hops
 *   ring          one                                         2 (n - 1) / n B              2 (n - 1)
 *   tree          one: up and down, pipelined                 2 (n - 1) / n B              2 (g - 1) + 2 log2
 * m two-shot      reduce-scatter and all-gather, with all     2 (n - 1) / n B              2 n - 1 peers at
 * once hierarchical  reduce-scatter in machines; all-reduce      2 (g - 1) / g B              2 (g - 1)
 *                 between those of one place; all-gather      + 2 (m - 1) / m B / g        + 2 (m - 1)
 *
 * Ring and tree are those of NCCL, and so are their times alone (nccl.h): a tree is a chain in a machine, and
 * two binary trees of half of the data each between machines (Sanders, Speck, Traeff, "Two-tree algorithms
 * for full bandwidth broadcast, reduction and scan", 2009). Two-shot and hierarchical have NCCL's latencies
 * of a call and a hop, its protocols' shares of a link, and the bandwidth that the links leave. Phases follow
 * one another. */
#ifndef COMMON_SIM_ALGORITHMS_H
#define COMMON_SIM_ALGORITHMS_H

#include "common/sim/nccl.h"

enum { SIM_PHASES_MOST = 3 };

typedef struct sim_phase {
    sim_hop_use *uses; /* [use_count] of the links, per byte of `share` */
    int use_count;
    double share;         /* bytes that every rank sends, per byte of the buffer */
    double bus;           /* bytes a picosecond, alone */
    int hops, outer_hops; /* within a machine; between machines */
} sim_phase;

typedef struct sim_plan {
    sim_algorithm algorithm;
    const sim_rings *rings;
    int count; /* phases */
    sim_phase phases[SIM_PHASES_MOST];
} sim_plan;

/* A phase of a call of so many bytes. */
typedef struct sim_phase_cost {
    double sent, limit; /* bytes that its flow carries; its rate at most, bytes a picosecond */
    sim_time latency;
} sim_phase_cost;

/* For the group of `rings`, which is borrowed. STATUS_CONFIG: hierarchical, and machines have unequal numbers
 * of members. */
status sim_plan_open(const sim_rings *rings, sim_algorithm algorithm, sim_plan *out);
void sim_plan_close(sim_plan *plan);

/* With the protocol that is fastest for so many bytes; returns the time alone. */
sim_time sim_plan_cost(const sim_plan *plan, double bytes, sim_phase_cost costs[SIM_PHASES_MOST]);

/* What a rank counts as messages. */
int64_t sim_plan_messages(const sim_plan *plan);

#endif
