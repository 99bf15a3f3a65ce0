/* The inside of the engine, for engine*.c. */
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
    ps_worker *worker;
    ps_server *server; /* of this rank, or NULL */
    char url[PS_URL_MAX]; /* its address */
    sync_blob handshake;
    ps_group group;
    net_adapter adapter; /* where a link is emulated */
    bool connected;
} ps_engine;

/* engine_connect.c */
/* Where a GPU sums: the others' gradients, as far as they are mapped. */
status ps_engine_pin_gradients(ps_engine *e, bool pin);
status ps_engine_open_ports(ps_engine *e);
status ps_engine_handshake(sync_engine *e, sync_blob *out);
status ps_engine_connect(sync_engine *e, const sync_blob *handshakes);

#endif
