/* Work on tensor bytes: host threads that sum and update, and the cost of this work in virtual time. On the
 * virtual device, which has no tensor bytes, the functions touch no memory, and the actor spends the time
 * that the work would take. */
#ifndef PS_THREADS_H
#define PS_THREADS_H

#include "common/device/device.h"
#include "common/memory/piece.h"
#include "common/nn/program.h"
#include "common/sync/staging.h"

bool ps_has_bytes(const device *d);

/* Spends the time of one pass over `bytes`, in virtual time. `threads` threads of the host make the pass, or
 * the device if `threads` is 0. */
void ps_charge_pass(device *d, double bytes, int threads);

/* Returns the bytes per sample that a replica returns in addition to its loss, in virtual time
 * (simulation_config.gathered). */
int64_t ps_returned_bytes(device *d, const nn_program *program, int64_t output_bytes);

/* Processes elements [at, at + count) of pieces[piece] on thread `thread`. */
typedef status (*ps_range_function)(void *context, int thread, int piece, int64_t at, int64_t count);

/* Cuts the pieces into one part per thread, and each part into ranges that stay in the cache. Calls
 * `function` once for each range. Returns when all ranges have been processed, with the first failure if
 * there was one. */
status ps_run_ranges(int threads, piece_list pieces, ps_range_function function, void *context);

#endif
