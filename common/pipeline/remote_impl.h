/* What both sides of a remote stage do with messages. */
#ifndef COMMON_PIPELINE_REMOTE_IMPL_H
#define COMMON_PIPELINE_REMOTE_IMPL_H

#include "common/base/clock.h"
#include "common/pipeline/remote.h"

/* The transport of a side; `adapter` outlives it. */
status remote_open_transport(const remote_config *config, int number, net_adapter *adapter, transport **out);

/* Waits until the memory of earlier frames is free. */
status remote_await_sent(transport *t, const transport_ticket *ticket, int64_t patience_ns);

/* What a side looks at again and again while it waits: when it looked last, and when it sent heartbeats. */
typedef struct remote_watch {
    int64_t looked_ns, heartbeat_ns;
} remote_watch;

/* The time since the last look, for limits of silence. A process or a machine that stood still has not
 * listened: then it counts two heartbeats at most. */
int64_t remote_watch_look(remote_watch *w, int64_t stall_timeout_ns);
/* Sends a heartbeat to each link that is up, where the last one was sent long enough before; returns when the
 * next is due. */
int64_t remote_watch_beat(remote_watch *w, transport *t, const int *links, int count,
                          int64_t stall_timeout_ns);

/* Makes the reason in a FAILED message this thread's failure. */
status remote_failure(const transport_message *m);

#endif
