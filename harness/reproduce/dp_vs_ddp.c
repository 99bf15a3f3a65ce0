/* DataParallel against DistributedDataParallel: absolute figures differ by work, ratios are compared. */
#include "harness/reproduce/reproduce.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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

typedef struct context {
    const published_table *table;
    virtual_figures *figures;
    reproduction_report *report;
    const char *source; /* of the group, from its beginning */
} context;

static double published_of(const context *c, const char *name)
{
    for (int row = 0; row < c->table->rows; row++)
        if (strncmp(published_text(c->table, row, "source"), c->source, strlen(c->source)) == 0 &&
            strcmp(published_text(c->table, row, "mode"), name) == 0)
            return published_number(c->table, row, "value");
    return NAN;
}

static void add_ratio(const context *c, const char *row, const char *a, const char *b, cell_kind kind,
                      double within)
{
    const reproduction_cell *x = reproduction_find(c->report, row, a),
                            *y = reproduction_find(c->report, row, b);
    char quantity[40], detail[120];
    snprintf(quantity, sizeof quantity, "%s / %s", a, b);
    double published = x->published / y->published, ours = x->ours / y->ours;
    reproduction_add(c->report, row, quantity, "1", kind, published, ours, within);
    snprintf(detail, sizeof detail, "%.3f published, %.3f ours", published, ours);
    reproduction_claim_that(c->report, (published < 1) == (ours < 1), detail, "%s: %s is %s than %s", row, a,
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

static status run_gpt2(context *c, bool calibration_only)
{
    enum { STEPS = 200, MODES = sizeof gpt2_modes / sizeof gpt2_modes[0] };
    static const char row[] = "GPT-2, 2 TITAN RTX";
    compute_fit fit;
    c->source = "HF performance notes";
    virtual_workload first = gpt2_workload(&gpt2_modes[0]);
    TRY(compute_fit_find(&first, 1000 * published_of(c, gpt2_modes[0].name) / STEPS, c->figures, &fit));
    for (int m = 0; m < (calibration_only ? 1 : MODES); m++) {
        virtual_workload w = gpt2_workload(&gpt2_modes[m]);
        compute_fit_apply(&fit, &w);
        TRY(virtual_measure(&w, c->figures));
        reproduction_cell *cell = reproduction_add(
            c->report, row, gpt2_modes[m].name, "s", m ? CELL_PREDICTED : CELL_CALIBRATED,
            published_of(c, gpt2_modes[m].name), c->figures->step_ms * STEPS / 1000, m ? limit : 0);
        if (m == 0)
            snprintf(cell->note, sizeof cell->note, "200 steps; sequence 1024; efficiencies times %.4f",
                     fit.factor);
    }
    if (calibration_only) return STATUS_OK;
    add_ratio(c, row, "dp-nvlink", "ddp-nvlink", CELL_PREDICTED, limit);
    add_ratio(c, row, "ddp-no-p2p", "ddp-nvlink", CELL_PREDICTED, limit);
    add_ratio(c, row, "dp-nvlink", "ddp-no-p2p", CELL_PREDICTED, limit);
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

static status run_resnet(context *c)
{
    enum { MODES = sizeof resnet_modes / sizeof resnet_modes[0] };
    static const char row[] = "ResNet-50, 8 GPUs of 40 GB";
    static const double images = 1281167;
    compute_fit fit;
    c->source = "High-Flyer";
    for (int m = 0; m < MODES; m++) {
        virtual_workload w = resnet_workload(&resnet_modes[m]);
        double steps = images / (double)(w.batch * w.machine.world),
               published = published_of(c, resnet_modes[m].name);
        if (m == 0) TRY(compute_fit_find(&w, 1000 * published / steps, c->figures, &fit));
        compute_fit_apply(&fit, &w);
        TRY(virtual_measure(&w, c->figures));
        reproduction_cell *cell =
            reproduction_add(c->report, row, resnet_modes[m].name, "s", m ? CELL_DIRECTION : CELL_CALIBRATED,
                             published, c->figures->step_ms * steps / 1000, 0);
        snprintf(cell->note, sizeof cell->note, "%s", m ? "" : "GPU not stated: taken for an A100 with TF32");
    }
    add_ratio(c, row, "dp", "ddp", CELL_DIRECTION, 0);
    add_ratio(c, row, "apex", "ddp", CELL_DIRECTION, 0);
    return STATUS_OK;
}

/* Rows that name no model. */
static void show_others(const context *c)
{
    for (int row = 0; row < c->table->rows; row++) {
        if (published_text(c->table, row, "model")[0]) continue;
        char label[64], quantity[40];
        snprintf(label, sizeof label, "%.40s", published_text(c->table, row, "source"));
        snprintf(quantity, sizeof quantity, "%s, %s GPU", published_text(c->table, row, "mode"),
                 published_text(c->table, row, "gpus"));
        reproduction_cell *cell = reproduction_add(c->report, label, quantity, "s", CELL_DIRECTION,
                                                   published_number(c->table, row, "value"), NAN, 0);
        snprintf(cell->note, sizeof cell->note, "model or hardware not stated: not run");
    }
}

static status run_all(const reproduction_options *o, context *c)
{
    TRY(run_gpt2(c, o->calibration_only));
    if (o->calibration_only) return STATUS_OK;
    TRY(run_resnet(c));
    show_others(c);
    reproduction_note(
        c->report, "DataParallel is run as a star over device 0; with NCCL its broadcast and reduction are "
                   "pipelined rings, which are the same with two devices and faster with eight.");
    return STATUS_OK;
}

static status run(const reproduction_options *o, reproduction_report *r)
{
    published_table t = {0};
    context c = {.table = &t, .report = r, .figures = calloc(1, sizeof *c.figures)};
    r->title = "DataParallel against DistributedDataParallel";
    r->source = "results/published/dp-vs-ddp.csv";
    r->how = "Whole steps, times their number. For each model all efficiencies are multiplied by the factor "
             "that gives its row "
             "marked calibrated, before its other rows are run.";
    snprintf(r->profiles, sizeof r->profiles, "titan-rtx-x2, titan-rtx-x2-no-p2p, dgx-a100-40g");
    status rc = c.figures ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for the figures");
    if (rc == STATUS_OK && o->profile)
        rc = fail(
            STATUS_USAGE,
            "reproduce dp-vs-ddp: unexpected --device sim:%s: its rows are of several machines",
            o->profile);
    if (rc == STATUS_OK) rc = published_open("dp-vs-ddp", &t);
    if (rc == STATUS_OK) rc = run_all(o, &c);
    published_close(&t);
    free(c.figures);
    return rc;
}

const reproduction reproduce_dp_vs_ddp = {
    "dp-vs-ddp", "GPT-2 on two TITAN RTX with and without NVLink, ResNet-50 on eight GPUs", run};
