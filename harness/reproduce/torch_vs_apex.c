/* DistributedDataParallel of torch 0.4.1 against apex's: ResNet-50, batch 128 per GPU, V100-PCIE-32G. */
#include "harness/reproduce/reproduce.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BASELINE_ONE_GPU, BASELINE_NO_KAPPA, BASELINE_IDEAL_OVERLAP };
enum { BATCH = 128, CALIBRATED_GPUS = 2 };

static const double cell_limit = 0.05, total_limit = 0.03;

typedef struct times {
    double forward, backward;
} times;

/* ---- one row ---------------------------------------------------------------------------------- */

static status measure(const char *profile, const char *policy, int gpus, const sim_override *override,
                      virtual_figures *figures, times *out)
{
    virtual_workload w = {.machine = {.profile = profile, .world = gpus, .overrides = override},
                          .model = {.name = "resnet50"},
                          .batch = BATCH,
                          .optimizer = optimizer_defaults(OPTIMIZER_SGD),
                          .policy = gpus > 1 ? policy : NULL,
                          .separate_phases = true};
    w.machine.override_count = override ? 1 : 0;
    w.optimizer.lr = 0.1;
    TRY(virtual_measure(&w, figures));
    *out = (times){figures->forward_ms, figures->backward_ms};
    return STATUS_OK;
}

/* Which cells the profile was fitted to: the protocol's. */
static cell_kind kind_of(int gpus, bool total)
{
    if (gpus > CALIBRATED_GPUS) return total ? CELL_DERIVED : CELL_PREDICTED;
    return CELL_CALIBRATED;
}

static void add_row(reproduction_report *r, const published_table *t, int row, times ours, times no_kappa,
                    times ideal)
{
    int gpus = (int)published_number(t, row, "gpus");
    char label[48];
    snprintf(label, sizeof label, "%d GPU%s, %s", gpus, gpus == 1 ? "" : "s",
             published_text(t, row, "policy"));
    static const char *const columns[] = {"forward_ms", "backward_ms", "total_ms"};
    static const char *const names[] = {"forward", "backward", "total"};
    double mine[] = {ours.forward, ours.backward, ours.forward + ours.backward};
    double slow[] = {no_kappa.forward, no_kappa.backward, no_kappa.forward + no_kappa.backward};
    double best[] = {ideal.forward, ideal.backward, ideal.forward + ideal.backward};
    for (int q = 0; q < 3; q++) {
        bool total = q == 2;
        double limit = gpus > CALIBRATED_GPUS ? (total ? total_limit : cell_limit) : 0;
        reproduction_cell *c = reproduction_add(r, label, names[q], "ms", kind_of(gpus, total),
                                                published_number(t, row, columns[q]), mine[q], limit);
        if (gpus == 1) continue;
        c->baselines[BASELINE_ONE_GPU] = published_number(t, 0, columns[q]);
        c->baselines[BASELINE_NO_KAPPA] = slow[q];
        c->baselines[BASELINE_IDEAL_OVERLAP] = best[q];
        double parts = published_number(t, row, "forward_ms") + published_number(t, row, "backward_ms");
        if (total && fabs(parts - c->published) > 1)
            snprintf(
                c->note, sizeof c->note,
                "the published total contradicts its parts, which sum to %.0f; ours is %+.1f %% from that",
                parts, 100 * (mine[q] / parts - 1));
    }
}

static status run_row(const char *profile, const published_table *t, int row, virtual_figures *figures,
                      reproduction_report *r)
{
    static const sim_override kappa = {.constant = SIM_KAPPA, .value = 1},
                              rho = {.constant = SIM_RHO, .value = 0};
    int gpus = (int)published_number(t, row, "gpus");
    const char *policy = published_text(t, row, "policy");
    times ours, no_kappa = {0}, ideal = {0};
    TRY(measure(profile, policy, gpus, NULL, figures, &ours));
    if (gpus > 1) TRY(measure(profile, policy, gpus, &kappa, figures, &no_kappa));
    if (gpus > 1) TRY(measure(profile, policy, gpus, &rho, figures, &ideal));
    add_row(r, t, row, ours, no_kappa, ideal);
    return STATUS_OK;
}

/* ---- between rows ----------------------------------------------------------------------------- */

