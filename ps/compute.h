/* Work on tensor bytes: threads that sum and update, and what that costs in virtual time. The virtual device
 * has no bytes: there nothing is touched, and whoever acts spends the time that the work would take. */
#ifndef PS_COMPUTE_H
#define PS_COMPUTE_H

#include "common/device/device.h"
#include "common/memory/piece.h"
#include "common/nn/program.h"
#include "common/sync/staging.h"

bool ps_has_bytes(const device *d);

/* In virtual time: one pass over `bytes` by that many threads of the host, or by the device itself (0). */
void ps_charge_pass(device *d, double bytes, int threads);

/* In virtual time: the device computes on its host's processor, whose threads sum. */
bool ps_sums_on_host(device *d);

/* In virtual time: that many host threads launch under one interpreter's lock from now on; 0: without one. */
void ps_share_interpreter(device *d, int threads);

/* In virtual time: the host begins to make `replicas` of so many parameters; and waits until they exist. */
void ps_wire(device *d, int replicas, int parameters);
void ps_await_wiring(device *d);

/* In virtual time: bytes per sample that replicas whose loss is their own return besides it
 * (simulation_config.gathered). */
int64_t ps_returned_bytes(device *d, const nn_program *program, int64_t output_bytes);

/* Threads that process one job at a time together with the thread that submits it. */
typedef struct ps_thread_pool ps_thread_pool;

/* `threads` includes the caller's: with 1 no thread is started. */
status ps_thread_pool_open(int threads, ps_thread_pool **out);
void ps_thread_pool_close(ps_thread_pool **pool);

/* Elements [at, at + count) of pieces[piece], on thread `thread`. */
typedef status (*ps_range_function)(void *context, int thread, int piece, int64_t at, int64_t count);

/* Cuts every piece into one part per thread, and each part into ranges that stay in the cache. Calls
 * `function` once for each range, and returns when all have been processed, with the first failure if there
 * was one. */
status ps_thread_pool_run(ps_thread_pool *pool, piece_list pieces, ps_range_function function, void *context);

#endif
