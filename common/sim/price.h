/* Prices: how long work takes on a profile's devices and hosts, in picoseconds. */
#ifndef COMMON_SIM_PRICE_H
#define COMMON_SIM_PRICE_H

#include "common/ops/op.h"
#include "common/sim/simulation.h"

/* The two values of this constant are the efficiencies of an operation: of the peak, of the memory.
 * Convolutions of 3 x 3 with stride 1 have their own where a profile says so, since Winograd's algorithm
 * (Lavin and Gray, CVPR 2016) takes a fraction of the products that their cost counts; other profiles price
 * them as all convolutions. */
sim_constant sim_efficiency_of(const op_desc *op);

/* Of the weights that a convolution other than those of 3 x 3 with stride 1 reads, or whose gradient it
 * writes, in float32; 0 of all other operations. */
double sim_weight_bytes(const op_desc *op);

/* Roofline (Williams, Waterman, Patterson, CACM 52:4, 2009): the longer of arithmetic and memory traffic,
 * each at the efficiency of its class. On a processor the weights of a convolution come out of memory in
 * every pass and are packed, which takes as long for a small batch: added where a profile has
 * SIM_WEIGHT_BANDWIDTH. Without launch cost, kappa and jitter. */
double sim_price_op(const sim_profile *p, sim_precision precision, const op_desc *op);

/* Which part of the time of an operation each of the two would take alone: the longer has 1. */
typedef struct sim_parts {
    float arithmetic, traffic;
} sim_parts;
sim_parts sim_price_parts(const sim_profile *p, sim_precision precision, const op_desc *op);

/* What communication that moves data takes of a GPU, of its SMs and of its memory's bandwidth: 0 to 1. A
 * kernel next to it has the rest, of what it needs: its rate is the smaller of (1 - sms) / arithmetic and (1
 * - memory) / traffic, at most 1. */
typedef struct sim_load {
    double sms, memory;
} sim_load;
double sim_price_rate(sim_load load, sim_parts parts);

/* Of a collective of NCCL over `channels` channels of rings, on which every rank sends `bus` bytes per
 * picosecond. NCCL runs every channel twice, at most 32 (src/graph/connect.cc); a block of its kernel holds
 * an SM. */
sim_load sim_price_collective(const sim_profile *p, int channels, double bus);

/* Of a copy by a GPU's copy engine: no SM; each byte passes its memory once. */
sim_load sim_price_copy_engine(const sim_profile *p, double rate);

/* Which of the values of SIM_CONTENTION: 0 of convolutions, 1 of products, 2 of everything else. */
int sim_contention_of(op_kind kind);

/* The factor by which an operation slows where several processes run on a machine. */
double sim_price_contention(const sim_profile *p, op_kind kind);

/* Cores of a machine that computes on its processor, where `ranks` run, each with its compute threads and an
 * agent. `crowding`: compute threads are slower by this factor, for lack of cores; at least 1. Returned: the
 * share of an agent's time that its rank's compute loses to it, 0 to 1. */
double sim_price_core_share(const sim_profile *p, int ranks, double *crowding);

/* A server's sum: `bytes` of operands and result, by `threads` threads. Each does `host_sum`
 * (tests/bench/server_sum.c); all have at most the machine's cores, where these are scarce, and its memory.
 */
sim_time sim_price_sum(const sim_profile *p, double bytes, int threads);

/* The loader of a PyTorch process, per batch of `samples` images of `bytes`: its workers, which make a batch
 * each and so give one in `workers_time`, and the thread that pins it. */
typedef struct sim_loader_price {
    sim_time decode, collate; /* of `workers_time`, which is their sum */
    sim_time workers_time, pin;
} sim_loader_price;
sim_loader_price sim_price_loader(const sim_profile *p, double samples, double bytes, int workers);

/* An agent's copy of `bytes` between the memories of two ranks. */
sim_time sim_price_copy(const sim_profile *p, double bytes);

/* An agent's work for a message: a fixed time and the copy of `bytes` that it passes through a socket. */
sim_time sim_price_message(const sim_profile *p, double bytes);

#endif
