#include "common/sync/straggler.h"

#include "common/base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static status read_pair(const char *pair, size_t length, int world, int64_t *rank, double *factor)
{
    char number[32], value[32];
    const char *colon = memchr(pair, ':', length);
    size_t digits = colon ? (size_t)(colon - pair) : 0, rest = colon ? length - digits - 1 : 0;
    if (!colon || digits >= sizeof number || rest >= sizeof value)
        return fail(STATUS_USAGE, "--slow: expected RANK:FACTOR, as in 1:2.5, got '%.*s'", (int)length, pair);
    snprintf(number, sizeof number, "%.*s", (int)digits, pair);
    snprintf(value, sizeof value, "%.*s", (int)rest, colon + 1);
    TRY(text_parse_int("--slow, rank", number, 0, INT32_MAX, rank));
    TRY(text_parse_double("--slow, factor", value, 1, 1000, factor));
    if (*rank >= world)
        return fail(STATUS_CONFIG, "--slow: expected a rank from 0 to %d, got %d", world - 1, (int)*rank);
    return STATUS_OK;
}

status straggler_factor(const char *text, int rank, int world, double *out)
{
    *out = 1;
    for (const char *at = text; at;) {
        size_t length = strcspn(at, ",");
        int64_t slow;
        double factor;
        TRY(read_pair(at, length, world, &slow, &factor));
        if (slow == rank) *out = factor;
        for (const char *before = text; before < at; before = strchr(before, ',') + 1)
            if (atoll(before) == slow)
                return fail(STATUS_USAGE, "--slow: expected each rank once, got '%s'", text);
        at = at[length] ? at + length + 1 : NULL;
    }
    return STATUS_OK;
}
