/* A parameter server in a process of its own (--server-placement own): no rank, no data, no gradients. */
#ifndef PS_SERVER_PROCESS_H
#define PS_SERVER_PROCESS_H

#include "common/sync/engine.h"

/* Servers that need processes; 0 where they stand beside ranks. STATUS_USAGE or STATUS_CONFIG as the
 * engine's requirements(). */
status ps_own_servers(const void *options, const char *policy, int world, int *out);

/* What a server is given; everything is borrowed. The fields that sync_context has too must have the same
 * values as on the ranks. Parameters are opened with the param_kind of requirements() and without gradients;
 * their values do not matter: rank 0 hands over what the run starts from. */
typedef struct ps_server_context {
    int index;  /* 0 .. ps_own_servers() - 1 */
    int world;  /* ranks */
    uint64_t job_token;
    device *device;
    param_set *params;
    const nn_program *program;
    optimizer *optimizer;
    ledger *ledger;
    const void *options;
    const char *policy;
    int64_t stall_timeout_ns;
    int divide;
    net_link link;
    struct transport_hub *hub;

    /* For ps_server_main(): carries this server's offer to all members and theirs back: those of the ranks, then
     * those of the servers. sync_engine_type.connect() on the ranks must be given the same. */
    status (*exchange)(void *context, sync_blob mine, const sync_blob **offers);
    void *exchange_context;
} ps_server_context;

/* Serves until all ranks have ended their connections. Fails, on all ranks alike, where one is lost. */
status ps_server_main(const ps_server_context *context);

/* The same step by step, for servers that share a thread with others, as virtual ones do: opened up to the offer,
 * which is the server's; told all members' offers; an agent of the device then serves until it is closed. */
typedef struct ps_own_server ps_own_server;
status ps_own_server_open(const ps_server_context *context, ps_own_server **out);
status ps_own_server_offer(ps_own_server *p, sync_blob *out);
status ps_own_server_meet(ps_own_server *p, const sync_blob *offers);
status ps_own_server_start(ps_own_server *p);
void ps_own_server_close(ps_own_server **p);

#endif
