/* An engine that works on host memory, for a device whose memory the host cannot reach.
 *
 * The engine behind it (any: it notices nothing) gets a device of the host, `cpu`, with parameters,
 * gradients, buffers and an optimizer of its own there: the mirror. Gradients come down as they become
 * ready, and buffers after the forward pass, on a stream of their own during the backward pass; the engine
 * learns when they have arrived. Parameters go up before their first use, buffers before every forward pass. Reduction
 * and optimizer run on the host, unless the engine's requirements say that it updates in front of the mirror, with
 * sync_context.front: then there is one optimizer, the device's.
 *
 * Where passes are recorded need() and ready() stand between two records.
 *
 * The mirror is in no ledger: it is what a transport's buffers are. */
#ifndef COMMON_SYNC_STAGED_H
#define COMMON_SYNC_STAGED_H

#include "common/sync/engine.h"

/* Opens an engine of `type` behind the mirror; `needs` are its requirements, `threads` those that its optimizer
 * computes with. The result's type is the wrapper's, and sync_staged_inner() the engine itself. STATUS_CONFIG
 * for engines that also move batches. */
status sync_staged_open(const sync_context *context, const sync_engine_type *type, const sync_requirements *needs,
                        int threads, sync_engine **out);

/* The engine behind the mirror; `e` itself where it is none. For figures, and for reduced_gradients(). */
sync_engine *sync_staged_inner(sync_engine *e);

#endif
