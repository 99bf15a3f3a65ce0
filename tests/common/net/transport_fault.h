/* Faults for tests of what must be survived: one message that a transport sends is dropped, doubled or
 * damaged. */
#ifndef TESTS_COMMON_NET_TRANSPORT_FAULT_H
#define TESTS_COMMON_NET_TRANSPORT_FAULT_H

#include "common/net/transport.h"

typedef enum transport_fault_kind {
    TRANSPORT_NO_FAULT,
    TRANSPORT_DROP,
    TRANSPORT_DOUBLE,
    TRANSPORT_FLIP, /* one bit, of the first frame or else of the header's step */
} transport_fault_kind;

/* `message`: index among those that the transport sends from now on. */
void transport_inject(transport *t, transport_fault_kind kind, int64_t message);

#endif
