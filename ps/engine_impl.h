/* The inside of the engine, for engine*.c. */
#ifndef PS_ENGINE_IMPL_H
#define PS_ENGINE_IMPL_H

#include "common/sync/shared_options.h"
#include "ps/connect.h"
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
    sync_blob offer;
    ps_meeting meeting;
    net_adapter adapter; /* where a link is emulated */
    bool connected;
} ps_engine;

/* engine.c */
void ps_engine_close(sync_engine *base);
/* After the update of a step: the optimizer's state is in the ledger of whoever updates. */
void ps_engine_count_optimizer_state(const ps_engine *e);

/* engine_plan.c: the engine of a rank whose memory is only planned, without ports and peers */
extern const sync_engine_type ps_engine_planning;

/* engine_connect.c */
/* Where a GPU sums: the others' gradients, as far as they are mapped. */
status ps_engine_pin_gradients(ps_engine *e, bool pin);
status ps_engine_open_ports(ps_engine *e);
status ps_engine_handshake(sync_engine *e, sync_blob *out);
status ps_engine_connect(sync_engine *e, const sync_blob *offers);

#endif
