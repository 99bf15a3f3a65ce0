/* Measures the differences between the clocks of the ranks. CLOCK_MONOTONIC starts at a different moment on
 * each host.
 *
 * Every rank sends the current time of its clock in an all-gather, and records the time at which the
 * all-gather has ended. An all-gather ends on a rank only after all ranks have called it. Therefore rank 0
 * calls the all-gather before it ends on this rank, and this rank calls the all-gather before it ends on rank
 * 0. Each of these two facts bounds the clock difference from one side (Cristian, "Probabilistic clock
 * synchronization", 1989). The ranks make several exchanges and keep the narrowest bounds. */
#ifndef COMMON_NET_CLOCKS_H
#define COMMON_NET_CLOCKS_H

#include "common/net/rendezvous.h"

/* Bounds of the difference "time of this rank's clock minus time of rank 0's clock". `at_ns` is the time of
 * the measurement on this rank's clock. */
typedef struct clock_bounds {
    int64_t low_ns, high_ns, at_ns;
} clock_bounds;

/* Measures the bounds. All ranks must call this function. On rank 0 both bounds are 0. */
status clock_bounds_measure(rendezvous *r, int rank, int world, int64_t deadline_ns, clock_bounds *out);

/* Offsets that convert times of this rank to the clock of rank 0. The offsets are measured at the beginning
 * and at the end of a run. */
typedef struct clock_alignment {
    bool aligned; /* false if this rank uses the same clock as rank 0, so that times need no conversion */
    /* largest possible error of a conversion, or 0 if this rank uses the same clock as rank 0 */
    int64_t error_ns;
    int64_t begin_ns, end_ns; /* times of the two measurements on this rank's clock */
    int64_t begin_offset_ns, end_offset_ns;
} clock_alignment;

/* Returns the alignment of this rank. A rank on the host of rank 0 uses the same clock as rank 0, unless the
 * bounds show that the clocks differ. They differ if the ranks are in different time namespaces
 * (time_namespaces(7)). */
clock_alignment clock_align(const rendezvous *r, int rank, const clock_bounds *begin,
                            const clock_bounds *end);

/* Converts a time of this rank's clock to rank 0's clock. The offset is interpolated linearly between the two
 * measured offsets. */
int64_t clock_on_rank_0(const clock_alignment *a, int64_t local_ns);
int64_t clock_from_rank_0(const clock_alignment *a, int64_t ns);

#endif
