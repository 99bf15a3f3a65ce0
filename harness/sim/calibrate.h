/* Measures the machine it runs on and writes what it found as a profile that extends `cpu`: operations class
 * by class on one rank; then two ranks side by side, which compute without exchanging anything: how much they
 * slow each other, and how fast they read and write each other's memory.
 *
 * The files in the order in which data flow through them:
 *   calibrate.c            the measurements one after another
 *   calibrate_ops.c        training steps, operation by operation
 *   calibrate_pair.c       two ranks at a time
 *   calibrate_message.c    messages between agents
 *   calibrate_gpu.c, calibrate_gpu_ops.c, calibrate_gpu_peers.c: a GPU, its operations, several GPUs
 *   calibrate_profile.c    what was found as a profile */
#ifndef HARNESS_SIM_CALIBRATE_H
#define HARNESS_SIM_CALIBRATE_H

#include "common/base/status.h"
#include "common/base/text.h"
#include "common/sim/constants.h"

#include <sched.h>

enum { CALIBRATED_CONTENTIONS = 3 };

/* Rates in 1e9 bytes per second. */
typedef struct calibration {
    int threads, cores;                     /* of a rank, that compute; of the machine */
    int processors;                         /* that a rank is bound to; 0: it is not */
    cpu_set_t *sets;                        /* [2] while it is measured; NULL: not bound */
    double peak_tflops;                     /* of the fastest operation but for convolutions of 3 x 3 */
    double memory_gbs;                      /* of the operation that moves most bytes, caches included */
    double efficiency[SIM_EFFICIENCIES][2]; /* SIM_CONVOLUTION_FORWARD .., of peak, of memory; 0: not seen */
    double weight_gbs;                      /* see SIM_WEIGHT_BANDWIDTH; 0: no time of its own was seen */
    double launch_us;                       /* of the shortest operation */
    double contention[CALIBRATED_CONTENTIONS]; /* two ranks at a time against one, see SIM_CONTENTION */
    double host_memory_gbs;                    /* copies by two ranks together */
    double pack_gbs;                           /* gradients into buckets, read and written */
    double host_sum_gbs;     /* two ranks' gradients summed, parameters updated: read and written */
    double copy_gbs;         /* bytes copied from the other rank */
    double message_us;       /* processor time of each end, the transport's threads included */
    double message_copy_gbs; /* of each end: 0 where no size costs more than another */
    double wake_us;          /* an agent that is woken by another thread, both sides together */
    double allreduce_us;     /* 4 KiB */
    double allreduce_gbs;    /* bytes that two ranks sum, half each, for both: per rank's own time */
} calibration;

/* `threads` compute threads per rank and a bind_mode, as a run will have. Takes some 10 seconds of a quiet
 * machine. */
status calibrate(int threads, int bind, calibration *out);

/* A profile that sim_profile_load() takes. STATUS_CANNOT_CREATE, STATUS_IO. */
status calibration_write(const calibration *c, const char *path);

/* Where `harness calibrate` writes and `harness run` looks for `file`, this-machine.json or this-gpu.json:
 * $XDG_DATA_HOME/psring/profiles, or below ~/.local/share. `size` as PATH_MAX. STATUS_CONFIG without a home.
 */
status calibration_path(const char *file, char *path, size_t size);

/* Makes the folders that lead to a file; whether they are there shows when it is opened. */
void calibration_make_folders(const char *path);

#endif
