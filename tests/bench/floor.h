/* A lower bound of an operation's time: the time that the device would need if every product ran as fast as
 * its fastest matrix product, and all memory traffic as fast as its fastest stream. */
#ifndef TESTS_BENCH_FLOOR_H
#define TESTS_BENCH_FLOOR_H

#include "common/device/device.h"

typedef struct bench_floor {
    double flops_per_ns, bytes_per_ns;
} bench_floor;

/* Measures both rates: the best of several products of square matrices (1024 a side, on a GPU 8192), and the
 * best of several sums of tensors of 64 MiB (on a GPU 256 MiB). Keeps a rate that *out already holds if it is
 * better. Call it before and after a measurement, so that a short disturbance does no harm. */
status bench_floor_measure(device *d, device_stream *s, bench_floor *out);

/* Returns the larger of the times for arithmetic and for memory traffic (op_cost_of()). An operation whose
 * operands stay in a cache can be faster. */
double bench_floor_ns(const bench_floor *f, const op_desc *op);

#endif
