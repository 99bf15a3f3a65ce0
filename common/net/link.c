#include "common/net/link.h"

#include "common/base/clock.h"
#include "common/base/text.h"

#include <stdio.h>
#include <string.h>

static status refuse(const char *text)
{
    return fail(STATUS_USAGE, "--link: expected BANDWIDTH,LATENCY as in 1GB/s,50us, got '%s'", text);
}

status net_link_parse(const char *text, net_link *out)
{
    char bandwidth[32];
    *out = (net_link){0};
    if (!text) return STATUS_OK;
    const char *comma = strchr(text, ',');
    size_t length = comma ? (size_t)(comma - text) : 0;
    if (length < 3 || length >= sizeof bandwidth || memcmp(comma - 2, "/s", 2) != 0) return refuse(text);
    snprintf(bandwidth, sizeof bandwidth, "%.*s", (int)length - 2, text);
    TRY(text_parse_bytes("--link", bandwidth, &out->bytes_per_second));
    TRY(text_parse_duration_ns("--link", comma + 1, &out->latency_ns));
    return out->bytes_per_second > 0 ? STATUS_OK : refuse(text);
}

char *net_link_format(const net_link *link, char *buffer, size_t size)
{
    char latency[32];
    double bytes = (double)link->bytes_per_second;
    const char *unit = bytes >= 1e9 ? "GB/s" : bytes >= 1e6 ? "MB/s" : bytes >= 1e3 ? "kB/s" : "B/s";
    double scale = bytes >= 1e9 ? 1e9 : bytes >= 1e6 ? 1e6 : bytes >= 1e3 ? 1e3 : 1;
    text_format_duration(latency, sizeof latency, (double)link->latency_ns);
    snprintf(buffer, size, "%.4g %s, %s", bytes / scale, unit, latency);
    return buffer;
}

int64_t net_link_occupied_ns(const net_link *link, int64_t bytes)
{
    return (int64_t)((double)bytes / (double)link->bytes_per_second * (double)NS_PER_S);
}

/* Occupies a way for `ns` from `now_ns` on, behind what it is occupied by; returns the end. */
static int64_t occupy(_Atomic int64_t *way, int64_t ns, int64_t now_ns)
{
    int64_t free_ns = atomic_load_explicit(way, memory_order_relaxed), end;
    do end = (free_ns > now_ns ? free_ns : now_ns) + ns;
    while (!atomic_compare_exchange_weak_explicit(way, &free_ns, end, memory_order_relaxed,
                                                  memory_order_relaxed));
    return end;
}

int64_t net_adapter_send(net_adapter *a, int64_t bytes, int64_t now_ns)
{
    return occupy(&a->out_ns, net_link_occupied_ns(&a->link, bytes), now_ns) + a->link.latency_ns;
}

int64_t net_adapter_receive(net_adapter *a, int64_t bytes, int64_t now_ns)
{
    int64_t ns = net_link_occupied_ns(&a->link, bytes); /* cut through: they began to come in before */
    return occupy(&a->in_ns, ns, now_ns - ns);
}
