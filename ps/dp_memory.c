#include "ps/dp_memory.h"

const ps_dp_phase_info *ps_dp_phase_describe(ps_dp_phase p)
{
    static const ps_dp_phase_info phases[] = {
#define PHASE_INFO(name, text, torch, autocast, lean, phase) {text, torch, autocast, lean, LEDGER_PHASE_##phase},
        PS_DP_PHASE_LIST(PHASE_INFO)
#undef PHASE_INFO
    };
    return &phases[p];
}

const char *ps_dp_formula(const ps_dp_sizes *s, ps_dp_phase p)
{
    const ps_dp_phase_info *info = ps_dp_phase_describe(p);
    if (s->lean) return info->lean;
    return s->wide_outputs == s->outputs ? info->torch : info->autocast;
}

int64_t ps_dp_difference(const ps_dp_sizes *s, ps_dp_phase p)
{
    int64_t rest = s->kept + s->state + s->batch + s->ahead; /* G + S, and the batches */
    switch (p) {
    case PS_DP_OPTIMIZED:
        return 2 * s->parameters + s->state + s->buffers + s->ahead;
    case PS_DP_REPLICATED:
        return rest;
    case PS_DP_FORWARD_END:
        return rest + s->outputs + (s->lean ? 0 : s->wide_outputs);
    case PS_DP_LOSS_BACKWARD:
        return rest + s->outputs + (s->lean ? 0 : 3 * s->wide_outputs);
    case PS_DP_BACKWARD:
        return rest + (s->lean ? 1 : 2) * s->outputs - s->other_output;
    case PS_DP_REDUCE_BEGINS:
        return s->parameters + rest;
    case PS_DP_REDUCE_ENDS:
        return (s->lean ? 1 : 2) * s->parameters + rest;
    case PS_DP_PHASE_COUNT:
        break;
    }
    return 0;
}

int64_t ps_dp_measured(const ledger *l, ps_dp_phase p)
{
    ledger_phase phase = ps_dp_phase_describe(p)->phase;
    return l->phase_end[phase] - l->phase_end_classes[phase][LEDGER_WORKSPACE];
}
