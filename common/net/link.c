#include "common/net/link.h"

#include "common/base/clock.h"
#include "common/base/text.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

status net_link_parse(const char *text, net_link *out)
{
    static const char *const what = "--link";
    char rate[32];
    *out = (net_link){0};
    if (!text) return STATUS_OK;
    const char *comma = strchr(text, ',');
    if (!comma || comma - text >= (ptrdiff_t)sizeof rate)
        return fail(STATUS_USAGE, "%s: expected RATE,LATENCY such as 10Gbit/s,50us, got '%s'", what, text);
    snprintf(rate, sizeof rate, "%.*s", (int)(comma - text), text);
    TRY(text_parse_rate(what, rate, &out->bytes_per_second));
    return text_parse_duration_ns(what, comma + 1, &out->latency_ns);
}

char *net_link_format(const net_link *link, char *buffer, size_t size)
{
    char rate[48], latency[32];
    snprintf(buffer, size, "%s, %s", text_format_rate(rate, sizeof rate, (double)link->bytes_per_second),
             text_format_duration(latency, sizeof latency, (double)link->latency_ns));
    return buffer;
}

int64_t net_link_occupied_ns(const net_link *link, int64_t bytes)
{
    return (int64_t)((double)bytes / (double)link->bytes_per_second * (double)NS_PER_S);
}

/* Occupies a direction for `ns` nanoseconds, from `now_ns` on. If the direction is still occupied at
 * `now_ns`, starts when the direction becomes free. Returns the time at which the direction is free again. */
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
    /* The switch is cut-through, so the first byte arrived `ns` before the last byte. */
    int64_t ns = net_link_occupied_ns(&a->link, bytes);
    return occupy(&a->in_ns, ns, now_ns - ns);
}
