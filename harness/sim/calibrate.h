/* Measures this machine and writes the result as a profile that extends `cpu`. First one rank runs every
 * class of operations. Second, two ranks compute at the same time without exchanging data, which shows how
 * much two ranks slow each other. Third, the two ranks read and write each other's memory. Last, they send
 * each other messages.
 *
 * Measures a GPU and writes the result as a profile that extends `cuda`: classes of operations, memory,
 * launches, copies over the bus. If there are several GPUs, also measures copies between GPUs and NCCL's
 * all-reduce. If there is only one GPU, the profile assumes PCIe links and NCCL's published constants, and
 * says so.
 *
 * Files, in the order in which data flow through them:
 *   calibrate.c            runs the measurements
 *   calibrate_ops.c        training steps, operation by operation
 *   calibrate_pair.c       two ranks at a time
 *   calibrate_message.c    messages between agents
 *   calibrate_gpu.c        a GPU
 *   calibrate_gpu_ops.c    operations on a GPU
 *   calibrate_gpu_peers.c  several GPUs
 *   calibrate_profile.c    writes the profile */
#ifndef HARNESS_SIM_CALIBRATE_H
#define HARNESS_SIM_CALIBRATE_H

#include "common/base/status.h"
#include "common/sim/constants.h"

#include <sched.h>

enum { CALIBRATED_CONTENTIONS = 3 };

/* Results of a calibration. Rates are in 1e9 bytes per second. */
typedef struct calibration {
    int threads, cores; /* Compute threads per rank, and cores of the machine. */
    int processors;     /* Processors to which a rank is bound, or 0. */
    cpu_set_t *sets; /* [2] processors of each rank, during the measurement. NULL if ranks are not bound. */
    double peak_tflops; /* Rate of the fastest operation, except 3 x 3 convolutions. */
    double memory_gbs;  /* Memory rate of the fastest operation, caches included. */
    /* Efficiencies of the classes from SIM_CONVOLUTION_FORWARD on, relative to the peak [0] and to the memory
     * rate [1]. 0 if not measured. */
    double efficiency[SIM_EFFICIENCIES][2];
    double weight_gbs; /* SIM_WEIGHT_BANDWIDTH. 0 if not measured. */
    double launch_us;  /* Time of the shortest operation. */
    /* SIM_CONTENTION: factor by which a second rank slows a rank. */
    double contention[CALIBRATED_CONTENTIONS];
    double host_memory_gbs; /* Total rate of two ranks that copy at the same time. */
    double pack_gbs;        /* Rate of packing gradients into buckets, in bytes read and written. */
    /* Rate of summing the gradients of two ranks and updating the parameters, in bytes read and written. */
    double host_sum_gbs;
    double copy_gbs;   /* Rate of a copy from the other rank. */
    double message_us; /* Processor time of a message at each end, including the transport's threads. */
    /* Bytes of a message per second of processor time at each end. 0 if the time does not grow with the
     * size. */
    double message_copy_gbs;
    double wake_us;      /* Processor time of a wake-up, in both threads together. */
    double allreduce_us; /* Time of an all-reduce of 4 KiB. */
    /* Rate of an all-reduce of two ranks, each of which reduces half: bytes per second of a rank's processor
     * time. */
    double allreduce_gbs;
} calibration;

/* Measures with `threads` compute threads per rank and with the bind_mode `bind`. Both must be the same as in
 * the runs that the profile will predict. Takes about 15 seconds; the machine must be otherwise idle. */
status calibrate(int threads, int bind, calibration *out);

/* Writes a profile for sim_profile_load(). Returns STATUS_CANNOT_CREATE or STATUS_IO. */
status calibration_write(const calibration *c, const char *path);

/* ---- GPUs ---- */

/* Results of the calibration of a GPU. Rates are in 1e9 bytes per second. */
typedef struct gpu_calibration {
    char name[128];
    bool emulated;   /* True if the host emulated the GPU, so that the figures are meaningless. */
    int gpus, major; /* GPUs found; compute capability of the first. */
    double memory_gib;
    double peak_tflops, tf32_tflops; /* Rates of a large GEMM. tf32_tflops is 0 if the GPU has no TF32. */
    double memory_gbs;               /* Rate of a large copy, in bytes read and written. */
    /* SIM_CONVOLUTION_FORWARD and following: efficiency against the peak and against the memory. 0 if not
     * measured. */
    double efficiency[SIM_EFFICIENCIES][2];
    double launch_us, kernel_us, synchronize_us;
    /* Rate of a copy between pinned memory and GPU, in the slower direction, and time of a copy of four
     * bytes. */
    double pcie_gbs, copy_us;
    double host_gbs; /* Rate of a copy by one host thread. */
    /* Measurements between GPUs, 0 if there is only one GPU. The all-reduce is also 0 if there is no NCCL. */
    double peer_gbs, peer_us; /* Slowest pair: rate of a large copy, and time to copy eight bytes. */
    double all_reduce_gbs, all_reduce_us; /* All-reduce: bus bandwidth of a large one, time of eight bytes. */
} gpu_calibration;

/* Measures the first GPU, and the links of all GPUs. Takes about 20 seconds; the GPUs must be otherwise
 * idle. Returns STATUS_UNAVAILABLE if there is no GPU. */
status calibrate_gpu(gpu_calibration *out);

/* Writes a profile like calibration_write(). */
status gpu_calibration_write(const gpu_calibration *c, const char *path);

/* ---- files ---- */

/* Sets the path of `file` (this-machine.json or this-gpu.json), which `harness calibrate` writes and
 * `harness run` reads, in $XDG_DATA_HOME/psring/profiles or ~/.local/share/psring/profiles. `size` is
 * PATH_MAX. Returns STATUS_CONFIG if there is no home folder. */
status calibration_path(const char *file, char *path, size_t size);

/* Makes the folders of a path. Ignores errors: opening the file reports them. */
void calibration_make_folders(const char *path);

#endif
