/* PyTorch's own benchmark of DistributedDataParallel: DGX-1 V100 with four adapters, torch 1.4. */
#include "harness/reproduce/reproduce.h"

#include <math.h>
#include <stdio.h>

static const char profile_name[] = "dgx1-v100-4xib100";
static const double limit = 0.10;

static virtual_workload workload_of(const reproduction_run *r, const char *model, int gpus)
{
    virtual_workload w = {.profile = r->profile ? r->profile : profile_name,
                          .gpus = gpus > 1 ? gpus : 1,
                          .policy = gpus > 0 ? "ddp-2019" : NULL,
                          .draw = r->draw};
    workload_options(
        &w,
        "--model %s --batch 32 --optimizer sgd --momentum 0.9 --weight-decay 1e-4 --prefetch off "
        "--warmup 3 --steps 1",
        model);
    return w;
}

static status run_row(reproduction_run *r, int row, double factor, double one_gpu_ms)
{
    const char *model = published_text(&r->table, row, "model");
    int gpus = (int)published_number(&r->table, row, "gpus");
    double published = 1000 * published_number(&r->table, row, "seconds");
    virtual_workload w = workload_of(r, model, gpus);
    w.efficiency = factor;
    TRY(reproduction_measure(r, &w));
    char label[64];
    if (gpus == 0)
        snprintf(label, sizeof label, "%s, 1 GPU, no DDP", model);
    else
        snprintf(label, sizeof label, "%s, %d GPU%s", model, gpus, gpus == 1 ? "" : "s");
    reproduction_cell *cell =
        reproduction_add(r->report, label, "iteration", "ms", gpus == 0 ? CELL_CALIBRATED : CELL_PREDICTED,
                         published, r->figures.step_ms, gpus == 0 ? 0 : limit);
    cell->baselines[0] = one_gpu_ms;
    reproduction_null(cell, one_gpu_ms, published_uncertainty(&r->table, row, "seconds"),
                      "PyTorch's DDP benchmark");
    if (gpus == 0) snprintf(cell->note, sizeof cell->note, "efficiencies times %.4f", factor);
    return reproduction_from(r, cell, &w);
}

static status run(reproduction_run *r)
{
    double factor = 1, one_gpu_ms = NAN;
    for (int row = 0; row < r->table.rows; row++) {
        bool calibrates = published_number(&r->table, row, "gpus") == 0;
        if (calibrates) {
            virtual_workload w = workload_of(r, published_text(&r->table, row, "model"), 0);
            one_gpu_ms = 1000 * published_number(&r->table, row, "seconds");
            TRY(reproduction_fit(r, &w, one_gpu_ms, &factor));
        }
        if (calibrates || !r->calibration_only) TRY(run_row(r, row, factor, one_gpu_ms));
    }
    return STATUS_OK;
}

const reproduction reproduce_ddp_benchmark = {
    .name = "ddp-benchmark",
    .summary = "ResNet-50 and -101 under DistributedDataParallel of torch 1.4 on 1 to 16 V100",
    .title = "PyTorch's benchmark of DistributedDataParallel: DGX-1 V100, four 100 Gb/s adapters, torch 1.4",
    .source = "results/published/ddp-benchmark.csv, medians, rounded to 1 ms",
    .how = "A whole step, under policy ddp-2019. For each model all efficiencies are multiplied by the "
           "factor that "
           "gives its row of one GPU without DDP, before its other rows are run.",
    .profiles = profile_name,
    .baselines = {"as on 1 GPU"},
    .calibration = "one GPU without DDP, for each model",
    .constants = "dgx1-v100-4xib100 since 60e78b8",
    .run = run};
