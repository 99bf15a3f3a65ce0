/* Measures a GPU and writes the result as a profile that extends `cuda`: classes of operations, memory,
 * launches, copies over the bus. If there are several GPUs, also measures copies between GPUs and NCCL's
 * all-reduce. If there is only one GPU, the profile assumes PCIe links and NCCL's published constants, and
 * says so. */
#ifndef HARNESS_SIM_CALIBRATE_GPU_H
#define HARNESS_SIM_CALIBRATE_GPU_H

#include "common/device/device.h"
#include "harness/sim/calibrate_impl.h"

enum { GPU_MOST = 16 };

/* Results of a calibration. Rates are in 1e9 bytes per second. */
typedef struct gpu_calibration {
    char name[128];
    bool emulated;   /* True if the host emulated the GPU, so that the figures are meaningless. */
    int gpus, major; /* Number of GPUs; major compute capability of the first GPU. */
    double memory_gib;
    double peak_tflops, tf32_tflops; /* Rates of a large GEMM. tf32_tflops is 0 if the GPU has no TF32. */
    double memory_gbs;               /* Rate of a large copy, in bytes read and written. */
    /* Efficiencies of the classes from SIM_CONVOLUTION_FORWARD on, relative to the peak [0] and to the memory
     * rate [1]. 0 if not measured. */
    double efficiency[SIM_EFFICIENCIES][2];
    double launch_us, kernel_us, synchronize_us;
    /* Rate of a copy between pinned memory and GPU, in the slower direction, and time of a copy of four
     * bytes. */
    double pcie_gbs, copy_us;
    double host_gbs; /* Rate of a copy by one host thread. */
    /* Measurements between GPUs are 0 if there is only one GPU. The measurements of the all-reduce are also 0
     * if there is no NCCL. */
    /* Slowest pair of GPUs: rate of a large copy, and time of a copy of eight bytes. */
    double peer_gbs, peer_us;
    /* Bus bandwidth of a large all-reduce, and time of an all-reduce of eight bytes. */
    double all_reduce_gbs, all_reduce_us;
} gpu_calibration;

/* Measures the first GPU, and the links of all GPUs. Takes about 20 seconds; the GPUs must be otherwise
 * idle. Returns STATUS_UNAVAILABLE if there is no GPU. */
status calibrate_gpu(gpu_calibration *out);

/* Writes a profile for sim_profile_load(). Returns STATUS_CANNOT_CREATE or STATUS_IO. */
status gpu_calibration_write(const gpu_calibration *c, const char *path);

enum { GPU_BEGIN = 1, GPU_END = 2, GPU_TURNS = 9 };

/* Waits for the stream and keeps the least time since mark GPU_BEGIN in *best. */
static inline status gpu_take_time(device_stream *s, int64_t *best)
{
    TRY(device_mark(s, GPU_END));
    TRY(device_stream_synchronize(s));
    keep_least(best, device_mark_ns(s, GPU_END) - device_mark_ns(s, GPU_BEGIN));
    return STATUS_OK;
}

/* Times copies of `count` float32 by a kernel of the GPU. Keeps the least time in *best. */
status gpu_time_copy(device_stream *s, void *to, const void *from, int64_t count, int64_t *best);

/* calibrate_gpu_peers.c: measures the links between GPUs. Does nothing if there is only one GPU. */
status calibrate_gpu_peers(gpu_calibration *c);

/* calibrate_gpu_ops.c: times all operations of training steps and sets the efficiencies. Needs the peak,
 * the memory bandwidth and kernel_us. */
status calibrate_gpu_operations(device *d, device_stream *s, gpu_calibration *c);

#endif
