/* The inside of the engine, for engine.c and the worker's stages. */
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
    ps_worker *worker; /* NULL: this is a server in a process of its own */
    ps_server *server; /* of this rank, or NULL */
    int index;         /* of the server */
    bool connected;
} ps_engine;

#endif
