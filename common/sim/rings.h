/* The rings that NCCL would build over a group of GPUs, and the links that the rings use.
 *
 * Within a machine there is one ring over NVLink for every cycle of links through all GPUs. Over NVSwitch one
 * ring represents all rings. Without NVLink there is one ring over PCIe, in the order of the GPUs. Between
 * machines there is one ring per adapter that is nearest to a member; the ring enters and leaves a machine at
 * the GPUs nearest to the adapter. A group of one GPU per machine therefore has one ring, over the GPU's
 * adapter. All rings carry equally many bytes. */
#ifndef COMMON_SIM_RINGS_H
#define COMMON_SIM_RINGS_H

#include "common/sim/topology.h"

typedef struct sim_rings {
    const sim_topology *topology;
    int ranks, machines; /* machines that have members */
    sim_place *places;   /* [ranks] places of the members, ordered by machine */
    int count;
    int32_t *order; /* [count * ranks] indices of members, ring by ring */
    /* [count * ranks] adapter by which the ring enters and leaves the member's machine. */
    int8_t *nics;
    int channels;      /* number of NCCL's channels, one per parallel link in a machine or per ring between
                        * machines */
    bool nvlink;       /* true if rings use NVLink inside the machines */
    double bus;        /* bytes per picosecond that every rank sends when nothing else uses the links */
    sim_hop_use *uses; /* [use_count] links; a weight is the number of bytes over the link for each byte that
                        * every rank sends */
    int use_count;
} sim_rings;

/* Lays the rings of `gpus` [ranks], at least one. GPUs of the same machine must be adjacent. Returns
 * STATUS_SYSTEM if memory is short. */
status sim_rings_open(const sim_topology *t, const sim_place *gpus, int ranks, sim_rings **out);
void sim_rings_close(sim_rings **rings);

/* Lists the links that `load` [t->resource_count] uses, with weights per byte. The caller frees *uses. *bus
 * is the rate at which the first link becomes full. */
status sim_rings_uses(const sim_topology *t, const double *load, sim_hop_use **uses, int *count, double *bus);

/* Finds the route of ring `ring` from its i-th member to the next. */
void sim_rings_edge(const sim_rings *r, int ring, int i, sim_route *out);

/* Returns true if the route of sim_rings_edge() leads to another machine. */
bool sim_rings_crosses(const sim_rings *r, int ring, int i);

/* ---- cycles.c: rings over point-to-point links ---- */

enum { SIM_CYCLE_GPUS = SIM_GPUS_MOST, SIM_CYCLES_MOST = SIM_NICS_MOST };

typedef struct sim_cycles {
    int count;
    int8_t order[SIM_CYCLES_MOST][SIM_CYCLE_GPUS]; /* each begins with GPU 0 */
} sim_cycles;

/* Finds as many cycles through all n >= 2 GPUs as possible, as NCCL's search for channels does. links[a][b]
 * is the number of parallel links from a to b, and each link is used by one cycle at most. The search is
 * bounded. For the links of existing machines the search finds the maximum; for other links it may find fewer
 * cycles. */
void sim_find_cycles(int n, const int8_t links[SIM_CYCLE_GPUS][SIM_CYCLE_GPUS], sim_cycles *out);

#endif
