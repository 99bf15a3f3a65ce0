#include "harness/run/engines.h"

#include "common/base/text.h"
#include "ps/ps.h"
#include "ps/ps.h"
#include "ring/ring.h"

#include <stdio.h>
#include <string.h>

const sync_engine_type *const engine_table[ENGINE_COUNT] = {
    [ENGINE_NONE] = &sync_none, [ENGINE_PS] = &sync_ps, [ENGINE_RING] = &sync_ring};

enum { MOST_POLICIES = 64 };

static bool same(const char *name, const char *text, size_t length)
{
    return strlen(name) == length && memcmp(name, text, length) == 0;
}

static status find_policy(const char *text, size_t length, int only_engine, const char *policies[ENGINE_COUNT])
{
    const char *names[MOST_POLICIES];
    size_t known = 0;
    for (int e = 0; e < ENGINE_COUNT; e++) {
        if (only_engine >= 0 && e != only_engine) continue;
        for (int i = 0; i < engine_table[e]->policy_count; i++) {
            const char *name = engine_table[e]->policies[i].name;
            if (known < MOST_POLICIES) names[known++] = name;
            if (!same(name, text, length)) continue;
            if (policies[e])
                return fail(STATUS_USAGE,
                            "--policy: found '%s' and '%s', allowed is one for each engine",
                            policies[e], name);
            policies[e] = name;
            return STATUS_OK;
        }
    }
    char allowed[512];
    return fail(STATUS_USAGE, "--policy: found '%.*s', allowed is one of %s", (int)length, text,
                text_join(allowed, sizeof allowed, names, known));
}

static status parse_entry(const char *text, size_t length, const char *policies[ENGINE_COUNT])
{
    const char *equals = memchr(text, '=', length);
    if (!equals) return find_policy(text, length, -1, policies);
    size_t engine_length = (size_t)(equals - text);
    for (int e = 0; e < ENGINE_COUNT; e++)
        if (same(engine_table[e]->name, text, engine_length))
            return find_policy(equals + 1, length - engine_length - 1, e, policies);
    return fail(STATUS_USAGE, "--policy: found the engine '%.*s', allowed is one of none, ps, ring",
                (int)engine_length, text);
}

status engine_parse_policies(const char *text, const char *policies[ENGINE_COUNT])
{
    for (int e = 0; e < ENGINE_COUNT; e++) policies[e] = NULL;
    while (text) {
        size_t length = strcspn(text, ",");
        TRY(parse_entry(text, length, policies));
        text = text[length] == ',' ? text + length + 1 : NULL;
    }
    for (int e = 0; e < ENGINE_COUNT; e++)
        if (!policies[e]) policies[e] = engine_table[e]->policies[0].name;
    return STATUS_OK;
}

status engine_lead(int engine, const void *options, const char *policy, int world, int64_t *out)
{
    *out = 0;
    return engine == ENGINE_PS ? ps_lead(options, policy, world, out) : STATUS_OK;
}

status engine_servers(int engine, const void *options, const char *policy, int world, int *out)
{
    *out = 0;
    return engine == ENGINE_PS ? ps_server_processes(options, policy, world, out) : STATUS_OK;
}