/* What communication adds to backward from 2 GPUs on: totals are dominated by compute. */
static void add_increment(reproduction_report *r, const char *policy, int gpus, double limit)
{
    char few[48], many[48], label[64];
    snprintf(few, sizeof few, "2 GPUs, %s", policy);
    snprintf(many, sizeof many, "%d GPUs, %s", gpus, policy);
    snprintf(label, sizeof label, "2 to %d GPUs, %s", gpus, policy);
    const reproduction_cell *a = reproduction_find(r, few, "backward"),
                            *b = reproduction_find(r, many, "backward");
    if (!a || !b) return;
    double published = b->published - a->published, ours = b->ours - a->ours;
    double baselines[CELL_BASELINES] = {0, b->baselines[1] - a->baselines[1],
                                        b->baselines[2] - a->baselines[2]};
    reproduction_cell *c =
        reproduction_add(r, label, "added to backward", "ms", CELL_DERIVED, published, ours, limit);
    memcpy(c->baselines, baselines, sizeof baselines);
}

static void compare_policies(reproduction_report *r)
{
    static const int gpus[] = {2, 4, 8};
    for (int i = 0; i < 3; i++) {
        char torch[48], apex[48], detail[120];
        snprintf(torch, sizeof torch, "%d GPUs, torch-0.4.1", gpus[i]);
        snprintf(apex, sizeof apex, "%d GPUs, apex", gpus[i]);
        const reproduction_cell *t = reproduction_find(r, torch, "total"),
                                *a = reproduction_find(r, apex, "total");
        if (!t || !a) continue;
        snprintf(detail, sizeof detail, "%.1f against %.1f ms", a->ours, t->ours);
        reproduction_claim_that(r, a->ours < t->ours, detail, "%d GPUs: apex is below torch-0.4.1", gpus[i]);
    }
}

static status run_table(const reproduction_options *o, const published_table *t, virtual_figures *figures,
                        reproduction_report *r)
{
    const char *profile = o->profile ? o->profile : SIM_DEFAULT_PROFILE;
    snprintf(r->profiles, sizeof r->profiles, "%s", profile);
    for (int row = 0; row < t->rows; row++) {
        bool held_out = published_number(t, row, "gpus") > CALIBRATED_GPUS;
        if (!held_out || !o->calibration_only) TRY(run_row(profile, t, row, figures, r));
    }
    static const char *const policies[] = {"torch-0.4.1", "apex"};
    for (int p = 0; p < 2; p++) {
        add_increment(r, policies[p], 4, 0.55);
        add_increment(r, policies[p], 8, 0.35);
    }
    compare_policies(r);
    reproduction_note(
        r,
        "The published torch-0.4.1 total at 2 GPUs, 433 ms, contradicts its parts, 134 + 291 = 425 ms: the "
        "parts are used, both totals are shown.");
    return STATUS_OK;
}

static status run(const reproduction_options *o, reproduction_report *r)
{
    if (o->cuda) return reproduce_torch_vs_apex_cuda(r);
    published_table t = {0};
    virtual_figures *figures = calloc(1, sizeof *figures);
    r->title =
        "torch 0.4.1 DistributedDataParallel against apex: ResNet-50, batch 128 per GPU, 8 V100-PCIE-32G";
    r->source = "results/published/torch-vs-apex.csv, rounded to 1 ms";
    r->how = "Forward, then backward with zero_grad and the reduction, the device waited for in between; "
             "input, loss and "
             "optimizer not counted. The profile was fitted to the cells marked calibrated and frozen before "
             "the others "
             "were run.";
    r->baselines[BASELINE_ONE_GPU] = "as on 1 GPU";
    r->baselines[BASELINE_NO_KAPPA] = "no kappa";
    r->baselines[BASELINE_IDEAL_OVERLAP] = "ideal overlap";
    status rc =
        figures ? published_open("torch-vs-apex", &t) : fail(STATUS_SYSTEM, "no memory for the figures");
    if (rc == STATUS_OK) rc = run_table(o, &t, figures, r);
    published_close(&t);
    free(figures);
    return rc;
}

const reproduction reproduce_torch_vs_apex = {
    "torch-vs-apex", "ResNet-50 under torch-0.4.1 and apex on 1 to 8 V100-PCIE-32G, forward and backward",
    run};
