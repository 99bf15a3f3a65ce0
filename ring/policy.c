#include "ring/policy.h"
#include "common/base/text.h"

const ring_policy ring_policies[RING_POLICIES] = {
#define POLICY(name_, source, summary, ...) {.name = name_, __VA_ARGS__},
#include "ring/policies.h"
#undef POLICY
};

const sync_policy_info ring_policy_infos[RING_POLICIES] = {
#define POLICY(name, source, summary, ...) {name, source, summary},
#include "ring/policies.h"
#undef POLICY
};

status ring_policy_find(const char *name, const ring_policy **out)
{
    int index;
    TRY(text_parse_choice("ring policy", name, &ring_policies[0].name, sizeof *ring_policies, RING_POLICIES,
                          &index));
    *out = &ring_policies[index];
    return STATUS_OK;
}
