/* Prices: the times, in picoseconds, that work takes on the devices and hosts of a profile. */
#ifndef COMMON_SIM_PRICE_H
#define COMMON_SIM_PRICE_H

#include "common/ops/op.h"
#include "common/sim/simulation.h"

/* Returns the constant with the two efficiencies of an operation, which are fractions of peak arithmetic and
 * of memory bandwidth. A profile may have a separate constant for convolutions of 3 x 3 with stride 1,
 * because Winograd's algorithm (Lavin and Gray, CVPR 2016) needs fewer multiplications than are counted.
 * Without this constant, convolutions of 3 x 3 have the efficiencies of all other convolutions. */
sim_constant sim_efficiency_of(const op_desc *op);

/* Returns the size in float32 of the weights that a convolution reads, or whose gradient it writes, in bytes.
 * Returns 0 for convolutions of 3 x 3 with stride 1, and for operations that are not convolutions. */
double sim_weight_bytes(const op_desc *op);

/* Returns the time of an operation in the roofline model (Williams, Waterman, Patterson, CACM 52:4, 2009). It
 * is the time of the arithmetic or of the memory traffic, whichever is longer, each at the efficiency of the
 * operation's class. If the profile has SIM_WEIGHT_BANDWIDTH, the time for the weights of a convolution is
 * added, because a processor reads the weights from memory and packs them in every pass, for a batch of any
 * size. The result includes neither the launch cost nor kappa nor jitter. */
double sim_price_op(const sim_profile *p, sim_precision precision, const op_desc *op);

/* The time of the arithmetic alone and the time of the memory traffic alone, as fractions of the time of an
 * operation. The larger fraction is 1, unless time for weights is added. */
typedef struct sim_parts {
    float arithmetic, traffic;
} sim_parts;
sim_parts sim_price_parts(const sim_profile *p, sim_precision precision, const op_desc *op);

/* The fraction of a GPU's SMs, and the fraction of its memory bandwidth, that communication uses, 0 to 1. A
 * kernel that runs at the same time as the communication gets the rest of the GPU. sim_price_rate() returns
 * the speed of the kernel relative to its speed without communication. It is the smallest of (1 - sms) /
 * arithmetic, (1 - memory) / traffic, and 1. */
typedef struct sim_load {
    double sms, memory;
} sim_load;
double sim_price_rate(sim_load load, sim_parts parts);

/* Returns the load of an NCCL collective over `channels` channels of rings, in which every rank sends `bus`
 * bytes per picosecond. NCCL runs `nccl_blocks` blocks per channel, at most 32 blocks (src/graph/connect.cc).
 * Other kernels cannot use the `block_sms` SMs of each block. */
sim_load sim_price_collective(const sim_profile *p, int channels, double bus);

/* Returns the load of a copy by a GPU's copy engine. The copy uses no SM, and each byte passes the memory
 * once. */
sim_load sim_price_copy_engine(const sim_profile *p, double rate);

/* Returns the index into the values of SIM_CONTENTION: 0 for convolutions, 1 for other matrix products, 2 for
 * all other operations. */
int sim_contention_of(op_kind kind);

/* Returns the factor by which an operation slows down if several processes run on a machine. */
double sim_price_contention(const sim_profile *p, op_kind kind);

/* While an agent works, it may take a core from the compute threads of its rank. Returns the fraction, 0 to
 * 1, of the agent's working time that these threads lose if `ranks` ranks compute on the processor of one
 * machine. Sets *crowding to the factor, at least 1, by which compute threads slow down for lack of cores. */
double sim_price_core_share(const sim_profile *p, int ranks, double *crowding);

/* Returns the time of a sum on a server. `bytes` is the size of all operands and the result. Each of
 * `threads` threads adds at the rate `host_sum` (tests/bench/server_sum.c). The memory bandwidth of the
 * machine limits the total rate. If the profile contains the number of cores, this number limits the threads
 * that add at the same time. */
sim_time sim_price_sum(const sim_profile *p, double bytes, int threads);

/* Times of the loader of a PyTorch process, for a batch of `samples` images and `bytes` bytes. Each
 * worker makes a whole batch, so a batch is ready every `workers_time`. One thread pins the batches. */
typedef struct sim_loader_price {
    sim_time decode, collate;
    sim_time workers_time, pin;
} sim_loader_price;
sim_loader_price sim_price_loader(const sim_profile *p, double samples, double bytes, int workers);

/* Returns the time in which an agent copies `bytes` bytes between the memories of two ranks. */
sim_time sim_price_copy(const sim_profile *p, double bytes);

/* Returns the time that an agent spends on a message. It is a fixed time, plus the time of copying `bytes`
 * bytes into or out of a socket. */
sim_time sim_price_message(const sim_profile *p, double bytes);

#endif
