/* Runs an engine that works on host memory, for a rank that computes on a GPU whose memory the host cannot
 * access.
 *
 * The engine receives a CPU device, an optimizer, and a staged copy of parameters, gradients and buffers. The
 * engine uses the GPU only if updates_on_gpu is set. The train loop calls the functions of engine.h, which
 * copy data and call the engine:
 *
 *   begin_forward   copies buffers to the GPU
 *   need            copies the parameter to the GPU, before its first use
 *   end_forward     copies buffers to the host after the forward pass
 *   ready           copies the gradient to the host during the backward pass
 *   reduce          waits until all gradients are on the host
 *
 * Copies to the host run on a separate stream. When the copy of a gradient or of the buffers has arrived on
 * the host, the engine's ready() or end_forward() is called.
 *
 * The reduction and the optimizer run on the host. If the engine requires updates_on_gpu, there is no
 * optimizer on the host: the engine updates the parameters in GPU memory through sync_context.gpu.
 *
 * The ledger counts neither the staged copy nor the buffers of transports. */
#ifndef COMMON_SYNC_STAGED_H
#define COMMON_SYNC_STAGED_H

#include "common/sync/engine.h"

/* Opens an engine of `type` on a staged copy. `needs` are the requirements of the engine, and `threads` is
 * the number of threads of the optimizer. Returns STATUS_CONFIG if the engine moves batches between ranks or
 * shards the state. */
status sync_staged_open(const sync_context *context, const sync_engine_type *type,
                        const sync_requirements *needs, int threads, sync_engine **out);

/* sync_close() stops the copies with sync_staged_stop(), closes the engine, and then closes the staged
 * copy with sync_staged_close(). */
void sync_staged_stop(struct sync_staged *g);
void sync_staged_close(struct sync_staged *g);

/* sync_staged_X() makes the copies for sync_X() of engine.h. sync_staged_end_forward(), sync_staged_ready()
 * and sync_staged_group_sum() also call the engine. */
status sync_staged_connect(const struct sync_staged *g);
status sync_staged_begin_forward(struct sync_staged *g, const sync_step *step);
status sync_staged_need(struct sync_staged *g, int param);
status sync_staged_end_forward(struct sync_staged *g, const sync_step *step);
status sync_staged_ready(struct sync_staged *g, int param);
status sync_staged_reduce(struct sync_staged *g);
status sync_staged_flush(const struct sync_staged *g);
status sync_staged_group_sum(struct sync_staged *g, double *values, int count);

#endif
