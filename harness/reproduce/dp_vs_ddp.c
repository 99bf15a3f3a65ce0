/* DataParallel against DistributedDataParallel. Different published rows do different amounts of work. The
 * reproduction therefore also compares the ratios of rows with the same work. */
#include "harness/report/report.h"
#include "harness/reproduce/reproduce.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LIMIT 0.15

typedef struct mode {
    const char *name, *profile, *policy, *options;
} mode;

/* Modes of GPT-2. The published script computes the loss in the replicas. The model also returns logits, keys
 * and values, and DataParallel gathers them: see GPT2LMHeadModel.forward with use_cache
 * (transformers/models/gpt2), and torch/nn/parallel/scatter_gather.py. */
static const mode gpt2_modes[] = {
    {"ddp-nvlink", "titan-rtx-x2", "ddp", ""},
    {"dp-nvlink", "titan-rtx-x2", "dp", " --dp-loss replica --dp-gather caches --payload nccl"},
    {"ddp-no-p2p", "titan-rtx-x2-no-p2p", "ddp", ""}};
/* Modes of ResNet-50. In the published runs, every process had a data loader with four workers: see
 * resnet_dp.py in HFAiLab/pytorch_distributed. */
static const mode resnet_modes[] = {{"single", "dgx-a100-40g", NULL, " --loader-workers 4"},
                                    {"dp", "dgx-a100-40g", "dp", " --loader-workers 4 --payload nccl"},
                                    {"ddp", "dgx-a100-40g", "ddp", " --loader-workers 4"},
                                    {"apex", "dgx-a100-40g", "apex", " --loader-workers 4"}};

static double published_of(const published_table *t, const char *source, const char *name)
{
    for (int row = 0; row < t->rows; row++)
        if (strncmp(published_text(t, row, "source"), source, strlen(source)) == 0 &&
            strcmp(published_text(t, row, "mode"), name) == 0)
            return published_number(t, row, "value");
    return NAN;
}

static void add_ratio(reproduction_report *r, const char *row, const char *a, const char *b, cell_kind kind,
                      double within)
{
    const json_t *x = reproduction_find(r, row, a), *y = reproduction_find(r, row, b);
    char quantity[40], detail[120];
    snprintf(quantity, sizeof quantity, "%s / %s", a, b);
    double published = report_number_at(x, "published") / report_number_at(y, "published"),
           ours = report_number_at(x, "ours") / report_number_at(y, "ours");
    reproduction_add(r, row, quantity, "1", kind, published, ours, within);
    snprintf(detail, sizeof detail, "%.3f published, %.3f ours", published, ours);
    reproduction_claim_that(r, (published < 1) == (ours < 1), detail, "%s: %s is %s than %s", row, a,
                            published < 1 ? "faster" : "slower", b);
}

/* Published rows in which the same work is done in several modes. The published figures are in seconds. */
typedef struct group {
    const char *row, *source; /* The column "source" begins with `source`. */
    const mode *modes;        /* The efficiency is fitted to the first mode. */
    int count, gpus;
    double samples, batch; /* `samples` counts all samples of the work. `batch` is the batch per rank. */
    cell_kind kind;
    double within;
} group;

/* Adds a cell for each part of the host's time in the step that was measured last. Then measures the baseline
 * of the DataParallel cell `c`: a run without the costs of Python and of the data loader, in which rank 0
 * sends to one rank after another. */
static status add_dataparallel(reproduction_run *r, const virtual_workload *base, double seconds_per_ms,
                               const group *g, json_t *c)
{
    virtual_workload star = *base;
    char label[64];
    size_t i;
    json_t *part;
    snprintf(label, sizeof label, "%s: host under dp", g->row);
    json_array_foreach(report_at(r->figures.job, "host_costs.parts"), i, part)
    {
        reproduction_add(r->report, label, report_text_at(part, "name"), "ms", CELL_DIRECTION, NAN,
                         1e3 * report_number_at(part, "time_s"), 0);
    }
    workload_options(&star, " --loader-workers 0 --payload zmq --dp-host none");
    TRY(virtual_measure(&star, &r->figures));
    reproduction_baseline(r->report, c, 0, r->figures.step_ms * seconds_per_ms);
    return STATUS_OK;
}

/* Runs all modes, or only the first mode if calibration_only is true. A mode without a policy uses one
 * GPU. */
static status run_group(reproduction_run *r, const group *g, virtual_workload w, double *factor)
{
    for (int m = 0; m < (r->calibration_only ? 1 : g->count); m++) {
        virtual_workload one = w;
        one.profile = g->modes[m].profile;
        one.policy = g->modes[m].policy;
        one.gpus = one.policy ? g->gpus : 1;
        workload_options(&one, "%s", g->modes[m].options);
        bool dp = one.policy && strcmp(one.policy, "dp") == 0;
        if (dp && r->dp_host) workload_options(&one, " --dp-host %s", r->dp_host);
        double steps = g->samples / (g->batch * one.gpus);
        double published = published_of(&r->table, g->source, g->modes[m].name);
        if (m == 0) TRY(reproduction_fit(r, &one, 1000 * published / steps, factor));
        one.efficiency = *factor;
        TRY(reproduction_measure(r, &one));
        json_t *c = reproduction_add(r->report, g->row, g->modes[m].name, "s", m ? g->kind : CELL_CALIBRATED,
                                     published, r->figures.step_ms * steps / 1000, m ? g->within : 0);
        TRY(reproduction_from(r, c, &one));
        /* The null model forecasts that all modes take as long as the first mode. */
        reproduction_null(c, published_of(&r->table, g->source, g->modes[0].name), 0.01, g->source);
        if (dp) TRY(add_dataparallel(r, &one, steps / 1000, g, c));
    }
    return STATUS_OK;
}

