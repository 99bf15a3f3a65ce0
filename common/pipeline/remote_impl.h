/* Functions that send and receive messages, for the workers and for the remote stage. */
#ifndef COMMON_PIPELINE_REMOTE_IMPL_H
#define COMMON_PIPELINE_REMOTE_IMPL_H

#include "common/base/clock.h"
#include "common/pipeline/remote.h"

/* Opens the transport of rank `number`. `adapter` outlives the transport. */
status remote_open_transport(const remote_config *config, int number, net_adapter *adapter, transport **out);

/* Waits until the frames of `ticket` have left, so that their memory may be reused. Returns STATUS_PEER if
 * they have not left after `patience_ns`. */
status remote_await_sent(transport *t, const transport_ticket *ticket, int64_t patience_ns);

/* Times at which a waiting side last looked for messages and last sent heartbeats. */
typedef struct remote_watch {
    int64_t looked_ns, heartbeat_ns;
} remote_watch;

/* Returns the time since the side last looked, which the caller adds to the silence of the peer. The result
 * is at most two heartbeat intervals, so a pause of this process or machine adds little to the silence. */
int64_t remote_watch_look(remote_watch *w, int64_t stall_timeout_ns);
/* If the last heartbeat was sent long enough ago, sends a heartbeat over each of the links `first` to first +
 * count - 1 that is up. Returns the time of the next heartbeat. */
int64_t remote_watch_beat(remote_watch *w, transport *t, int first, int count, int64_t stall_timeout_ns);

#endif
