#include "common/sim/nccl.h"

static const sim_constant bases[] = {[SIM_RING] = SIM_NCCL_BASE_RING, [SIM_TREE] = SIM_NCCL_BASE_TREE};

typedef enum medium { MEDIUM_NVLINK, MEDIUM_PCI, MEDIUM_NETWORK } medium;
static const sim_constant hops[SIM_ALGORITHM_COUNT][3] = {
    [SIM_RING] = {SIM_NCCL_RING_NVLINK, SIM_NCCL_RING_PCI, SIM_NCCL_RING_NETWORK},
    [SIM_TREE] = {SIM_NCCL_TREE_NVLINK, SIM_NCCL_TREE_PCI, SIM_NCCL_TREE_NETWORK}};
static const sim_constant corrections[] = {[SIM_LL] = SIM_NCCL_CORRECTION_LL,
                                           [SIM_LL128] = SIM_NCCL_CORRECTION_LL128,
                                           [SIM_SIMPLE] = SIM_NCCL_CORRECTION_SIMPLE};
enum { CORRECTIONS = 24, CORRECTION_FIRST = 64 };

static double constant(const sim_rings *r, sim_constant c, int index)
{
    return sim_profile_at(r->topology->profile, c, index);
}

static double steps_of(const sim_rings *r, sim_collective c)
{
    if (c == SIM_ALL_REDUCE) return 2.0 * (r->ranks - 1);
    return c == SIM_REDUCE_SCATTER || c == SIM_ALL_GATHER ? r->ranks - 1 : r->ranks;
}

/* ---- latency, in microseconds ----------------------------------------------------------------- */

static double inner_hop(const sim_rings *r, sim_algorithm a, sim_protocol p)
{
    return constant(r, hops[a][r->nvlink ? MEDIUM_NVLINK : MEDIUM_PCI], p);
}

/* Returns the time of a hop between machines. If a ring has one rank per machine, every hop goes between
 * machines and none is hidden, so a hop of the ring takes as long as a hop of a tree. */
static double outer_hop(const sim_rings *r, sim_algorithm a, sim_protocol p)
{
    bool exposed = a == SIM_RING && r->ranks == r->machines;
    double driver = constant(r, SIM_NCCL_NETWORK_LATENCY, 0);
    return constant(r, hops[exposed ? SIM_TREE : a][MEDIUM_NETWORK], p) + driver * (p == SIM_SIMPLE ? 2 : 1);
}

/* Returns the time of a hop of a ring within a machine. The time is at least the time in which a message is
 * posted to the network. */
static double ring_inner_hop(const sim_rings *r, sim_protocol p)
{
    double overhead = r->machines > 1 ? constant(r, SIM_NCCL_OVERHEAD, 0) * (p == SIM_SIMPLE ? 3 : 1) : 0;
    return fmax(inner_hop(r, SIM_RING, p), overhead);
}

static double ring_latency(const sim_rings *r, sim_collective c, sim_protocol p)
{
    double base = constant(r, bases[SIM_RING], p), steps = steps_of(r, c);
    if (c == SIM_BROADCAST || c == SIM_REDUCE)
        return base +
               (r->machines > 1 ? constant(r, hops[SIM_RING][MEDIUM_NETWORK], p) : inner_hop(r, SIM_RING, p));
    double crossing = r->machines == 1 ? 0 : (c == SIM_ALL_REDUCE ? 2 : 1) * (r->machines - 1);
    return base + (steps - crossing) * ring_inner_hop(r, p) +
           crossing * (r->machines > 1 ? outer_hop(r, SIM_RING, p) : 0);
}

static double tree_latency(const sim_rings *r, sim_protocol p)
{
    int levels = 0;
    while (r->machines >> (levels + 1)) levels++;
    double inside = r->ranks / r->machines - 1, between = r->machines > 1 ? outer_hop(r, SIM_TREE, p) : 0;
    return constant(r, bases[SIM_TREE], p) + 2 * (inside * inner_hop(r, SIM_TREE, p) + levels * between);
}

/* ---- bandwidth, in bytes per picosecond --------------------------------------------------------- */

static bool possible(const sim_rings *r, sim_protocol p)
{
    return p != SIM_LL128 || (r->nvlink && constant(r, SIM_NCCL_LL128, 0) > 0);
}

static double most(const sim_rings *r, sim_constant c, double channels)
{
    /* The constant has three values: for one machine, for two machines, and for more machines. */
    int machines = r->machines < 3 ? r->machines : 3;
    return channels * constant(r, c, machines - 1) * SIM_GB_PER_S;
}

