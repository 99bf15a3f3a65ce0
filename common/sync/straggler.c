#include "common/sync/straggler.h"

#include "common/base/clock.h"
#include "common/base/text.h"

#include <stdio.h>
#include <string.h>

/* Shorter sleeps overshoot by as much as they take. */
enum { SHORTEST_SLEEP_NS = 200000 };

status straggler_init(straggler *s, const char *text, int rank, int world)
{
    *s = (straggler){0};
    if (!text) return STATUS_OK;
    char number[32];
    int64_t slow = 0;
    double factor = 1;
    const char *colon = strchr(text, ':');
    if (!colon || (size_t)(colon - text) >= sizeof number)
        return fail(STATUS_USAGE, "--slow: expected RANK:FACTOR, as in 1:2.5, got '%s'", text);
    snprintf(number, sizeof number, "%.*s", (int)(colon - text), text);
    TRY(text_parse_int("--slow, rank", number, 0, INT32_MAX, &slow));
    TRY(text_parse_double("--slow, factor", colon + 1, 1, 1000, &factor));
    if (slow >= world)
        return fail(STATUS_CONFIG, "--slow: expected a rank from 0 to %d, got %d", world - 1, (int)slow);
    if (slow == rank) s->stretch = factor - 1;
    return STATUS_OK;
}

void straggler_resume(straggler *s)
{
    if (s->stretch > 0) s->resumed_ns = clock_now_ns();
}

void straggler_pause(straggler *s)
{
    if (s->stretch <= 0 || s->resumed_ns == 0) return;
    int64_t now = clock_now_ns();
    s->debt_ns += (int64_t)((double)(now - s->resumed_ns) * s->stretch);
    s->resumed_ns = 0;
    if (s->debt_ns < SHORTEST_SLEEP_NS) return;
    clock_sleep_ns(s->debt_ns);
    s->debt_ns -= clock_now_ns() - now;
}
