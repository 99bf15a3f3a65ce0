/* Injects faults that a job must survive: drops, doubles or damages one message that a transport sends. */
#ifndef TESTS_COMMON_NET_TRANSPORT_FAULT_H
#define TESTS_COMMON_NET_TRANSPORT_FAULT_H

#include "common/net/transport.h"

typedef enum transport_fault_kind {
    TRANSPORT_NO_FAULT,
    TRANSPORT_DROP,
    TRANSPORT_DOUBLE,
    /* Flips one bit. The bit is in the first frame, or in the header's step if the message has no frame. */
    TRANSPORT_FLIP,
} transport_fault_kind;

/* Injects a fault into a message. `message` is the index of this message, where 0 is the next message that
 * the transport sends. */
void transport_inject(transport *t, transport_fault_kind kind, int64_t message);

#endif
