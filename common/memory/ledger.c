#include "common/memory/ledger.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *ledger_class_name(ledger_class c)
{
#define CLASS_NAME(name, text) [LEDGER_##name] = text,
    static const char *const names[] = {LEDGER_CLASS_LIST(CLASS_NAME)};
#undef CLASS_NAME
    return names[c];
}

const char *ledger_phase_name(ledger_phase phase)
{
#define PHASE_NAME(name, text) [LEDGER_PHASE_##name] = text,
    static const char *const names[] = {LEDGER_PHASE_LIST(PHASE_NAME)};
#undef PHASE_NAME
    return names[phase];
}

status ledger_blame(ledger_class c, status rc)
{
    if (rc != STATUS_OK) error_context("allocating %s", ledger_class_name(c));
    return rc;
}

static void note_phase_peak(ledger *l)
{
    if (l->total.current <= l->phase_peak[l->phase]) return;
    l->phase_peak[l->phase] = l->total.current;
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++)
        l->phase_peak_classes[l->phase][c] = l->classes[c].current;
}

void ledger_enter(ledger *l, ledger_phase phase)
{
    l->phase_end[l->phase] = l->total.current;
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++)
        l->phase_end_classes[l->phase][c] = l->classes[c].current;
    l->phase = phase;
    note_phase_peak(l);
}

static int raise_peak(ledger_account *account, ledger_phase phase)
{
    if (account->reserved_current > account->reserved_peak)
        account->reserved_peak = account->reserved_current;
    if (account->current <= account->peak) return 0;
    account->peak = account->current;
    account->peak_phase = phase;
    return 1;
}

void ledger_acquire(ledger *l, ledger_class c, int64_t logical, int64_t reserved)
{
    assert(logical >= 0 && reserved >= logical);
    l->classes[c].current += logical;
    l->classes[c].reserved_current += reserved;
    l->total.current += logical;
    l->total.reserved_current += reserved;
    raise_peak(&l->classes[c], l->phase);
    if (raise_peak(&l->total, l->phase))
        for (int i = 0; i < LEDGER_CLASS_COUNT; i++) l->peak_classes[i] = l->classes[i].current;
    note_phase_peak(l);
}

void ledger_release(ledger *l, ledger_class c, int64_t logical, int64_t reserved)
{
    assert(l->classes[c].current >= logical && l->classes[c].reserved_current >= reserved);
    l->classes[c].current -= logical;
    l->classes[c].reserved_current -= reserved;
    l->total.current -= logical;
    l->total.reserved_current -= reserved;
}

static void reset_account(ledger_account *account, ledger_phase phase)
{
    account->peak = account->current;
    account->reserved_peak = account->reserved_current;
    account->peak_phase = phase;
}

void ledger_reset_peaks(ledger *l)
{
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++) {
        reset_account(&l->classes[c], l->phase);
        l->peak_classes[c] = l->classes[c].current;
    }
    reset_account(&l->total, l->phase);
    memset(l->phase_peak, 0, sizeof l->phase_peak);
    memset(l->phase_peak_classes, 0, sizeof l->phase_peak_classes);
    note_phase_peak(l);
}

ledger_external ledger_measure_process(void)
{
    ledger_external out = {-1, -1};
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    if (!file) return out;
    char line[160];
    while (fgets(line, sizeof line, file)) {
        int64_t kib;
        if (sscanf(line, "Rss: %" SCNd64 " kB", &kib) == 1) out.resident = kib * 1024;
        if (sscanf(line, "Pss: %" SCNd64 " kB", &kib) == 1) out.proportional = kib * 1024;
    }
    fclose(file);
    return out;
}
