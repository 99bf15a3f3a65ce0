/* DataParallel against DistributedDataParallel: absolute figures differ by work, ratios are compared. */
#include "harness/reproduce/reproduce.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double limit = 0.15;

/* A published mode: what it is run with. */
typedef struct mode {
    const char *name, *profile, *policy;
    const char *const *settings;
} mode;

static const char *const replica_loss[] = {"dp-loss=replica", NULL};

/* GPT-2 by a script that computes the loss within the model: in the replicas. */
static const mode gpt2_modes[] = {{"ddp-nvlink", "titan-rtx-x2", "ddp", NULL},
                                  {"dp-nvlink", "titan-rtx-x2", "dp", replica_loss},
                                  {"ddp-no-p2p", "titan-rtx-x2-no-p2p", "ddp", NULL}};
static const mode resnet_modes[] = {{"single", "dgx-a100-40g", NULL, NULL},
                                    {"dp", "dgx-a100-40g", "dp", NULL},
                                    {"ddp", "dgx-a100-40g", "ddp", NULL},
                                    {"apex", "dgx-a100-40g", "apex", NULL}};

/* Of the group of rows whose source begins with `source`. */
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
    const reproduction_cell *x = reproduction_find(r, row, a), *y = reproduction_find(r, row, b);
    char quantity[40], detail[120];
    snprintf(quantity, sizeof quantity, "%s / %s", a, b);
    double published = x->published / y->published, ours = x->ours / y->ours;
    reproduction_add(r, row, quantity, "1", kind, published, ours, within);
    snprintf(detail, sizeof detail, "%.3f published, %.3f ours", published, ours);
    reproduction_claim_that(r, (published < 1) == (ours < 1), detail, "%s: %s is %s than %s", row, a,
                            published < 1 ? "faster" : "slower", b);
}

/* ---- GPT-2 on two TITAN RTX: 200 steps -------------------------------------------------------- */

static virtual_workload gpt2_workload(const mode *m)
{
    return (virtual_workload){.machine = {.profile = m->profile, .world = 2, .unlimited_memory = true},
                              .model = {.name = "gpt2", .sequence = 1024},
                              .batch = 4,
                              .optimizer = optimizer_defaults(OPTIMIZER_ADAMW),
                              .policy = m->policy,
                              .engine_settings = m->settings};
}

static status run_gpt2(reproduction_run *r)
{
    enum { STEPS = 200, MODES = sizeof gpt2_modes / sizeof gpt2_modes[0] };
    static const char row[] = "GPT-2, 2 TITAN RTX";
    compute_fit fit;
    for (int m = 0; m < (r->calibration_only ? 1 : MODES); m++) {
        virtual_workload w = gpt2_workload(&gpt2_modes[m]);
        double published = published_of(&r->table, "HF performance notes", gpt2_modes[m].name);
        if (m == 0) TRY(compute_fit_find(&w, 1000 * published / STEPS, &r->figures, &fit));
        compute_fit_apply(&fit, &w);
        TRY(virtual_measure(&w, &r->figures));
        reproduction_cell *cell =
            reproduction_add(r->report, row, gpt2_modes[m].name, "s", m ? CELL_PREDICTED : CELL_CALIBRATED,
                             published, r->figures.step_ms * STEPS / 1000, m ? limit : 0);
        if (m == 0)
            snprintf(cell->note, sizeof cell->note, "200 steps; sequence 1024; efficiencies times %.4f",
                     fit.factor);
    }
    if (r->calibration_only) return STATUS_OK;
    add_ratio(r->report, row, "dp-nvlink", "ddp-nvlink", CELL_PREDICTED, limit);
    add_ratio(r->report, row, "ddp-no-p2p", "ddp-nvlink", CELL_PREDICTED, limit);
    add_ratio(r->report, row, "dp-nvlink", "ddp-no-p2p", CELL_PREDICTED, limit);
    return STATUS_OK;
}

/* ---- ResNet-50 on eight GPUs of 40 GB whose type is not stated -------------------------------- */

static virtual_workload resnet_workload(const mode *m)
{
    virtual_workload w = {.machine = {.profile = m->profile,
                                      .world = m->policy ? 8 : 1,
                                      .precision = SIM_TF32,
                                      .unlimited_memory = true},
                          .model = {.name = "resnet50"},
                          .batch = 400,
                          .optimizer = optimizer_defaults(OPTIMIZER_SGD),
                          .policy = m->policy};
    w.optimizer.momentum = 0.9;
    return w;
}

static status run_resnet(reproduction_run *r)
{
    enum { MODES = sizeof resnet_modes / sizeof resnet_modes[0] };
    static const char row[] = "ResNet-50, 8 GPUs of 40 GB";
    static const double images = 1281167;
    compute_fit fit;
    for (int m = 0; m < MODES; m++) {
        virtual_workload w = resnet_workload(&resnet_modes[m]);
        double steps = images / (double)(w.batch * w.machine.world),
               published = published_of(&r->table, "High-Flyer", resnet_modes[m].name);
        if (m == 0) TRY(compute_fit_find(&w, 1000 * published / steps, &r->figures, &fit));
        compute_fit_apply(&fit, &w);
        TRY(virtual_measure(&w, &r->figures));
        reproduction_cell *cell =
            reproduction_add(r->report, row, resnet_modes[m].name, "s", m ? CELL_DIRECTION : CELL_CALIBRATED,
                             published, r->figures.step_ms * steps / 1000, 0);
        snprintf(cell->note, sizeof cell->note, "%s", m ? "" : "GPU not stated: taken for an A100 with TF32");
    }
    add_ratio(r->report, row, "dp", "ddp", CELL_DIRECTION, 0);
    add_ratio(r->report, row, "apex", "ddp", CELL_DIRECTION, 0);
    return STATUS_OK;
}

/* Rows that name no model. */
static void show_others(reproduction_run *r)
{
    const published_table *t = &r->table;
    for (int row = 0; row < t->rows; row++) {
        if (published_text(t, row, "model")[0]) continue;
        char label[64], quantity[40];
        snprintf(label, sizeof label, "%.40s", published_text(t, row, "source"));
        snprintf(quantity, sizeof quantity, "%s, %s GPU", published_text(t, row, "mode"),
                 published_text(t, row, "gpus"));
        reproduction_cell *cell = reproduction_add(r->report, label, quantity, "s", CELL_DIRECTION,
                                                   published_number(t, row, "value"), NAN, 0);
        snprintf(cell->note, sizeof cell->note, "model or hardware not stated: not run");
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
    reproduction_note(
        r->report, "DataParallel is run as a star over device 0; with NCCL its broadcast and reduction are "
                   "pipelined rings, which are the same with two devices and faster with eight.");
    return STATUS_OK;
}

const reproduction reproduce_dp_vs_ddp = {
    .name = "dp-vs-ddp",
    .summary = "GPT-2 on two TITAN RTX with and without NVLink, ResNet-50 on eight GPUs",
    .title = "DataParallel against DistributedDataParallel",
    .source = "results/published/dp-vs-ddp.csv",
    .how = "Whole steps, times their number. For each model all efficiencies are multiplied by the factor "
           "that gives "
           "its row marked calibrated, before its other rows are run.",
    .profiles = "titan-rtx-x2, titan-rtx-x2-no-p2p, dgx-a100-40g",
    .run = run};
