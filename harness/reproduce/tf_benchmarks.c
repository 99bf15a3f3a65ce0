/* TensorFlow's page of benchmarks of May 2017: a parameter server on the processor, and replicas over NCCL,
 * on the eight P100 of a DGX-1 and on eight K80 of a cloud's host. */
#include "harness/reproduce/reproduce.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double limit = 0.10;

/* The device for a published machine; TensorFlow of that time brought NCCL 1. */
static const char *profile_of(const char *hardware, const char *scheme)
{
    if (strcmp(hardware, "GCE K80") == 0) return "gce-k80";
    return strcmp(scheme, "nccl") == 0 ? "dgx1-p100-nccl1" : "dgx1-p100";
}

/* The server holds the variables of one GPU, too. Under NCCL each gradient is reduced by itself, when it is
 * ready (tf_cnn_benchmarks, variable_mgr.py). */
static const char *policy_of(const char *scheme, int gpus)
{
    if (strcmp(scheme, "ps-cpu") == 0) return "sync";
    return gpus > 1 ? "naive" : NULL;
}

static virtual_workload workload_of(const reproduction_run *r, int row)
{
    const published_table *t = &r->table;
    int gpus = (int)published_number(t, row, "gpus");
    const char *profile = profile_of(published_text(t, row, "hardware"), published_text(t, row, "scheme"));
    virtual_workload w = {.profile = r->profile ? r->profile : profile,
                          .gpus = gpus,
                          .policy = policy_of(published_text(t, row, "scheme"), gpus),
                          .draw = r->draw};
    workload_options(&w, "--model %s --batch %d --optimizer sgd --prefetch off --warmup 3 --steps 1",
                     published_text(t, row, "model"), (int)published_number(t, row, "batch_per_gpu"));
    return w;
}

/* ResNet-50 with 64 images per P100 is in `throughput`, too, and was known when its constants were chosen. */
static bool is_blind(const published_table *t, int row)
{
    return strcmp(published_text(t, row, "hardware"), "DGX-1 P100") != 0 ||
           strcmp(published_text(t, row, "model"), "resnet50") != 0 ||
           published_number(t, row, "batch_per_gpu") != 64;
}

static status run_row(reproduction_run *r, int row, double *efficiency, double *one_gpu_rate)
{
    const published_table *t = &r->table;
    int gpus = (int)published_number(t, row, "gpus");
    double batch = published_number(t, row, "batch_per_gpu"),
           published = published_number(t, row, "images_per_s");
    virtual_workload w = workload_of(r, row);
    char label[64];
    snprintf(label, sizeof label, "%s, %s, batch %.0f, %s, %d GPU%s", published_text(t, row, "hardware"),
             published_text(t, row, "model"), batch, published_text(t, row, "scheme"), gpus,
             gpus == 1 ? "" : "s");
    if (gpus == 1) {
        *one_gpu_rate = published;
        TRY(reproduction_fit(r, &w, 1000 * batch / published, efficiency));
    }
    if (gpus > 1 && r->calibration_only) return STATUS_OK;
    w.efficiency = *efficiency;
    TRY(reproduction_measure(r, &w));
    cell_kind kind = gpus == 1 ? CELL_CALIBRATED : is_blind(t, row) ? CELL_PREDICTED : CELL_DIRECTION;
    reproduction_cell *c =
        reproduction_add(r->report, label, "throughput", "images/s", kind, published,
                         batch * gpus / r->figures.step_ms * 1000, kind == CELL_PREDICTED ? limit : 0);
    c->baselines[0] = *one_gpu_rate * gpus;
    if (kind == CELL_PREDICTED)
        reproduction_null(c, c->baselines[0], published_uncertainty(t, row, "images_per_s"),
                          published_text(t, row, "hardware"));
    if (gpus == 1) snprintf(c->note, sizeof c->note, "efficiencies times %.4f", *efficiency);
    if (kind == CELL_DIRECTION) snprintf(c->note, sizeof c->note, "not blind: also in the table throughput");
    return reproduction_from(r, c, &w);
}

static status run(reproduction_run *r)
{
    double efficiency = 1, one_gpu_rate = NAN;
    for (int row = 0; row < r->table.rows; row++) TRY(run_row(r, row, &efficiency, &one_gpu_rate));
    return STATUS_OK;
}

const reproduction reproduce_tf_benchmarks = {
    .name = "tf-benchmarks",
    .summary = "AlexNet, Inception v3, ResNets and VGG-16 under TensorFlow's server and NCCL on P100 and K80",
    .title = "TensorFlow's benchmarks of May 2017: server on the processor and NCCL, 8 P100 and 8 K80",
    .source = "results/published/tf-benchmarks.csv",
    .how = "A whole step. For each machine, model and batch all efficiencies are multiplied by the factor "
           "that gives its "
           "row of one GPU, whose variables the server holds, too, before its other rows are run.",
    .profiles = "dgx1-p100, dgx1-p100-nccl1, gce-k80",
    .baselines = {"1 GPU times GPUs"},
    .calibration = "one GPU, for each machine, model and batch",
    .constants = "dgx1-p100 and gce-k80 since 60e78b8; dgx1-p100-nccl1 since 45e98e0, the outcome known",
    .run = run};
