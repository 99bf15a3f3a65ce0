/* Virtual devices with round numbers, for the tests of this folder: a launch takes the host 10 us, a kernel
 * takes a given time, and nothing else takes any. */
#ifndef TESTS_COMMON_DEVICE_SIM_BENCH_H
#define TESTS_COMMON_DEVICE_SIM_BENCH_H

#include "common/device/sim/device_sim.h"
#include "tests/support/check.h"

enum { BENCH_RANKS = 8, BENCH_LAUNCH_US = 10, BENCH_KERNELS = 16 };

typedef struct bench {
    simulation *s;
    device *devices[BENCH_RANKS];
    device_stream *streams[BENCH_RANKS]; /* compute */
    struct {
        int64_t us;
        device_kernel *kernel;
    } kernels[BENCH_KERNELS];
    int world, kernel_count;
} bench;

/* Changes a constant of the profile; before devices are opened. */
void bench_set(simulation *s, sim_constant c, double value);

/* Opens `profile` (NULL: the default) with `world` ranks and the round numbers; bench_start opens the
 * devices. */
void bench_open(bench *b, const char *profile, int world);
void bench_start(bench *b);
void bench_close(bench *b);

/* Launches a kernel of so many microseconds. */
void bench_launch(bench *b, device_stream *s, int64_t us);

/* Waits as an actor's run does: STATUS_AGAIN, until the clock has come. Returns the number of tries. */
int bench_synchronize(bench *b, int rank, device_stream *s);

/* Takes the mark `slot` and gives its time, in us, once the stream is empty. */
double bench_mark_us(bench *b, int rank, device_stream *s, int slot);

/* The host's time in us. */
double bench_host_us(bench *b, int rank);

#endif
