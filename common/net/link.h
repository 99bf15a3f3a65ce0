/* An emulated network: every rank has one adapter, full duplex, between it and a switch without limits. A
 * message occupies the sender's way out and then the receiver's way in for bytes / bandwidth each, cut
 * through, and takes `latency` on top (Hockney, "The communication challenge for MPP", 1994).
 *
 * An adapter is a pair of timelines. Time is passed in, so that whoever keeps data back until it is due can
 * do so on any clock. */
#ifndef COMMON_NET_LINK_H
#define COMMON_NET_LINK_H

#include "common/base/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct net_link {
    int64_t bytes_per_second; /* 0: nothing is emulated */
    int64_t latency_ns;
} net_link;

/* "10Gbit/s,50us", "25MiB/s,0us"; NULL: none. STATUS_USAGE. */
status net_link_parse(const char *text, net_link *out);
/* "8 Gbit/s (1 GB/s), 50.0 us". Returns `buffer`; 80 bytes are enough. */
char *net_link_format(const net_link *link, char *buffer, size_t size);

static inline bool net_link_is_emulated(const net_link *link)
{
    return link->bytes_per_second > 0;
}

/* How long `bytes` occupy a way. */
int64_t net_link_occupied_ns(const net_link *link, int64_t bytes);

/* A rank's adapter. May be used by several threads; zero-initialized but for `link`. */
typedef struct net_adapter {
    net_link link;
    _Atomic int64_t out_ns, in_ns; /* until when each way is occupied */
} net_adapter;

/* `bytes` that are ready at `now_ns` enter the way out: when the last of them has reached the switch's other
 * side, latency included. */
int64_t net_adapter_send(net_adapter *a, int64_t bytes, int64_t now_ns);
/* `bytes` whose last one reached this rank at `now_ns`: when they are in, after what came at the same time.
 */
int64_t net_adapter_receive(net_adapter *a, int64_t bytes, int64_t now_ns);

#endif
