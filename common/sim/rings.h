/* The rings that NCCL would build over a group of GPUs, and the links that the rings use.
 *
 * Within a machine there is one ring over NVLink for every cycle of links through all GPUs. If an NVSwitch
 * connects the GPUs, one ring represents all rings of NCCL. If there is no NVLink, there is one ring over
 * PCIe, in the order of the GPUs. Between machines there is one ring for each adapter that is nearest to a
 * member. The ring enters and leaves a machine at the GPUs that are nearest to the adapter. A group of one
 * GPU per machine therefore has one ring, over the GPU's adapter. All rings carry the same number of
 * bytes. */
#ifndef COMMON_SIM_RINGS_H
#define COMMON_SIM_RINGS_H

#include "common/sim/topology.h"

typedef struct sim_rings {
    const sim_topology *topology;
    int ranks, machines; /* number of members, and number of machines that have members */
    sim_place *places;   /* [ranks] places of the members, ordered by machine */
    int count;
    int32_t *order; /* [count * ranks] indices of members, ring by ring */
    /* [count * ranks] Adapter at which the ring enters and leaves the member's machine. */
    int8_t *nics;
    /* Number of NCCL's channels. In a single machine there is one channel per parallel link. Between machines
     * there is one channel per ring. */
    int channels;
    bool nvlink; /* true if rings use NVLink inside the machines */
    double bus;  /* rate at which every rank sends if nothing else uses the links, in bytes per picosecond */
    /* [use_count] Links that the rings use. The weight of a link is the number of bytes that pass the link
     * for each byte that every rank sends. */
    sim_hop_use *uses;
    int use_count;
} sim_rings;

/* Builds the rings over the GPUs `gpus` [ranks]. `ranks` is at least 1. GPUs of the same machine must be
 * adjacent. Returns STATUS_SYSTEM if memory is short. */
status sim_rings_open(const sim_topology *t, const sim_place *gpus, int ranks, sim_rings **out);
void sim_rings_close(sim_rings **rings);

/* Lists the links whose `load` [t->resource_count] is not 0, with the load as the weight. The caller frees
 * *uses. Sets *bus to the rate per rank at which the first link becomes full. */
status sim_rings_uses(const sim_topology *t, const double *load, sim_hop_use **uses, int *count, double *bus);

/* Finds the route of ring `ring` from the i-th member of the ring to the next member. */
void sim_rings_edge(const sim_rings *r, int ring, int i, sim_route *out);

/* Returns true if the route of sim_rings_edge() leads to another machine. */
bool sim_rings_crosses(const sim_rings *r, int ring, int i);

/* ---- cycles.c: rings over point-to-point links ---- */

enum { SIM_CYCLE_GPUS = SIM_GPUS_MOST, SIM_CYCLES_MOST = SIM_NICS_MOST };

typedef struct sim_cycles {
    int count;
    int8_t order[SIM_CYCLES_MOST][SIM_CYCLE_GPUS]; /* GPUs of each cycle, beginning with GPU 0 */
} sim_cycles;

/* Finds as many cycles through all n >= 2 GPUs as possible, as NCCL's search for channels does. links[a][b]
 * is the number of parallel links from a to b. Each link is used by at most one cycle. The number of search
 * steps is limited. For the links of existing machines the search finds the largest number of cycles. For
 * other links it may find fewer cycles. */
void sim_find_cycles(int n, const int8_t links[SIM_CYCLE_GPUS][SIM_CYCLE_GPUS], sim_cycles *out);

#endif
