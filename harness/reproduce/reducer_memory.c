/* Device 0 against the others under DataParallel: BERT-large, Adam, 8 GPUs. The ledger of a virtual run
 * against the table that docs/ps.md derives from torch's source, and against what users reported. */
#include "harness/reproduce/reproduce.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GPUS = 8, BATCH = 4 };
static const double mib = 1048576, gib = 1073741824;
static const double exact = 1e-12; /* the ledger's bytes must be the formula's */

static const char *const keeping[] = {"keep-grads=yes", NULL};

static status measure(const char *profile, const char *policy, optimizer_kind optimizer, virtual_figures *out)
{
    virtual_workload w = {.machine = {.profile = profile, .world = GPUS},
                          .model = {.name = "bert_large"},
                          .batch = BATCH,
                          .optimizer = optimizer_defaults(optimizer),
                          .policy = policy,
                          .engine_settings = strcmp(policy, "dp") == 0 ? keeping : NULL,
                          .steps = 2};
    return virtual_measure(&w, out);
}

/* ---- the phases ------------------------------------------------------------------------------- */

static void add_phases(reproduction_report *r, const char *row, const virtual_figures *f)
{
    for (int p = 0; p < PS_DP_PHASE_COUNT; p++) {
        const ps_dp_phase_info *info = ps_dp_phase_describe((ps_dp_phase)p);
        int64_t ours =
            ps_dp_measured(&f->ledgers[0], (ps_dp_phase)p) - ps_dp_measured(&f->ledgers[1], (ps_dp_phase)p);
        int64_t table = ps_dp_difference(&f->dp, (ps_dp_phase)p);
        char quantity[40];
        snprintf(quantity, sizeof quantity, "%s", info->name);
        reproduction_cell *c = reproduction_add(r, row, quantity, "MiB", CELL_PREDICTED, (double)table / mib,
                                                (double)ours / mib, exact);
        snprintf(c->note, sizeof c->note, "%s, buffers and batch", info->torch);
    }
}

/* After the replication, where device 0 holds G + S more. */
static void add_classes(reproduction_report *r, const char *row, const virtual_figures *f)
{
    ledger_phase phase = ps_dp_phase_describe(PS_DP_REPLICATED)->phase;
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++) {
        int64_t device0 = f->ledgers[0].phase_end_classes[phase][c],
                other = f->ledgers[1].phase_end_classes[phase][c];
        if (c == LEDGER_WORKSPACE || (device0 == 0 && other == 0)) continue;
        reproduction_cell *cell = reproduction_add(r, row, ledger_class_name((ledger_class)c), "MiB",
                                                   CELL_DIRECTION, NAN, (double)(device0 - other) / mib, 0);
        snprintf(cell->note, sizeof cell->note, "after replicate: %.1f on device 0, %.1f on another",
                 (double)device0 / mib, (double)other / mib);
    }
}

/* What is held between two steps: G + S. */
static double excess(const virtual_figures *f)
{
    return (double)(ps_dp_measured(&f->ledgers[0], PS_DP_REPLICATED) -
                    ps_dp_measured(&f->ledgers[1], PS_DP_REPLICATED));
}

static void add_published(reproduction_report *r, const published_table *t, double adam)
{
    for (int row = 0; row < t->rows; row++) {
        char label[64];
        const char *device0 = published_text(t, row, "device0"), *others = published_text(t, row, "others");
        snprintf(label, sizeof label, "%.50s", published_text(t, row, "source"));
        bool number = others[0] >= '0' && others[0] <= '9';
        double more = number ? strtod(device0, NULL) - strtod(others, NULL) : NAN;
        reproduction_cell *c = reproduction_add(r, label, "device 0 more than others", "MiB", CELL_DIRECTION,
                                                more, row == 0 ? adam / mib : NAN, 0);
        snprintf(c->note, sizeof c->note, "published: %s %s, model %s", device0, others,
                 published_text(t, row, "model")[0] ? published_text(t, row, "model") : "not stated");
    }
}

/* ---- the runs --------------------------------------------------------------------------------- */

static status run(reproduction_run *run)
{
    const char *profile = run->report->profiles;
    virtual_figures *f = &run->figures;
    reproduction_report *r = run->report;
    char detail[200];
    TRY(measure(profile, "dp", OPTIMIZER_ADAM, f));
    if (!f->has_dp) return fail(STATUS_INTERNAL, "reducer-memory: the policy dp told no sizes");
    double adam = excess(f);
    add_phases(r, "Adam, device 0 less device 1", f);
    add_classes(r, "Adam, by class", f);
    snprintf(detail, sizeof detail, "%.3f GiB; 3P is %.3f GiB", adam / gib,
             3 * (double)f->dp.parameters / gib);
    reproduction_claim_that(r, adam >= 3 * gib && adam <= 4 * gib, detail,
                            "Adam: between steps device 0 holds 3 to 4 GiB more, G + S = 3P");
    TRY(measure(profile, "dp", OPTIMIZER_SGD, f));
    double sgd = excess(f);
    add_phases(r, "SGD, device 0 less device 1", f);
    snprintf(detail, sizeof detail, "%.3f GiB", sgd / gib);
    reproduction_claim_that(r, sgd < 3 * gib, detail, "plain SGD: it does not, G alone is left");
    TRY(measure(profile, "ddp", OPTIMIZER_ADAM, f));
    snprintf(detail, sizeof detail, "peaks of %lld and %lld bytes", (long long)f->most_bytes,
             (long long)f->least_bytes);
    reproduction_claim_that(r, f->most_bytes == f->least_bytes, detail,
                            "Adam under ring (ddp): balanced to the byte");
    add_published(r, &run->table, adam);
    return STATUS_OK;
}

const reproduction reproduce_reducer_memory = {
    .name = "reducer-memory",
    .summary = "memory of device 0 against the others under DataParallel, BERT-large with Adam and SGD",
    .title = "The reducer's memory under DataParallel: BERT-large, 8 GPUs, batch 4 per GPU, sequence 128",
    .source = "the table of phases in docs/ps.md (torch's source); results/published/reducer-memory.csv",
    .how = "Logical bytes of the ledger, workspace aside, at the end of each phase; gradients are kept "
           "between steps. "
           "Nothing was calibrated: memory does not depend on the profile.",
    .profiles = SIM_DEFAULT_PROFILE,
    .run = run};
