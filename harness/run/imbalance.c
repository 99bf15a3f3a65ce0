#include "harness/run/imbalance.h"

#include "harness/run/ledger_plan.h"

#include <stdio.h>

static void list_classes(const ledger *l, char *out, size_t size)
{
    char text[32];
    size_t length = 0;
    out[0] = '\0';
    for (int c = 0; c < LEDGER_CLASS_COUNT && length < size; c++) {
        int64_t bytes = l->peak_classes[c];
        if (bytes == 0) continue;
        length += (size_t)snprintf(out + length, size - length, "%s%s %s", length ? ", " : "",
                                   ledger_class_name((ledger_class)c), text_format_bytes(text, sizeof text, (double)bytes));
    }
}

static status describe(const run_config *c, const run_plan *plan, int engine, char *out, size_t size)
{
    ledger first, other;
    char table[320], most[32], least[32], more[32];
    int another = 0;
    TRY(ledger_plan_first(c, plan, engine, &first, &other, &another));
    out[0] = '\0';
    if (another == 0 || first.total.peak <= other.total.peak) return STATUS_OK;
    list_classes(&first, table, sizeof table);
    snprintf(out, size, "under %s rank 0 is to hold %s in %s (%s), rank %d %s: %s more on rank 0", c->policies[engine],
             text_format_bytes(most, sizeof most, (double)first.total.peak), ledger_phase_name(first.total.peak_phase), table,
             another, text_format_bytes(least, sizeof least, (double)other.total.peak),
             text_format_bytes(more, sizeof more, (double)(first.total.peak - other.total.peak)));
    return STATUS_OK;
}

void imbalance_tell(const run_config *c, const run_plan *plan, int engine)
{
    char text[600] = "";
    error_record failure;
    error_copy(&failure);
    error_clear();
    status rc = describe(c, plan, engine, text, sizeof text);
    error_clear();
    if (rc == STATUS_OK && text[0]) fail(failure.code, "%s; %s", failure.message, text);
    else error_adopt(&failure);
}
