#include "harness/options/engines.h"

#include "common/base/text.h"
#include "common/net/status_table.h"
#include "ps/ps.h"

#include <stdio.h>
#include <string.h>

#define DECLARE(upper, lower) extern const sync_engine_type sync_##lower;
ENGINE_LIST(DECLARE)
#define ROW(upper, lower) [ENGINE_##upper] = &sync_##lower,
const sync_engine_type *const engine_table[ENGINE_COUNT] = {ENGINE_LIST(ROW)};

bool engine_in_both(int engine)
{
    return engine == ENGINE_NONE || engine == ENGINE_PS || engine == ENGINE_RING;
}

int job_engine(int job)
{
    return job >= ENGINE_COUNT ? ENGINE_NONE : job;
}

const char *job_name(int job)
{
    return job == JOB_ALL_CORES ? "all-cores" : job == JOB_ISOLATED ? "isolated" : engine_table[job]->name;
}

enum { MOST_POLICIES = 64 };

/* Finds the policy of "ddp" or "ring=ddp", and its engine. */
static status find_policy(const char *text, const char *policies[ENGINE_COUNT], int *engine)
{
    const char *names[MOST_POLICIES], *engines[ENGINE_COUNT], *equals = strchr(text, '=');
    int of[MOST_POLICIES], known = 0, only = -1, index;
    for (int e = 0; e < ENGINE_COUNT; e++) engines[e] = engine_table[e]->name;
    if (equals) {
        char name[16];
        snprintf(name, sizeof name, "%.*s", (int)(equals - text), text);
        TRY(text_parse_choice("--policy: engine", name, engines, sizeof *engines, ENGINE_COUNT, &only));
        text = equals + 1;
    }
    for (int e = 0; e < ENGINE_COUNT; e++)
        for (int i = 0; i < engine_table[e]->policy_count && (only < 0 || e == only) && known < MOST_POLICIES;
             i++) {
            names[known] = engine_table[e]->policies[i].name;
            of[known++] = e;
        }
    TRY(text_parse_choice("--policy", text, names, sizeof *names, (size_t)known, &index));
    *engine = of[index];
    if (policies[*engine])
        return fail(STATUS_USAGE, "--policy: expected one for each engine, got '%s' and '%s'",
                    policies[*engine], names[index]);
    policies[*engine] = names[index];
    return STATUS_OK;
}

status engine_parse_policies(const char *text, const char *policies[ENGINE_COUNT], option_binding *options)
{
    for (int e = 0; e < ENGINE_COUNT; e++) policies[e] = NULL;
    while (text) {
        char entry[256];
        int engine;
        size_t length = strcspn(text, ","), name = strcspn(text, ",:");
        if (length >= sizeof entry)
            return fail(STATUS_USAGE, "--policy: expected a policy, got '%.40s...'", text);
        snprintf(entry, sizeof entry, "%.*s", (int)length, text);
        entry[name] = '\0';
        TRY(find_policy(entry, policies, &engine));
        if (name < length && !options)
            return fail(STATUS_USAGE, "--policy: expected a policy without keys, got '%.*s'", (int)length,
                        text);
        if (name < length) TRY(options_set_keys(&options[engine], policies[engine], entry + name + 1));
        text = text[length] == ',' ? text + length + 1 : NULL;
    }
    for (int e = 0; e < ENGINE_COUNT; e++)
        if (!policies[e]) policies[e] = engine_table[e]->policies[0].name;
    return STATUS_OK;
}

status engine_of_policy(const char *text, int *out)
{
    const char *none[ENGINE_COUNT] = {NULL};
    char name[256];
    if (strlen(text) >= sizeof name)
        return fail(STATUS_USAGE, "--policy: expected a policy, got '%.40s...'", text);
    snprintf(name, sizeof name, "%.*s", (int)strcspn(text, ":"), text); /* options follow the colon */
    return find_policy(name, none, out);
}

status policy_list_parse(const char *text, policy_list *out)
{
    *out = (policy_list){0};
    for (const char *at = text; *at; at += *at == ',') {
        int engine;
        size_t length = strcspn(at, ",");
        if (out->count == POLICY_LIST_MOST || length >= POLICY_LENGTH)
            return fail(STATUS_USAGE, "--policy: expected at most %d names, got '%s'", POLICY_LIST_MOST,
                        text);
        char *name = out->names[out->count++];
        snprintf(name, POLICY_LENGTH, "%.*s", (int)length, at);
        TRY(engine_of_policy(name, &engine));
        out->uses[engine] = true;
        at += length;
    }
    return out->count ? STATUS_OK : fail(STATUS_USAGE, "--policy: expected a name, got none");
}

bool engine_policies_of(const char *list, const char *engine, text_buffer *out)
{
    bool any = false;
    for (const char *at = list; *at; at += *at == ',') {
        char one[256];
        int of;
        size_t length = strcspn(at, ",");
        snprintf(one, sizeof one, "%.*s", (int)length, at);
        bool known = engine_of_policy(one, &of) == STATUS_OK;
        if (!known) error_clear();
        at += length;
        if (known && strcmp(engine_table[of]->name, engine) != 0) continue;
        if (out) text_append(out, "%s%s", any ? "," : "", one);
        any = true;
    }
    return any;
}

status engine_lead(int engine, const void *options, const char *policy, int world, int64_t *out)
{
    *out = engine == ENGINE_NONE && world > 1 ? JOB_UNBOUNDED : 0; /* isolated ranks never wait */
    return engine == ENGINE_PS ? ps_lead(options, policy, world, out) : STATUS_OK;
}

status engine_servers(int engine, const void *options, const char *policy, int world, int *out)
{
    *out = 0;
    return engine == ENGINE_PS ? ps_server_processes(options, policy, world, out) : STATUS_OK;
}
