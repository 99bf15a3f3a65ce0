/* Parameter servers of their own (--server-placement own) in virtual time. Server j stands in the memory of the machine
 * of rank j (of as many ranks as there are, counted round), as a server on that rank would be; it has no GPU. Where
 * machines compute on their processors and cores are short its work takes that rank's. */
#ifndef HARNESS_SIM_VIRTUAL_SERVER_H
#define HARNESS_SIM_VIRTUAL_SERVER_H

#include "common/nn/params.h"
#include "harness/sim/virtual_job.h"
#include "ps/ps.h"

typedef struct virtual_server {
    device *device;
    param_set *params;
    optimizer *optimizer;
    ledger ledger;
    ps_server_process *server;
} virtual_server;

/* Server `index`. `first` is one of the ranks, `local` the rank on whose machine the server is. Close it after a failure
 * too. */
status virtual_server_open(virtual_server *v, const virtual_job_config *config, simulation *s, transport_hub *hub,
                           int index, trainer *first, trainer *local);

/* With all members' handshakes, its own among them; then it serves. */
status virtual_server_start(virtual_server *v, const sync_blob *handshakes);

/* Before the ranks'. */
void virtual_server_close(virtual_server *v);

#endif
