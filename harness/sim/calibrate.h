/* Measures the machine it runs on and writes what it found as a profile that extends `cpu`: operations class
 * by class, memory, sums, what a second rank costs, and the all-reduce in shared memory. */
#ifndef HARNESS_SIM_CALIBRATE_H
#define HARNESS_SIM_CALIBRATE_H

#include "common/base/status.h"
#include "common/sim/constants.h"

enum { CALIBRATED_CLASSES = SIM_OPTIMIZER - SIM_CONVOLUTION_FORWARD + 1 };

typedef struct calibration {
    int threads;        /* of a rank */
    double peak_tflops; /* of the fastest operation */
    double memory_gbs;  /* bytes a second of the operation that moves most, caches included */
    double efficiency[CALIBRATED_CLASSES]; /* SIM_CONVOLUTION_FORWARD ..; 0: not seen */
    double launch_us;                      /* of the shortest operation */
    double kappa;                          /* two ranks at a time against one */
    double host_memory_gbs;                /* of copies by two ranks together */
    double host_sum_gbs;                   /* operands of a server's thread */
    double allreduce_us, allreduce_gbs;    /* of nothing; bus bandwidth of 25 MB */
} calibration;

/* `threads` compute threads a rank, as a run will have. Takes some 10 seconds of a quiet machine. */
status calibrate(int threads, calibration *out);

/* A profile that sim_profile_load() takes. STATUS_CANNOT_CREATE, STATUS_IO. */
status calibration_write(const calibration *c, const char *path);

/* calibrate_ops.c: the times of all operations of training steps; fills peak, memory, efficiencies and
 * launch. `step_ms` becomes the median of a ResNet-18's step. */
status calibrate_operations(calibration *c, double *step_ms);
/* The median of that step alone. */
status calibrate_step(int threads, double *step_ms);

/* Where `harness calibrate` writes and `harness run` looks: $XDG_DATA_HOME/psring/profiles/this-machine.json,
 * or below ~/.local/share. `size` as PATH_MAX. STATUS_CONFIG without a home. */
status calibration_path(char *path, unsigned long size);

#endif
