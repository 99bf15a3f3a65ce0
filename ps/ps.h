/* The parameter-server engine: workers push gradients, servers average them, run the optimizer and hand
 * parameters back. docs/ps.md describes policies and protocol. */
#ifndef PS_PS_H
#define PS_PS_H

#include "common/sync/engine.h"
#include "ps/dp_memory.h"

extern const sync_engine_type sync_ps;

/* How stale what this rank read was. The staleness of a read is the number of updates that a key got
 * between the read and the update made with the gradient computed from it: 0 under sync, at most the
 * bound under ssp. Every key counts once a step. */
enum { PS_STALENESS_BINS = 64 };
typedef struct ps_report {
    int64_t reads;
    int64_t stale[PS_STALENESS_BINS]; /* reads that were so many updates late; the last bin: that many or more */
    int64_t most;                     /* the largest staleness */
    double mean;
} ps_report;

/* On the rank's compute thread, in settled state; `e` was opened by sync_ps. Under `dp` nothing is ever stale:
 * all zero. */
void ps_read_report(sync_engine *e, ps_report *out);

/* Under `dp`, on rank 0: the sizes of the last step's phases. False where there is nothing to compare: another
 * policy, one rank, or a batch that left rank 1 without samples. */
bool ps_dp_read_sizes(sync_engine *e, ps_dp_sizes *out);

/* Whether gradients are summed and parameters updated by GPUs: device 0's under `dp`, else those beside servers. */
bool ps_updates_on_gpu(const sync_engine *e);

/* How many steps a rank may be ahead of another: what board_stop_here() is to be told; BOARD_UNBOUNDED
 * where nobody waits. STATUS_USAGE or STATUS_CONFIG as requirements(). */
status ps_lead(const void *options, const char *policy, int world, int64_t *out);

#endif
