/* Measures a GPU and writes what it found as a profile that extends `cuda`: operations class by class,
 * memory, launches, copies over the bus. Where there are several GPUs: copies between them, and NCCL's
 * all-reduce. With one the links are taken for PCIe and NCCL's published constants stand, and the profile
 * says so. */
#ifndef HARNESS_SIM_CALIBRATE_GPU_H
#define HARNESS_SIM_CALIBRATE_GPU_H

#include "common/device/device.h"
#include "common/sim/constants.h"

enum { GPU_MOST = 16 };

/* Rates in 1e9 bytes per second; times in us. */
typedef struct gpu_calibration {
    char name[128];
    bool emulated;   /* kernels ran on the host: figures mean nothing */
    int gpus, major; /* found; compute capability of the first */
    double memory_gib;
    double peak_tflops, tf32_tflops; /* a large matrix product; 0: the GPU has no TF32 */
    double memory_gbs;               /* a large copy, read and written */
    double efficiency[SIM_EFFICIENCIES]
                     [2]; /* SIM_CONVOLUTION_FORWARD ..: of the peak, of the memory; 0: not seen */
    double launch_us, kernel_us, synchronize_us;
    double pcie_gbs, copy_us; /* pinned memory to the GPU and back, the slower; a copy of four bytes */
    double host_gbs;          /* a copy by one thread of the host */
    /* Of all GPUs; 0: there is one, or no NCCL. */
    double peer_gbs, peer_us; /* a copy out of another's memory, of the slowest pair; one of eight bytes */
    double all_reduce_gbs, all_reduce_us; /* bus bandwidth of a large one; one of eight bytes */
} gpu_calibration;

/* Of the first GPU. Takes some 20 seconds of a GPU that does nothing else. STATUS_UNAVAILABLE without one. */
status calibrate_gpu(gpu_calibration *out);

/* A profile that sim_profile_load() takes. STATUS_CANNOT_CREATE, STATUS_IO. */
status gpu_calibration_write(const gpu_calibration *c, const char *path);

enum { GPU_BEGIN = 1, GPU_END = 2, GPU_TURNS = 9 };

static inline void keep_least(int64_t *best, int64_t ns)
{
    if (ns > 0 && (*best == 0 || ns < *best)) *best = ns;
}

/* A stream's time from the mark GPU_BEGIN to now; *best is the least of several. */
static inline status gpu_take_time(device_stream *s, int64_t *best)
{
    TRY(device_mark(s, GPU_END));
    TRY(device_stream_synchronize(s));
    keep_least(best, device_mark_ns(s, GPU_END) - device_mark_ns(s, GPU_BEGIN));
    return STATUS_OK;
}

/* calibrate_gpu_peers.c: what several GPUs cost each other; nothing where there is one. */
status calibrate_gpu_peers(gpu_calibration *c);

/* calibrate_gpu_ops.c: the times of all operations of training steps; fills the efficiencies. Needs peak,
 * memory and kernel_us. */
status calibrate_gpu_operations(device *d, device_stream *s, gpu_calibration *c);

#endif
