/* A price is the time, in picoseconds, that work takes on the devices and hosts of a profile. */
#ifndef COMMON_SIM_PRICE_H
#define COMMON_SIM_PRICE_H

#include "common/ops/op.h"
#include "common/sim/simulation.h"

/* Returns the constant with the two efficiencies of an operation, which are fractions of peak arithmetic and
 * of memory bandwidth. A profile may have a separate constant for convolutions of 3 x 3 with stride 1,
 * because Winograd's algorithm (Lavin and Gray, CVPR 2016) needs fewer multiplications than the operation's
 * FLOP count assumes. Without a separate constant, convolutions of 3 x 3 have the same efficiencies as all
 * other convolutions. */
sim_constant sim_efficiency_of(const op_desc *op);

/* Returns the size in bytes, in float32, of a convolution's weights. The convolution reads the weights or
 * writes their gradient. Returns 0 for convolutions of 3 x 3 with stride 1, and for operations that are not
 * convolutions. */
double sim_weight_bytes(const op_desc *op);

/* Returns the time of an operation in the roofline model (Williams, Waterman, Patterson, CACM 52:4, 2009).
 * The result is the time of the arithmetic or the time of the memory traffic, whichever is longer. Both times
 * use the efficiencies of the operation's class. If the profile has SIM_WEIGHT_BANDWIDTH, the time for the
 * weights of a convolution is added. A CPU reads the weights from memory and packs them in every pass, and
 * this takes the same time for a batch of any size. The result does not include the launch cost, jitter, or
 * the slowdown by other processes (kappa). */
double sim_price_op(const sim_profile *p, sim_precision precision, const op_desc *op);

/* The time of the arithmetic alone and the time of the memory traffic alone, as fractions of the time of an
 * operation. The larger fraction is 1, unless the operation's time includes time for weights. */
typedef struct sim_parts {
    float arithmetic, traffic;
} sim_parts;
sim_parts sim_price_parts(const sim_profile *p, sim_precision precision, const op_desc *op);

/* The load that communication puts on a GPU. `sms` is the fraction of the SMs that communication uses,
 * `memory` the fraction of the memory bandwidth, and `share` the fraction of their speed that all kernels
 * lose, all from 0 to 1. A kernel that runs at the same time gets the rest of the GPU. sim_price_rate()
 * returns the speed of the kernel relative to its speed without communication. The relative speed is the
 * smallest of (1 - sms) / arithmetic, (1 - memory) / traffic, and 1 - share. */
typedef struct sim_load {
    double sms, memory, share;
} sim_load;
double sim_price_rate(sim_load load, sim_parts parts);

/* Returns the load of an NCCL collective with `channels` channels in which every rank sends `bus` bytes per
 * picosecond. NCCL runs `nccl_blocks` thread blocks per channel, and at most 32 in total
 * (src/graph/connect.cc). Each block occupies `block_sms` SMs, which other kernels cannot use. `share` is the
 * constant collective_share. */
sim_load sim_price_collective(const sim_profile *p, int channels, double bus);

/* Returns the load of a copy that a GPU's copy engine makes at `rate` bytes per picosecond. The copy uses no
 * SM, and each byte passes the GPU's memory once. */
sim_load sim_price_copy_engine(const sim_profile *p, double rate);

/* Returns an index into the values of SIM_CONTENTION. The index is 0 for convolutions, 1 for other matrix
 * products, and 2 for all other operations. */
int sim_contention_of(op_kind kind);

/* Returns the factor by which an operation slows down if several processes run on a machine. The kernels of a
 * recorded segment slow down as products for the time of their arithmetic, else as other operations. */
double sim_price_contention(const sim_profile *p, const op_desc *op);

/* Returns the fraction, 0 to 1, of an agent's working time that the compute threads of its rank lose. The
 * threads lose time because a working agent may take a core from them. `ranks` ranks compute on the CPU of
 * one machine. Sets *crowding to the factor, at least 1, by which compute threads slow down for lack of
 * cores. */
double sim_price_core_share(const sim_profile *p, int ranks, double *crowding);

/* Returns the time of a sum on a server. `bytes` is the size of all operands and the result. Each of
 * `threads` threads adds at the rate that the constant `host_sum` gives (measured by
 * tests/bench/server_sum.c). The memory bandwidth of the machine limits the total rate. If the profile
 * contains the number of cores, at most one thread per core adds at the same time. */
sim_time sim_price_sum(const sim_profile *p, double bytes, int threads);

/* Times that the data loader of a PyTorch process needs for a batch of `samples` samples and `bytes` bytes.
 * Each worker process makes a whole batch, so that all workers together finish a batch every `workers_time`.
 * `rate` is the samples per second that a worker makes, or 0 for the profile's times of an image. One thread
 * copies the batches to pinned memory. */
typedef struct sim_loader_price {
    sim_time decode, collate;
    sim_time workers_time, pin;
} sim_loader_price;
sim_loader_price sim_price_loader(const sim_profile *p, double samples, double bytes, int workers,
                                  double rate);

/* Returns the time in which an agent copies `bytes` bytes between the memories of two ranks. */
sim_time sim_price_copy(const sim_profile *p, double bytes);

/* Returns the time that an agent spends on a message. The result is a fixed time plus the time in which
 * `bytes` bytes are copied to or from a socket. */
sim_time sim_price_message(const sim_profile *p, double bytes);

#endif
