/* Prices: the time of work on a profile's devices and hosts, in picoseconds. */
#ifndef COMMON_SIM_PRICE_H
#define COMMON_SIM_PRICE_H

#include "common/ops/op.h"
#include "common/sim/simulation.h"

/* Returns the constant that holds the operation's two efficiencies, as fractions of peak arithmetic and of
 * memory bandwidth. A profile may have a separate constant for convolutions of 3 x 3 with stride 1, since
 * Winograd's algorithm (Lavin and Gray, CVPR 2016) needs only a fraction of the multiplications that are
 * counted. A profile without this constant prices convolutions of 3 x 3 like all other convolutions. */
sim_constant sim_efficiency_of(const op_desc *op);

/* Returns the float32 bytes of the weights that a convolution reads, or whose gradient it writes. Returns
 * 0 for convolutions of 3 x 3 with stride 1 and for all other operations. */
double sim_weight_bytes(const op_desc *op);

/* Returns the time of an operation in the roofline model (Williams, Waterman, Patterson, CACM 52:4, 2009):
 * the longer of arithmetic and memory traffic, each at the efficiency of the operation's class. If the
 * profile has SIM_WEIGHT_BANDWIDTH, the time for the weights of a convolution is added: a processor reads
 * them from memory and packs them in every pass, for a batch of any size. The time does not include launch
 * cost, kappa and jitter. */
double sim_price_op(const sim_profile *p, sim_precision precision, const op_desc *op);

/* Time of the arithmetic alone and of the memory traffic alone, as fractions of an operation's time. The
 * longer of the two is 1, unless time for weights is added. */
typedef struct sim_parts {
    float arithmetic, traffic;
} sim_parts;
sim_parts sim_price_parts(const sim_profile *p, sim_precision precision, const op_desc *op);

/* Fractions of a GPU's SMs and memory bandwidth that communication uses, 0 to 1. A kernel that runs at the
 * same time as the communication gets the rest of the GPU. Compared with a run without communication, the
 * kernel's speed is the smaller of (1 - sms) / arithmetic and (1 - memory) / traffic, at most 1. */
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

/* Returns the index into SIM_CONTENTION's values: 0 for convolutions, 1 for matrix products, 2 for
 * everything else. */
int sim_contention_of(op_kind kind);

/* Returns the factor by which an operation slows down if several processes run on a machine. */
double sim_price_contention(const sim_profile *p, op_kind kind);

/* Returns the fraction, 0 to 1, of an agent's working time that the compute threads of the agent's rank lose.
 * `ranks` ranks compute on the processor of one machine. Sets *crowding to the factor by which compute
 * threads slow down for lack of cores, at least 1. */
double sim_price_core_share(const sim_profile *p, int ranks, double *crowding);

/* Returns the time of a sum on a server. `bytes` counts operands and result. Each of `threads` threads adds
 * at the rate `host_sum` (tests/bench/server_sum.c). The machine's memory limits the total rate, and so do
 * the cores if the profile has their number. */
sim_time sim_price_sum(const sim_profile *p, double bytes, int threads);

/* Times of the loader of a PyTorch process, for a batch of `samples` images and `bytes` bytes. Each
 * worker makes a whole batch, so a batch is ready every `workers_time`. One thread pins the batches. */
typedef struct sim_loader_price {
    sim_time decode, collate;
    sim_time workers_time, pin;
} sim_loader_price;
sim_loader_price sim_price_loader(const sim_profile *p, double samples, double bytes, int workers);

/* Returns the time in which an agent copies `bytes` between the memories of two ranks. */
sim_time sim_price_copy(const sim_profile *p, double bytes);

/* Returns an agent's time for a message: a fixed time, and the copy of `bytes` into or out of a socket. */
sim_time sim_price_message(const sim_profile *p, double bytes);

#endif
