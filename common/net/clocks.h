/* How far the clocks of a job's ranks are apart: CLOCK_MONOTONIC begins at another moment on every host.
 *
 * Every rank sends its time in an all-gather and notes when that has ended. Since an all-gather ends after
 * all have called, rank 0's call came before this rank's end, and this rank's call before rank 0's end: two
 * bounds of the difference (Cristian, "Probabilistic clock synchronization", 1989). Of several exchanges the
 * narrowest bounds count. */
#ifndef COMMON_NET_CLOCKS_H
#define COMMON_NET_CLOCKS_H

#include "common/net/rendezvous.h"

/* This rank's clock less that of rank 0, in ns, is within [low, high]; it was measured at `at_ns` of this
 * clock. */
typedef struct clock_bounds {
    int64_t low_ns, high_ns, at_ns;
} clock_bounds;

/* All ranks call it. On rank 0 both bounds are 0. */
status clock_bounds_measure(rendezvous *r, int rank, int world, int64_t deadline_ns, clock_bounds *out);

/* From measurements at the begin and end of a run: the times of this rank on rank 0's clock. */
typedef struct clock_alignment {
    bool aligned;             /* false: this rank has rank 0's clock, and its times need no change */
    int64_t error_ns;         /* the greatest difference from the truth; 0 with rank 0's clock */
    int64_t begin_ns, end_ns; /* on this clock */
    int64_t begin_offset_ns, end_offset_ns;
} clock_alignment;

/* Of this rank. Ranks of rank 0's host have its clock, unless the bounds exclude it (a time namespace,
 * time_namespaces(7)). */
clock_alignment clock_align(const rendezvous *r, int rank, const clock_bounds *begin,
                            const clock_bounds *end);

/* A time of this rank's clock on rank 0's, by the offset that lies on the line between the two measured ones.
 */
int64_t clock_on_rank_0(const clock_alignment *a, int64_t local_ns);
/* The reverse. */
int64_t clock_from_rank_0(const clock_alignment *a, int64_t ns);

#endif
