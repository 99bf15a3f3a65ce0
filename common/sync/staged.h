/* A staged copy on the host, for an engine that works on host memory while its rank computes on a device
 * whose memory the host cannot reach.
 *
 * The engine gets a device of the host, `cpu`, with parameters, gradients, buffers and an optimizer of its
 * own there; it does not know of the other device. The stages below stand between the train loop and the
 * engine: gradients come down as they become ready, and buffers after the forward pass, on a stream of their
 * own during the backward pass, and the engine's stage runs when they have arrived. Parameters go up before
 * their first use, buffers before every forward pass. Reduction and optimizer run on the host, unless the
 * engine's requirements say that it updates in front of the staged copy, with sync_context.front: then there
 * is one optimizer, the device's.
 *
 * The staged copy is in no ledger: it is what a transport's buffers are. */
#ifndef COMMON_SYNC_STAGED_H
#define COMMON_SYNC_STAGED_H

#include "common/sync/engine.h"

/* Opens an engine of `type` on a staged copy; `needs` are its requirements, `threads` those that its
 * optimizer computes with. STATUS_CONFIG for engines that also move batches. */
status sync_staged_open(const sync_context *context, const sync_engine_type *type,
                        const sync_requirements *needs, int threads, sync_engine **out);

/* Instead of the engine's ready(): the gradient comes down first. Before its finish(): all have come down. */
status sync_staged_ready(struct sync_staged *g, int param);
status sync_staged_finish(struct sync_staged *g);

#endif
