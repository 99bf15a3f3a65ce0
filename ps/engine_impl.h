/* Internal declarations of the engine. engine.c, worker/step.c and dataparallel/engine.c use them. */
#ifndef PS_ENGINE_IMPL_H
#define PS_ENGINE_IMPL_H

#include "common/sync/engine.h"
#include "ps/handshake.h"
#include "ps/server/server.h"
#include "ps/worker/worker.h"

typedef struct ps_engine {
    sync_engine base;
    const ps_options *options;
    ps_policy policy;
    ps_plan *plan;
    ps_member member;
    ps_worker *worker; /* Worker of this rank. NULL in the separate process of a server. */
    ps_server *server; /* Server of this rank, or NULL. */
    int index;
} ps_engine;

/* Implements sync_engine_type.handshake() under every policy. */
status ps_handshake(sync_engine *e, sync_blob *out);

#endif
