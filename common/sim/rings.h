/* The rings of a group of GPUs, as NCCL would lay them, and what they take of the links.
 *
 * In a machine: over NVLink, one ring for every set of links that closes through all GPUs; over NVSwitch one
 * that stands for all; else one over PCIe in the order of the GPUs. Between machines: one for every adapter
 * that is the nearest of a member, entering and leaving a machine at the GPUs nearest to it; so a group of
 * one GPU per machine has one ring, over this GPU's adapter. Each ring carries an equal share. */
#ifndef COMMON_SIM_RINGS_H
#define COMMON_SIM_RINGS_H

#include "common/sim/topology.h"

typedef struct sim_rings {
    const sim_topology *topology;
    int ranks, machines; /* machines that have members */
    sim_place *places;   /* [ranks] of the members, ordered by machine */
    int count;           /* rings */
    int32_t *order;      /* [count * ranks] members, ring by ring */
    int8_t *nics;        /* the same: the adapter by which the ring enters and leaves the member's machine */
    int channels;        /* NCCL's: parallel links in a machine, rings between machines */
    bool nvlink;         /* inside the machines */
    double bus;          /* bytes per picosecond that every rank sends when nothing else uses the links */
    sim_hop_use *uses;   /* [use_count] of the links, per byte that every rank sends */
    int use_count;
} sim_rings;

/* `gpus` [ranks], all of one machine side by side. At least one. STATUS_SYSTEM without memory. */
status sim_rings_open(const sim_topology *t, const sim_place *gpus, int ranks, sim_rings **out);
void sim_rings_close(sim_rings **rings);

/* The links that `load` [resources of the topology] uses, in weights per byte, which the caller frees; *bus:
 * the rate at which the first of them is full. */
status sim_rings_uses(const sim_topology *t, const double *load, sim_hop_use **uses, int *count, double *bus);

/* The route of ring `ring` from its member number i to the next, around. */
void sim_rings_edge(const sim_rings *r, int ring, int i, sim_route *out);

/* Whether that edge lies between machines. */
bool sim_rings_crosses(const sim_rings *r, int ring, int i);

/* ---- cycles.c: rings over point-to-point links, as many cycles through all GPUs as the links carry side by
 * side, each link of a direction used by one cycle (the search of NCCL's channels, in the small) ---- */

enum { SIM_CYCLE_GPUS = SIM_GPUS_MOST, SIM_CYCLES_MOST = SIM_NICS_MOST };

typedef struct sim_cycles {
    int count;
    int8_t order[SIM_CYCLES_MOST][SIM_CYCLE_GPUS]; /* each begins with GPU 0 */
} sim_cycles;

/* links[a][b]: parallel links from a to b, among n >= 2 GPUs. The search is bounded: it finds the most that
 * there can be on the machines that are built, and else the most that it saw. */
void sim_find_cycles(int n, const int8_t links[SIM_CYCLE_GPUS][SIM_CYCLE_GPUS], sim_cycles *out);

#endif
