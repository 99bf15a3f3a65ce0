/* The parameter-server engine: workers push gradients, servers average them, run the optimizer and return
 * parameters. docs/ps.md describes policies and protocol. */
#ifndef PS_PS_H
#define PS_PS_H

#include "common/sync/engine.h"
#include "ps/dataparallel/memory.h"

extern const sync_engine_type sync_ps;

/* The staleness of this rank's reads. A rank reads a key and computes a gradient, and the server updates the
 * key with this gradient. The staleness of the read is the number of other updates of the key between the
 * read and this update. The staleness is 0 under sync, and at most --staleness under ssp. Each step counts
 * one read per key. */
enum { PS_STALENESS_BINS = 64 };
typedef struct ps_report {
    int64_t reads;
    /* Number of reads by staleness. The last bin counts a staleness of PS_STALENESS_BINS - 1 or more. */
    int64_t stale[PS_STALENESS_BINS];
    int64_t most; /* The largest staleness. */
    double mean;
} ps_report;

/* Sets *out to the staleness of the reads so far. Called on the rank's compute thread after a flush, for an
 * engine of type sync_ps. All fields are 0 under `dp`. */
void ps_read_report(sync_engine *e, ps_report *out);

/* Sets *out to the sizes of the last step. From these sizes ps_dp_difference() computes how much more memory
 * rank 0 needs in each phase. Returns true if the policy is `dp`, this is rank 0, and rank 1 had samples. */
bool ps_dp_read_sizes(sync_engine *e, ps_dp_sizes *out);

/* Returns true if GPUs sum gradients and update parameters. Under `dp` the GPU of rank 0 does both. Under
 * other policies the GPUs of the ranks with servers do both. */
bool ps_updates_on_gpu(const sync_engine *e);

/* Returns how this rank or server reaches the others. Called after connect(). Sets *transport to the name of
 * the transport that carries messages: "inproc", "ipc", "tcp", or "sim" in virtual time. Sets *payload to the
 * value of --payload that says how tensors are moved: "nccl", "zmq" (in messages) or "shm" (also if a thread
 * reads another thread's memory). If there are no other members, sets both to NULL. */
void ps_read_ways(const sync_engine *e, const char **transport, const char **payload);

/* Appends the policy and the options to `out` as "key=value" lines. */
void ps_write_settings(const sync_engine *e, text_buffer *out);

/* Sets *out to the number of steps by which a rank may be ahead of another rank, or to JOB_UNBOUNDED if no
 * rank waits for another rank. Fails with STATUS_USAGE or STATUS_CONFIG in the same cases as
 * requirements(). */
status ps_lead(const void *options, const char *policy, int world, int64_t *out);

/* ---- servers in processes of their own ---------------------------------------------------------- */

/* Sets *out to the number of servers that have separate processes, or to 0 if servers are threads of
 * ranks. Fails in the same cases as ps_lead(). */
status ps_server_processes(const void *options, const char *policy, int world, int *out);

/* A parameter server in a separate process (--server-placement own) is an engine of type sync_ps, whose
 * `rank` is world + the server's index. The engine has no data and no gradients. open(), handshake() and
 * connect() are called as on the ranks. In virtual time the server runs from connect() to close().
 *
 * The fields of the context must have the same values as on the ranks, except for device, params, optimizer
 * and ledger. Parameters are opened with the param_kind of requirements() and without gradients. The values
 * of the parameters do not matter, because rank 0 sends the initial values.
 *
 * In a real process, ps_server_main() calls open(), handshake() and connect(), and returns when all ranks
 * have disconnected. If a rank is lost, the server and all ranks fail. `exchange` sends the server's
 * handshake to all members, and returns the handshakes of the ranks, followed by the handshakes of the
 * servers. */
status ps_server_main(const sync_context *context,
                      status (*exchange)(void *exchange_context, sync_blob mine,
                                         const sync_blob **handshakes),
                      void *exchange_context);

#endif
