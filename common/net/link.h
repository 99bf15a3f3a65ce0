/* An emulated network. Every rank has one full-duplex adapter. A switch of unlimited bandwidth connects all
 * adapters. A message occupies the sender's adapter for the time bytes / bandwidth, and the receiver's
 * adapter for the same time. The switch is a cut-through switch: it forwards the first byte before the last
 * byte has arrived. `latency` is added once per message (Hockney, "The communication challenge for MPP",
 * 1994).
 *
 * An adapter stores only the time until which each direction is occupied. The caller passes the current time,
 * so the functions work with any clock. */
#ifndef COMMON_NET_LINK_H
#define COMMON_NET_LINK_H

#include "common/base/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct net_link {
    int64_t bytes_per_second; /* 0 if no link is emulated */
    int64_t latency_ns;
} net_link;

/* Parses "10Gbit/s,50us" or "25MiB/s,0us". NULL means no emulation. Fails with STATUS_USAGE. */
status net_link_parse(const char *text, net_link *out);
/* Formats "8 Gbit/s (1 GB/s), 50.0 us". A `size` of 80 is enough. Returns `buffer`. */
char *net_link_format(const net_link *link, char *buffer, size_t size);

static inline bool net_link_is_emulated(const net_link *link)
{
    return link->bytes_per_second > 0;
}

/* Returns the time for which `bytes` bytes occupy one direction of an adapter. */
int64_t net_link_occupied_ns(const net_link *link, int64_t bytes);

/* The adapter of a rank. Several threads may use the adapter. The owner sets `link` and initializes all other
 * fields to zero. */
typedef struct net_adapter {
    net_link link;
    _Atomic int64_t out_ns, in_ns; /* time until which each direction is occupied */
} net_adapter;

/* Sends `bytes` bytes that are ready at `now_ns`. Returns the time at which the last byte has passed the
 * switch. This time includes the latency. */
int64_t net_adapter_send(net_adapter *a, int64_t bytes, int64_t now_ns);
/* Receives `bytes` bytes. The last byte reaches this rank's adapter at `now_ns`. Returns the time at which
 * all bytes have been received. Messages that arrive at the same time are received one after another. */
int64_t net_adapter_receive(net_adapter *a, int64_t bytes, int64_t now_ns);

#endif
