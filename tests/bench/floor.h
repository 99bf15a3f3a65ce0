/* The floor under an operation's time: what the device would need if its fastest matrix product and its
 * fastest stream through memory were all it had to do. */
#ifndef TESTS_BENCH_FLOOR_H
#define TESTS_BENCH_FLOOR_H

#include "common/device/device.h"

typedef struct bench_floor {
    double flops_per_ns, bytes_per_ns;
} bench_floor;

/* Measures both: the best of several products of square matrices (1024 a side, on a GPU 8192) and of sums of
 * tensors of 64 MiB (256 MiB), and of what *out holds already: called before and after, a moment's
 * disturbance does no harm. */
status bench_floor_measure(device *d, device_stream *s, bench_floor *out);

/* The larger of arithmetic and traffic (op_cost_of()). What stays in a cache can be faster. */
double bench_floor_ns(const bench_floor *f, const op_desc *op);

#endif
