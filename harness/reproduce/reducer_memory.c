/* Compares the memory of device 0 with the memory of the other devices under DataParallel: BERT-large, Adam,
 * 8 GPUs. The ledger of a virtual run is compared with the table that docs/ps.md derives from torch's source,
 * and with published reports. */
#include "harness/report/report.h"
#include "harness/reproduce/reproduce.h"
#include "ps/dataparallel/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GPUS = 8, BATCH = 4 };
static const double mib = 1048576, gib = 1073741824;
static const double exact = 1e-12; /* The ledger must be equal to the formula. */

static status measure(const char *profile, const char *policy, const char *optimizer, virtual_figures *out)
{
    virtual_workload w = {.profile = profile, .gpus = GPUS, .policy = policy};
    workload_options(&w, "--model bert_large --batch %d --optimizer %s --prefetch off --warmup 1 --steps 1%s",
                     BATCH, optimizer, strcmp(policy, "dp") == 0 ? " --keep-grads" : "");
    return virtual_measure(&w, out);
}

/* ---- the phases ------------------------------------------------------------------------------- */

static void add_phases(reproduction_report *r, const char *row, const virtual_figures *f)
{
    const json_t *phases = report_at(f->job, "dataparallel_memory.phases");
    for (int p = 0; p < PS_DP_PHASE_COUNT; p++) {
        const ps_dp_phase_info *info = ps_dp_phase_describe((ps_dp_phase)p);
        const json_t *phase = json_array_get(phases, (size_t)p);
        json_t *c = reproduction_add(r, row, info->name, "MiB", CELL_IDENTITY,
                                     report_number_at(phase, "formula_bytes") / mib,
                                     report_number_at(phase, "difference_bytes") / mib, exact);
        reproduction_cell_note(c, "%s, buffers and batch", info->torch);
    }
}

/* For each memory class, adds a cell with the difference between device 0 and another device after
 * replication. The differences sum to G + S: gradients and optimizer state. */
static void add_classes(reproduction_report *r, const virtual_figures *f)
{
    const char *phase = ledger_phase_name(ps_dp_phase_describe(PS_DP_REPLICATED)->phase);
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++) {
        const char *name = ledger_class_name((ledger_class)c);
        double of[2]; /* bytes on device 0 and on another device */
        for (int rank = 0; rank < 2; rank++) {
            char path[128];
            snprintf(path, sizeof path, "ranks.%d.memory.phases.%s.end_classes", rank, phase);
            of[rank] = json_number_value(json_object_get(report_at(f->job, path), name));
        }
        if (c == LEDGER_WORKSPACE || (of[0] == 0 && of[1] == 0)) continue;
        json_t *cell =
            reproduction_add(r, "Adam, by class", name, "MiB", CELL_DIRECTION, NAN, (of[0] - of[1]) / mib, 0);
        reproduction_cell_note(cell, "after replicate: %.1f on device 0, %.1f on another", of[0] / mib,
                               of[1] / mib);
    }
}

static void add_published(reproduction_report *r, const published_table *t, double adam)
{
    for (int row = 0; row < t->rows; row++) {
        char label[64];
        const char *device0 = published_text(t, row, "device0"), *others = published_text(t, row, "others");
        snprintf(label, sizeof label, "%.50s", published_text(t, row, "source"));
        double low = 0, high = 0;
        /* Only the row with a range is about the model of this reproduction. */
        bool range = sscanf(device0, "%lf to %lf", &low, &high) == 2;
        double more = range ? (low + high) / 2 : strtod(device0, NULL) - strtod(others, NULL);
        json_t *c = reproduction_add(r, label, "device 0 more than others", "MiB",
                                     range ? CELL_PREDICTED : CELL_DIRECTION, more, range ? adam / mib : NAN,
                                     range ? (high - low) / (high + low) : 0);
        reproduction_cell_note(c, "published: %s %s, model %s", device0, others,
                               published_text(t, row, "model")[0] ? published_text(t, row, "model")
                                                                  : "not stated");
    }
}

/* ---- the runs --------------------------------------------------------------------------------- */

static status run(reproduction_run *run)
{
    const char *profile = run->report->profiles;
    virtual_figures *f = &run->figures;
    reproduction_report *r = run->report;
    char detail[200];
    TRY(measure(profile, "dp", "adam", f));
    const json_t *sizes = report_at(f->job, "dataparallel_memory");
    if (!json_is_object(sizes))
        return fail(STATUS_INTERNAL, "reducer-memory: the policy dp reported no sizes");
    double adam = report_between_steps(f->job);
    add_phases(r, "Adam, device 0 less device 1", f);
    add_classes(r, f);
    snprintf(detail, sizeof detail, "%.3f GiB; 3P is %.3f GiB", adam / gib,
             3 * report_number_at(sizes, "parameters_bytes") / gib);
    reproduction_claim_that(r, adam >= 3 * gib && adam <= 4 * gib, detail,
                            "Adam: between steps device 0 holds 3 to 4 GiB more, G + S = 3P");
    TRY(measure(profile, "dp", "sgd", f));
    double sgd = report_between_steps(f->job);
    add_phases(r, "SGD, device 0 less device 1", f);
    snprintf(detail, sizeof detail, "%.3f GiB", sgd / gib);
    reproduction_claim_that(r, sgd < 3 * gib, detail, "plain SGD: it does not, G alone is left");
    TRY(measure(profile, "ddp", "adam", f));
    double difference = report_number_at(f->job, "memory_imbalance.maximum_minus_minimum_bytes");
    snprintf(detail, sizeof detail, "peaks of %lld and %lld bytes", (long long)f->most_bytes,
             (long long)(f->most_bytes - (int64_t)difference));
    reproduction_claim_that(r, difference == 0, detail, "Adam under ring (ddp): balanced to the byte");
    add_published(r, &run->table, adam);
    return STATUS_OK;
}

const reproduction reproduce_reducer_memory = {
    .name = "reducer-memory",
    .summary = "memory of device 0 against the others under DataParallel, BERT-large with Adam and SGD",
    .title = "The reducer's memory under DataParallel: BERT-large, 8 GPUs, batch 4 per GPU, sequence 128",
    .source = "the table of phases in docs/ps.md (torch's source); results/published/reducer-memory.csv",
    .how = "Logical bytes of the ledger, workspace aside, at the end of each phase; gradients are kept "
           "between steps. Nothing was calibrated: memory does not depend on the profile.",
    .profiles = SIM_DEFAULT_PROFILE,
    .exact = true,
    .run = run};
