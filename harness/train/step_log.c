#include "harness/train/step_log.h"

static const struct {
    step_mark mark;
    ledger_phase memory;
    rank_operation operation;
    const char *cost;
} phases[STEP_PHASE_COUNT] = {
#define STEP_PHASE_ROW(name, mark, memory, operation, cost)                                                  \
    {mark, LEDGER_PHASE_##memory, RANK_##operation, cost},
    STEP_PHASES(STEP_PHASE_ROW)
#undef STEP_PHASE_ROW
};

const char *step_phase_cost(step_phase phase)
{
    return phases[phase].cost;
}

static int64_t counted_now(const step_log *l)
{
    return l->counts ? device_now_ns(l->device) : 0;
}

status step_log_enter(step_log *l, step_phase phase)
{
    l->spent_ns[l->phase] += counted_now(l) - l->since_ns;
    if (l->separates && (phase == STEP_PHASE_BEGIN_FORWARD || phase == STEP_PHASE_END_FORWARD))
        TRY(device_stream_synchronize(l->compute));
    if (phases[phase].mark < STEP_MARKS)
        TRY(device_mark(l->compute, l->first_mark + (int)phases[phase].mark));
    if (phases[phase].memory < LEDGER_PHASE_COUNT && phases[phase].memory != l->ledger->phase)
        ledger_enter(l->ledger, phases[phase].memory);
    if (phases[phase].operation != rank_slot_operation(l->slot))
        rank_slot_enter(l->slot, phases[phase].operation, device_now_ns(l->device));
    l->phase = phase;
    l->since_ns = counted_now(l);
    return STATUS_OK;
}
