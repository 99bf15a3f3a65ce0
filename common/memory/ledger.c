#include "common/memory/ledger.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
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

/* Copies the number of bytes of each class to `out`. Returns the total. */
static int64_t copy_classes(const ledger *l, int64_t out[LEDGER_CLASS_COUNT])
{
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++) out[c] = l->classes[c].current;
    return l->total.current;
}

static void note_phase_peak(ledger *l)
{
    if (l->total.current > l->phase_peak[l->phase])
        l->phase_peak[l->phase] = copy_classes(l, l->phase_peak_classes[l->phase]);
}

void ledger_enter(ledger *l, ledger_phase phase)
{
    l->phase_end[l->phase] = copy_classes(l, l->phase_end_classes[l->phase]);
    l->phase = phase;
    note_phase_peak(l);
}

/* Adds bytes to an account. Returns true if the logical bytes of the account reach a new peak. */
static bool change(ledger_account *account, ledger_phase phase, int64_t logical, int64_t reserved)
{
    account->current += logical;
    account->reserved_current += reserved;
    if (account->reserved_current > account->reserved_peak)
        account->reserved_peak = account->reserved_current;
    if (account->current <= account->peak) return false;
    account->peak = account->current;
    account->peak_phase = phase;
    return true;
}

void ledger_acquire(ledger *l, ledger_class c, int64_t logical, int64_t reserved)
{
    assert(logical >= 0 && reserved >= logical);
    change(&l->classes[c], l->phase, logical, reserved);
    if (change(&l->total, l->phase, logical, reserved)) copy_classes(l, l->peak_classes);
    note_phase_peak(l);
}

void ledger_release(ledger *l, ledger_class c, int64_t logical, int64_t reserved)
{
    assert(l->classes[c].current >= logical && l->classes[c].reserved_current >= reserved);
    change(&l->classes[c], l->phase, -logical, -reserved);
    change(&l->total, l->phase, -logical, -reserved);
}

void ledger_reset_peaks(ledger *l)
{
    for (int c = 0; c <= LEDGER_CLASS_COUNT; c++) {
        ledger_account *account = c < LEDGER_CLASS_COUNT ? &l->classes[c] : &l->total;
        account->peak = account->current;
        account->reserved_peak = account->reserved_current;
        account->peak_phase = l->phase;
    }
    copy_classes(l, l->peak_classes);
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
