/* The parameter-server engine: workers push gradients, servers average them, run the optimizer and hand
 * parameters back. docs/ps.md describes policies and protocol. */
#ifndef PS_PS_H
#define PS_PS_H

#include "common/sync/engine.h"
#include "ps/dp/dp_memory.h"

extern const sync_engine_type sync_ps;

/* Staleness of this rank's reads. The staleness of a read is the number of updates that a key got
 * between the read and the update made with the gradient computed from it: 0 under sync, at most the
 * bound under ssp. Every key counts once per step. */
enum { PS_STALENESS_BINS = 64 };
typedef struct ps_report {
    int64_t reads;
    int64_t stale[PS_STALENESS_BINS]; /* reads by staleness; the last bin: PS_STALENESS_BINS - 1 or more */
    int64_t most;                     /* the largest staleness */
    double mean;
} ps_report;

/* On the rank's compute thread, in flushed state; `e` was opened by sync_ps. Under `dp` nothing is ever
 * stale: all zero. */
void ps_read_report(sync_engine *e, ps_report *out);

/* Under `dp`, on rank 0: the sizes of the last step's phases. False where there is nothing to compare:
 * another policy, one rank, or a batch that left rank 1 without samples. */
bool ps_dp_read_sizes(sync_engine *e, ps_dp_sizes *out);

/* Whether gradients are summed and parameters updated by GPUs: device 0's under `dp`, else those of the
 * servers' ranks. */
bool ps_updates_on_gpu(const sync_engine *e);

/* How ranks and servers reach each other: ps_member_ways(). */
void ps_read_ways(const sync_engine *e, const char **transport, const char **payload);

/* What runs, policy and options together, as "key=value" lines. */
void ps_write_settings(const sync_engine *e, text_buffer *out);

/* The number of steps by which a rank may lead another; JOB_UNBOUNDED
 * where nobody waits. STATUS_USAGE or STATUS_CONFIG as requirements(). */
status ps_lead(const void *options, const char *policy, int world, int64_t *out);

/* ---- servers in processes of their own ---------------------------------------------------------- */

/* Number of servers that need processes of their own; 0 where they are threads of ranks. STATUS_USAGE or
 * STATUS_CONFIG as the engine's requirements(). */
status ps_server_processes(const void *options, const char *policy, int world, int *out);

/* A parameter server in a process of its own (--server-placement own) is a sync_ps with `rank` = world + the
 * server's index: no rank, no data, no gradients. open(), handshake() and connect() are called as on the
 * ranks; in virtual time it then serves until it is closed. The context's fields must have the values that
 * they have on the ranks, except for device, params, optimizer, ledger. Parameters are opened with the
 * param_kind of requirements() and without gradients; their values do not matter: rank 0 sends those that the
 * run starts from.
 *
 * ps_server_main() does all of it, and serves until all ranks have ended their connections. Fails, on all
 * ranks alike, where one is lost. `exchange` sends this server's handshake to all members and returns theirs:
 * those of the ranks, then those of the servers. */
status ps_server_main(const sync_context *context,
                      status (*exchange)(void *exchange_context, sync_blob mine,
                                         const sync_blob **handshakes),
                      void *exchange_context);

#endif