double sim_nccl_bus(const sim_rings *r, sim_protocol p, double bus)
{
    if (p == SIM_LL) return fmin(bus * 0.5, most(r, SIM_NCCL_LL_MOST, 1));
    if (p == SIM_LL128) return fmin(bus * 0.92, most(r, SIM_NCCL_RING_LL128_MOST, r->channels));
    return bus;
}

static double tree_bus(const sim_rings *r, sim_protocol p)
{
    double bus = fmin(r->bus * 0.92, most(r, SIM_NCCL_TREE_MOST, r->channels));
    if (p == SIM_LL) bus = fmin(bus / 3.8, most(r, SIM_NCCL_LL_MOST, 1));
    if (p == SIM_LL128)
        bus = fmin(bus * (r->machines == 1 ? 7.0 / 9.0 : 120.0 / 128.0),
                   most(r, SIM_NCCL_TREE_LL128_MOST, r->channels));
    return bus * constant(r, SIM_NCCL_TREE_PATTERN, 0);
}

/* ---- both ------------------------------------------------------------------------------------- */

void sim_nccl_cost_of(const sim_rings *r, sim_collective c, sim_algorithm a, sim_protocol p,
                      sim_nccl_cost *out)
{
    *out = (sim_nccl_cost){.plateau = 1, .plateau_bytes = INFINITY};
    if (r->ranks < 2) {
        out->bandwidth = out->bus = INFINITY;
        return;
    }
    if (!possible(r, p) || (a == SIM_TREE && c != SIM_ALL_REDUCE)) return;
    out->bus = a == SIM_RING ? sim_nccl_bus(r, p, r->bus) : tree_bus(r, p);
    out->bandwidth = a == SIM_RING ? out->bus * r->ranks / steps_of(r, c) : out->bus / 2;
    out->latency = (a == SIM_RING ? ring_latency(r, c, p) : tree_latency(r, p)) * (double)SIM_US;
    if (a == SIM_RING && p == SIM_SIMPLE && r->machines > 1 && c == SIM_ALL_REDUCE) {
        out->plateau = constant(r, SIM_NCCL_PLATEAU, 0);
        out->plateau_bytes = 64.0 * r->channels * r->ranks;
    }
}

sim_time sim_nccl_latency(const sim_nccl_cost *cost, double bytes)
{
    return (sim_time)llround(cost->latency * (bytes >= cost->plateau_bytes ? cost->plateau : 1));
}

/* Returns the factor by which NCCL corrects the bandwidth of a tree, because the model is inaccurate for
 * trees and buffers of medium size. NCCL has one factor for each power of two from 64 bytes on. */
static double correction(const sim_rings *r, sim_protocol p, double bytes)
{
    int power = 0;
    while (power < CORRECTIONS && bytes / CORRECTION_FIRST >= (double)(INT64_C(2) << power)) power++;
    return power < CORRECTIONS ? constant(r, corrections[p], power) : 1;
}

sim_time sim_nccl_time(const sim_rings *r, sim_collective c, sim_algorithm a, sim_protocol p, double bytes)
{
    sim_nccl_cost cost;
    sim_nccl_cost_of(r, c, a, p, &cost);
    if (cost.bandwidth == 0) return SIM_NEVER;
    double bandwidth = cost.bandwidth * (a == SIM_TREE ? correction(r, p, bytes) : 1);
    return sim_nccl_latency(&cost, bytes) + (isinf(bandwidth) ? 0 : sim_duration(bytes, bandwidth));
}

sim_protocol sim_nccl_choose(const sim_rings *r, sim_collective c, sim_algorithm a, double bytes,
                             sim_time *time)
{
    sim_protocol best = SIM_SIMPLE;
    *time = SIM_NEVER;
    for (int p = 0; p < SIM_PROTOCOL_COUNT; p++) {
        sim_time t = sim_nccl_time(r, c, a, (sim_protocol)p, bytes);
        if (t >= *time) continue;
        *time = t;
        best = (sim_protocol)p;
    }
    return best;
}

sim_time sim_nccl_hop(const sim_rings *r, sim_protocol p, bool crosses)
{
    return sim_from_us(crosses ? outer_hop(r, SIM_RING, p) : ring_inner_hop(r, p));
}

bool sim_nccl_link_of(const sim_rings *r, sim_protocol p, sim_nccl_link *out)
{
    *out = (sim_nccl_link){constant(r, bases[SIM_RING], p), inner_hop(r, SIM_RING, p),
                           outer_hop(r, SIM_TREE, p)};
    return possible(r, p);
}
