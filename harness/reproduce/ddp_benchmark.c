/* PyTorch's own benchmark of DistributedDataParallel: DGX-1 V100 with four adapters, torch 1.4. */
#include "harness/reproduce/reproduce.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char profile_name[] = "dgx1-v100-4xib100";
static const double limit = 0.10;

static virtual_workload workload_of(const char *profile, const char *model, int gpus)
{
    virtual_workload w = {.machine = {.profile = profile, .world = gpus > 1 ? gpus : 1},
                          .model = {.name = model},
                          .batch = 32,
                          .optimizer = optimizer_defaults(OPTIMIZER_SGD),
                          .policy = gpus > 0 ? "ddp-2019" : NULL,
                          .steps = 4};
    w.optimizer.momentum = 0.9;
    w.optimizer.weight_decay = 1e-4;
    return w;
}

typedef struct context {
    const char *profile;
    const published_table *table;
    virtual_figures *figures;
    reproduction_report *report;
} context;

static status run_row(const context *c, int row, const compute_fit *fit, double one_gpu_ms)
{
    const char *model = published_text(c->table, row, "model");
    int gpus = (int)published_number(c->table, row, "gpus");
    double published = 1000 * published_number(c->table, row, "seconds");
    virtual_workload w = workload_of(c->profile, model, gpus);
    compute_fit_apply(fit, &w);
    TRY(virtual_measure(&w, c->figures));
    char label[64];
    if (gpus == 0)
        snprintf(label, sizeof label, "%s, 1 GPU, no DDP", model);
    else
        snprintf(label, sizeof label, "%s, %d GPU%s", model, gpus, gpus == 1 ? "" : "s");
    reproduction_cell *cell =
        reproduction_add(c->report, label, "iteration", "ms", gpus == 0 ? CELL_CALIBRATED : CELL_PREDICTED,
                         published, c->figures->step_ms, gpus == 0 ? 0 : limit);
    cell->baselines[0] = one_gpu_ms;
    if (gpus == 0) snprintf(cell->note, sizeof cell->note, "efficiencies times %.4f", fit->factor);
    return STATUS_OK;
}

static status run_table(const reproduction_options *o, context *c)
{
    compute_fit fit;
    double one_gpu_ms = NAN;
    for (int row = 0; row < c->table->rows; row++) {
        bool calibrates = published_number(c->table, row, "gpus") == 0;
        if (calibrates) {
            virtual_workload w = workload_of(c->profile, published_text(c->table, row, "model"), 0);
            one_gpu_ms = 1000 * published_number(c->table, row, "seconds");
            TRY(compute_fit_find(&w, one_gpu_ms, c->figures, &fit));
        }
        if (calibrates || !o->calibration_only) TRY(run_row(c, row, &fit, one_gpu_ms));
    }
    return STATUS_OK;
}

static status run(const reproduction_options *o, reproduction_report *r)
{
    published_table t = {0};
    context c = {.profile = o->profile ? o->profile : profile_name, .table = &t, .report = r};
    c.figures = calloc(1, sizeof *c.figures);
    r->title =
        "PyTorch's benchmark of DistributedDataParallel: DGX-1 V100, four 100 Gb/s adapters, torch 1.4";
    r->source = "results/published/ddp-benchmark.csv, medians, rounded to 1 ms";
    r->how = "A whole step, under policy ddp-2019. For each model all efficiencies are multiplied by the "
             "factor that gives its "
             "row of one GPU without DDP, before its other rows are run.";
    r->baselines[0] = "as on 1 GPU";
    snprintf(r->profiles, sizeof r->profiles, "%s", c.profile);
    status rc =
        c.figures ? published_open("ddp-benchmark", &t) : fail(STATUS_SYSTEM, "no memory for the figures");
    if (rc == STATUS_OK) rc = run_table(o, &c);
    published_close(&t);
    free(c.figures);
    return rc;
}

const reproduction reproduce_ddp_benchmark = {
    "ddp-benchmark", "ResNet-50 and -101 under DistributedDataParallel of torch 1.4 on 1 to 16 V100", run};