/* Runs 200 steps of GPT-2 on two TITAN RTX. */
static status run_gpt2(reproduction_run *r)
{
    enum { STEPS = 200, BATCH = 4, GPUS = 2 };
    static const char row[] = "GPT-2, 2 TITAN RTX";
    static const group g = {row,   "HF performance notes", gpt2_modes, 3, GPUS, STEPS * BATCH * GPUS,
                            BATCH, CELL_PREDICTED,         LIMIT};
    double factor;
    virtual_workload w = {.draw = r->draw, .variant = {.unlimited_memory = true}};
    workload_options(
        &w, "--model gpt2 --sequence 1024 --batch %d --optimizer adamw --prefetch off --warmup 2 --steps 1",
        BATCH);
    TRY(run_group(r, &g, w, &factor));
    json_t *first = reproduction_find(r->report, row, gpt2_modes[0].name);
    reproduction_cell_note(first, "200 steps; sequence 1024; efficiencies times %.4f", factor);
    if (r->calibration_only) return STATUS_OK;
    add_ratio(r->report, row, "dp-nvlink", "ddp-nvlink", CELL_PREDICTED, LIMIT);
    add_ratio(r->report, row, "ddp-no-p2p", "ddp-nvlink", CELL_PREDICTED, LIMIT);
    add_ratio(r->report, row, "dp-nvlink", "ddp-no-p2p", CELL_PREDICTED, LIMIT);
    return STATUS_OK;
}

/* Runs one epoch of ImageNet with ResNet-50 on eight GPUs of 40 GB. The source does not name the GPU. */
static status run_resnet(reproduction_run *r)
{
    static const char row[] = "ResNet-50, 8 GPUs of 40 GB";
    static const group g = {row, "High-Flyer", resnet_modes, 4, 8, 1281167, 400, CELL_DIRECTION, 0};
    double factor;
    virtual_workload w = {.draw = r->draw, .variant = {.unlimited_memory = true}};
    workload_options(
        &w, "--model resnet50 --batch 400 --tf32 --optimizer sgd --momentum 0.9 --prefetch off --warmup 2 "
            "--steps 1");
    TRY(run_group(r, &g, w, &factor));
    json_t *first = reproduction_find(r->report, row, resnet_modes[0].name);
    reproduction_cell_note(first, "GPU not stated: taken for an A100 with TF32");
    add_ratio(r->report, row, "dp", "ddp", CELL_DIRECTION, 0);
    add_ratio(r->report, row, "apex", "ddp", CELL_DIRECTION, 0);
    return STATUS_OK;
}

static void show_others(reproduction_run *r)
{
    const published_table *t = &r->table;
    for (int row = 0; row < t->rows; row++) {
        if (published_text(t, row, "model")[0]) continue;
        char label[64], quantity[40];
        snprintf(label, sizeof label, "%.40s", published_text(t, row, "source"));
        snprintf(quantity, sizeof quantity, "%s, %s GPU", published_text(t, row, "mode"),
                 published_text(t, row, "gpus"));
        json_t *cell = reproduction_add(r->report, label, quantity, "s", CELL_DIRECTION,
                                        published_number(t, row, "value"), NAN, 0);
        reproduction_cell_note(cell, "model or hardware not stated: not run");
    }
}

static status run(reproduction_run *r)
{
    if (r->profile)
        return fail(STATUS_USAGE,
                    "reproduce dp-vs-ddp: unexpected --device sim:%s: its rows are of several machines",
                    r->profile);
    TRY(run_gpt2(r));
    if (r->calibration_only) return STATUS_OK;
    TRY(run_resnet(r));
    show_others(r);
    reproduction_note(r->report,
                      "DataParallel broadcasts and reduces by NCCL's rings, its replicas are threads of one "
                      "Python process, and each process of the ResNet-50 rows has a loader of four workers. "
                      "Parts of its host work side by side on different steps: the slowest is the step.");
    return STATUS_OK;
}

const reproduction reproduce_dp_vs_ddp = {
    .name = "dp-vs-ddp",
    .summary = "GPT-2 on two TITAN RTX with and without NVLink, ResNet-50 on eight GPUs",
    .title = "DataParallel against DistributedDataParallel",
    .source = "results/published/dp-vs-ddp.csv",
    .how = "Whole steps, times their number. For each model all efficiencies are multiplied by the factor "
           "that gives its row marked calibrated, before its other rows are run.",
    .profiles = "titan-rtx-x2, titan-rtx-x2-no-p2p, dgx-a100-40g",
    .baselines = {"dp as a star, without Python and loader"},
    .calibration = "GPT-2 under ddp over NVLink",
    .constants = "titan-rtx-x2, titan-rtx-x2-no-p2p and dgx-a100-40g since 5022e63, the outcome known",
    .run = run};
