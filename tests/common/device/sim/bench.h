/* Virtual devices with round numbers, for the tests of this folder. A launch takes 10 us of the host's time,
 * a test chooses the time of each kernel, and everything else takes no time. */
#ifndef TESTS_COMMON_DEVICE_SIM_BENCH_H
#define TESTS_COMMON_DEVICE_SIM_BENCH_H

#include "common/device/sim/device_sim.h"
#include "tests/support/check.h"

enum { BENCH_RANKS = 8, BENCH_LAUNCH_US = 10, BENCH_KERNELS = 16 };

typedef struct bench {
    simulation *s;
    device *devices[BENCH_RANKS];
    device_stream *streams[BENCH_RANKS]; /* The compute stream of each rank. */
    struct {
        int64_t us;
        device_kernel *kernel;
    } kernels[BENCH_KERNELS];
    int world, kernel_count;
} bench;

/* Changes a constant of the profile. Call it before bench_start(). */
void bench_set(simulation *s, sim_constant c, double value);

/* Opens a simulation of `world` ranks with the round numbers. If `profile` is NULL, the default profile is
 * used. bench_start() then opens the devices. */
void bench_open(bench *b, const char *profile, int world);
void bench_start(bench *b);
void bench_close(bench *b);

void bench_launch(bench *b, device_stream *s, int64_t us);

/* Runs the simulation until the stream is empty. Returns how often the host tried to synchronize. */
int bench_synchronize(bench *b, int rank, device_stream *s);

/* Sets mark `slot` in the stream, synchronizes, and returns the time of this mark in us. */
double bench_mark_us(bench *b, int rank, device_stream *s, int slot);

double bench_host_us(bench *b, int rank);

#endif
