/* The constants of a profile. One list yields the enum, the names, the units and the limits. */
#ifndef COMMON_SIM_CONSTANTS_H
#define COMMON_SIM_CONSTANTS_H

#include <stdbool.h>

/* The columns are X(NAME, name in the file, unit, number of values, least value, largest value, needed,
 * meaning).
 *
 * A profile must contain a constant if `needed` is true. Topologies and options may need further constants.
 * An efficiency has two values: a fraction of peak arithmetic and a fraction of memory bandwidth. A constant
 * of NCCL that has three values has either a value for each protocol (LL, LL128, Simple), or a value each for
 * one machine, for two machines and for more machines. */
#define SIM_EFFICIENCY(X, NAME, name)                                                                        \
    X(NAME, "efficiency_" name, "1", 2, 0.001, 2, true, "shares of the peak and of the memory bandwidth")
#define SIM_CONSTANT_LIST(X)                                                                                 \
    X(GPU_MEMORY, "gpu_memory", "GiB", 1, 0.1, 1e4, true, "memory of a GPU")                                 \
    X(PEAK_FP32, "peak_fp32", "TFLOP/s", 1, 1e-4, 1e4, true, "float32 arithmetic")                           \
    X(PEAK_TF32, "peak_tf32", "TFLOP/s", 1, 1e-4, 1e5, false, "matrix products in TF32, dense")              \
    X(PEAK_HALF, "peak_half", "TFLOP/s", 1, 1e-4, 1e5, false, "matrix products in half precision, dense")    \
    X(MEMORY_BANDWIDTH, "memory_bandwidth", "GB/s", 1, 0.1, 1e5, true, "bandwidth of a GPU's memory")        \
    SIM_EFFICIENCY(X, CONVOLUTION_FORWARD, "convolution_forward")                                            \
    SIM_EFFICIENCY(X, CONVOLUTION_BACKWARD, "convolution_backward")                                          \
    X(CONVOLUTION_3X3_FORWARD, "efficiency_convolution_3x3_forward", "1", 2, 0.001, 10, false,               \
      "3 x 3 with stride 1; if absent, as other convolutions")                                               \
    X(CONVOLUTION_3X3_BACKWARD, "efficiency_convolution_3x3_backward", "1", 2, 0.001, 10, false,             \
      "3 x 3 with stride 1; if absent, as other convolutions")                                               \
    SIM_EFFICIENCY(X, GEMM_FORWARD, "gemm_forward")                                                          \
    SIM_EFFICIENCY(X, GEMM_BACKWARD, "gemm_backward")                                                        \
    SIM_EFFICIENCY(X, ATTENTION, "attention")                                                                \
    SIM_EFFICIENCY(X, NORMALIZATION, "normalization")                                                        \
    SIM_EFFICIENCY(X, ELEMENTWISE, "elementwise")                                                            \
    SIM_EFFICIENCY(X, POOLING, "pooling")                                                                    \
    SIM_EFFICIENCY(X, EMBEDDING, "embedding")                                                                \
    SIM_EFFICIENCY(X, LOSS, "loss")                                                                          \
    SIM_EFFICIENCY(X, OPTIMIZER, "optimizer")                                                                \
    X(WEIGHT_BANDWIDTH, "weight_bandwidth", "GB/s", 1, 0.1, 1e5, false,                                      \
      "bandwidth for the weights of convolutions, except 3 x 3")                                             \
    X(KERNEL_OVERHEAD, "kernel_overhead", "us", 1, 0, 1000, true, "fixed time of a launch on the device")    \
    X(LAUNCH_TIME, "launch_time", "us", 1, 0, 1000, true, "time of a launch on the host")                    \
    X(SYNCHRONIZE_TIME, "synchronize_time", "us", 1, 0, 1000, true, "the host's return from a wait")         \
    X(SYNCHRONOUS, "synchronous", "1", 1, 0, 1, true, "1 if a launch runs the kernel, as on a CPU")          \
    X(KAPPA, "kappa", "1", 1, 1, 3, true, "slowdown of computation with several processes")                  \
    X(SEVERAL_GPUS, "several_gpus", "1", 1, 0.5, 5, false,                                                   \
      "published steps of several GPUs of one host, over the model's")                                       \
    X(SEVERAL_HOSTS, "several_hosts", "1", 1, 0.5, 5, false,                                                 \
      "published steps of several hosts, over the model's")                                                  \
    X(UNKNOWN_GPUS, "unknown_gpus", "1", 1, 0.5, 5, false, "the same, of stacks that no policy describes")   \
    X(UNKNOWN_HOSTS, "unknown_hosts", "1", 1, 0.5, 5, false,                                                 \
      "the same on several hosts, of stacks that no policy describes")                                       \
    X(CONTENTION, "contention", "1", 3, 1, 5, false,                                                         \
      "replaces kappa: for convolutions, products, other operations")                                        \
    X(SMS, "sms", "1", 1, 1, 1000, false,                                                                    \
      "streaming multiprocessors of a GPU; if absent, collectives take none")                                \
    X(NCCL_BLOCKS, "nccl_blocks", "1", 1, 0, 16, false, "blocks of a collective's kernel, per channel")      \
    X(BLOCK_SMS, "block_sms", "1", 1, 0, 4, false, "SMs that a block keeps from other kernels")              \
    X(COLLECTIVE_TRAFFIC, "collective_traffic", "1", 1, 0, 10, false, "bytes of GPU memory per byte sent")   \
    X(COLLECTIVE_SHARE, "collective_share", "1", 1, 0, 0.99, false,                                          \
      "share of their speed that kernels lose while a collective runs; if absent, none")                     \
    X(JITTER_RANK, "jitter_rank", "1", 1, 0, 1, true, "spread of the ranks' speeds with --jitter")           \
    X(JITTER_KERNEL, "jitter_kernel", "1", 1, 0, 1, true, "spread of a kernel's time with --jitter")         \
    X(PCIE, "pcie", "GB/s", 1, 0.01, 1000, false, "a PCIe link, one direction")                              \
    X(NVLINK, "nvlink", "GB/s", 1, 0.01, 1000, false, "one NVLink, one direction")                           \
    X(SOCKET_LINK, "socket_link", "GB/s", 1, 0.01, 1000, false, "between two sockets, one direction")        \
    X(NIC, "nic", "GB/s", 1, 1e-4, 1000, false, "a network adapter, one direction")                          \
    X(PEER_OVERHEAD, "peer_overhead", "1", 1, 1, 4, true,                                                    \
      "bytes on the wire per byte, GPU to GPU over a bridge")                                                \
    X(COPY_LATENCY, "copy_latency", "us", 1, 0, 1e4, true, "a copy between host and device")                 \
    X(NETWORK_LATENCY, "network_latency", "us", 1, 0, 1e5, false, "between two machines, one way")           \
    X(HOST_MEMORY, "host_memory", "GB/s", 1, 0.1, 1e4, true, "memory of a socket, reading and writing")      \
    X(HOST_SUM, "host_sum", "GB/s", 1, 0.01, 1e4, true, "bytes that a server's thread adds up")              \
    X(HOST_COPY, "host_copy", "GB/s", 1, 0.01, 1e4, false,                                                   \
      "an agent's copies, read and written; if absent, free")                                                \
    X(HOST_PACK, "host_pack", "GB/s", 1, 0.01, 1e4, false,                                                   \
      "gradients into buckets; if absent, as elementwise")                                                   \
    X(HOST_CORES, "host_cores", "1", 1, 1, 1e5, false,                                                       \
      "cores of a machine that computes on its CPU; if absent, enough")                                      \
    X(RANK_THREADS, "rank_threads", "1", 1, 1, 1024, false,                                                  \
      "compute threads of a rank on a CPU; if absent, 1")                                                    \
    X(RANK_PROCESSORS, "rank_processors", "1", 1, 1, 1024, false,                                            \
      "processors of a rank; if absent, ranks are not bound")                                                \
    X(MESSAGE_TIME, "message_time", "us", 1, 0, 1e4, true, "time of an agent per message sent or received")  \
    X(WAKE_TIME, "wake_time", "us", 1, 0, 1e4, false, "time to wake an agent that sleeps; if absent, 0")     \
    X(MESSAGE_COPY, "message_copy", "GB/s", 1, 0.01, 1e4, true, "an agent's copy into or out of a socket")   \
    X(LOADER_DECODE, "loader_decode", "1/s", 1, 0.1, 1e6, false,                                             \
      "images that a loader worker decodes and transforms")                                                  \
    X(LOADER_COLLATE, "loader_collate", "GB/s", 1, 0.01, 1e4, false,                                         \
      "stacking a batch in shared memory, per loader worker")                                                \
    X(LOADER_PIN, "loader_pin", "GB/s", 1, 0.01, 1e4, false,                                                 \
      "copying a batch to pinned memory, per process")                                                       \
    X(PYTHON_CALL, "python_call", "us", 1, 0, 1e4, false,                                                    \
      "calling an operation under the interpreter's lock")                                                   \
    X(PYTHON_WIRE, "python_wire", "us", 1, 0, 1e5, false,                                                    \
      "making one parameter of a replica, by one thread")                                                    \
    X(NCCL_RINGS_MOST, "nccl_rings_most", "1", 1, 1, 32, false,                                              \
      "most rings in a machine; 1 follows the order of the GPUs, as NCCL 1")                                 \
    X(NCCL_BASE_RING, "nccl_base_ring", "us", 3, 0, 1000, true, "base latency, by protocol")                 \
    X(NCCL_BASE_TREE, "nccl_base_tree", "us", 3, 0, 1000, true, "base latency, by protocol")                 \
    X(NCCL_RING_NVLINK, "nccl_ring_nvlink", "us", 3, 0, 1000, true, "latency of a hop, by protocol")         \
    X(NCCL_RING_PCI, "nccl_ring_pci", "us", 3, 0, 1000, true, "latency of a hop, by protocol")               \
    X(NCCL_RING_NETWORK, "nccl_ring_network", "us", 3, 0, 1000, true, "latency of a hop, by protocol")       \
    X(NCCL_TREE_NVLINK, "nccl_tree_nvlink", "us", 3, 0, 1000, true, "latency of a hop, by protocol")         \
    X(NCCL_TREE_PCI, "nccl_tree_pci", "us", 3, 0, 1000, true, "latency of a hop, by protocol")               \
    X(NCCL_TREE_NETWORK, "nccl_tree_network", "us", 3, 0, 1000, true, "latency of a hop, by protocol")       \
    X(NCCL_LL_MOST, "nccl_ll_most", "GB/s", 3, 0.1, 1e4, true, "highest bandwidth, by number of machines")   \
    X(NCCL_RING_LL128_MOST, "nccl_ring_ll128_most", "GB/s", 3, 0.1, 1e4, true,                               \
      "highest per channel, by number of machines")                                                          \
    X(NCCL_TREE_LL128_MOST, "nccl_tree_ll128_most", "GB/s", 3, 0.1, 1e4, true,                               \
      "highest per channel, by number of machines")                                                          \
    X(NCCL_TREE_MOST, "nccl_tree_most", "GB/s", 3, 0.1, 1e4, true,                                           \
      "highest per channel, by number of machines")                                                          \
    X(NCCL_TREE_PATTERN, "nccl_tree_pattern", "1", 1, 0.1, 1, true,                                          \
      "factor on a tree's bandwidth, for its pattern")                                                       \
    X(NCCL_LL128, "nccl_ll128", "1", 1, 0, 1, true, "1 if the GPUs have LL128 over NVLink")                  \
    X(NCCL_OVERHEAD, "nccl_overhead", "us", 1, 0, 1000, true, "time to post a message to the network")       \
    X(NCCL_NETWORK_LATENCY, "nccl_network_latency", "us", 1, 0, 1000, true,                                  \
      "latency that the network driver states")                                                              \
    X(NCCL_PLATEAU, "nccl_plateau", "1", 1, 1, 10, true,                                                     \
      "factor on a ring's latency: Simple, several machines")                                                \
    X(NCCL_CORRECTION_LL, "nccl_correction_ll", "1", 24, 0.01, 1, true,                                      \
      "factors on a tree's bandwidth, by size")                                                              \
    X(NCCL_CORRECTION_LL128, "nccl_correction_ll128", "1", 24, 0.01, 1, true,                                \
      "factors on a tree's bandwidth, by size")                                                              \
    X(NCCL_CORRECTION_SIMPLE, "nccl_correction_simple", "1", 24, 0.01, 1, true,                              \
      "factors on a tree's bandwidth, by size")

#define SIM_CONSTANT_ENUM(NAME, name, unit, count, least, most, needed, meaning) SIM_##NAME,
typedef enum sim_constant { SIM_CONSTANT_LIST(SIM_CONSTANT_ENUM) SIM_CONSTANT_COUNT } sim_constant;
#undef SIM_CONSTANT_ENUM

enum { SIM_VALUES_MOST = 24 }; /* largest number of values of a constant */
enum { SIM_EFFICIENCIES = SIM_OPTIMIZER - SIM_CONVOLUTION_FORWARD + 1 };

typedef struct sim_constant_info {
    const char *name, *unit;
    int count;
    double least, most;
    bool needed;
    const char *meaning;
} sim_constant_info;

extern const sim_constant_info sim_constant_table[SIM_CONSTANT_COUNT];

#endif
