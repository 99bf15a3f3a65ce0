/* DistributedDataParallel of torch 0.4.1 against apex: ResNet-50, batch 128 per GPU, V100-PCIE-32G. The GPUs
 * of this machine are not V100, so the figures of these GPUs are not scored. On these GPUs only the claims
 * that apex is faster are checked. */
#include "common/device/cuda/cuda_module.h"
#include "harness/report/report.h"
#include "harness/reproduce/reproduce.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 128, CALIBRATED_GPUS = 2 };

static const double cell_limit = 0.05, total_limit = 0.03;

enum { FORWARD, BACKWARD, TOTAL, QUANTITIES };
static const char *const quantities[] = {"forward", "backward", "total"};
static const char *const columns[] = {"forward_ms", "backward_ms", "total_ms"};

static void label_of(char *out, size_t size, int gpus, const char *policy)
{
    snprintf(out, size, "%d GPU%s, %s", gpus, gpus == 1 ? "" : "s", policy);
}

static const json_t *cell_of(const reproduction_report *r, int gpus, const char *policy, int quantity)
{
    char label[48];
    label_of(label, sizeof label, gpus, policy);
    return reproduction_find(r, label, quantities[quantity]);
}

static void compare_policies(reproduction_report *r)
{
    for (int gpus = 2; gpus <= 8; gpus *= 2) {
        char detail[120];
        const json_t *t = cell_of(r, gpus, "torch-0.4.1", TOTAL), *a = cell_of(r, gpus, "apex", TOTAL);
        double torch = report_number_at(t, "ours"), apex = report_number_at(a, "ours");
        if (!t || !a) continue;
        snprintf(detail, sizeof detail, "%.1f against %.1f ms", apex, torch);
        reproduction_claim_that(r, apex < torch, detail, "%d GPUs: apex is below torch-0.4.1", gpus);
    }
}

/* ---- one row in virtual time ------------------------------------------------------------------ */

/* Variants of a computed figure. OURS has all effects. Every other variant leaves out one effect. The figure
 * of variant v is baseline v of the cell. Baseline 0 is the figure of one GPU. */
enum { OURS, NO_KAPPA, IDEAL_OVERLAP, VARIANTS };
static const struct {
    sim_override overrides[3];
    int count;
} effects[] = {[OURS] = {.count = 0},
               [NO_KAPPA] = {{{.constant = SIM_KAPPA, .value = 1}}, 1},
               [IDEAL_OVERLAP] = {{{.constant = SIM_NCCL_BLOCKS},
                                   {.constant = SIM_COLLECTIVE_TRAFFIC},
                                   {.constant = SIM_COLLECTIVE_SHARE}},
                                  3}};

static virtual_workload workload_of(const reproduction_run *r, int row, int variant)
{
    int gpus = (int)published_number(&r->table, row, "gpus");
    virtual_workload w = {.profile = r->report->profiles,
                          .gpus = gpus,
                          .efficiency = r->efficiency,
                          .draw = r->draw,
                          .policy = gpus > 1 ? published_text(&r->table, row, "policy") : NULL,
                          .variant = {.separate_phases = true,
                                      .overrides = effects[variant].overrides,
                                      .override_count = effects[variant].count}};
    workload_options(
        &w, "--model resnet50 --batch %d --optimizer sgd --lr 0.1 --prefetch off --warmup 2 --steps 1",
        BATCH);
    return w;
}

/* Adds the forecast of the null model: if there are more than two GPUs, they take as long as two GPUs under
 * the same policy. */
static void add_null(const reproduction_run *r, json_t *c, int row, int quantity)
{
    const published_table *t = &r->table;
    for (int two = 0; two < t->rows; two++)
        if ((int)published_number(t, two, "gpus") == CALIBRATED_GPUS &&
            strcmp(published_text(t, two, "policy"), published_text(t, row, "policy")) == 0)
            reproduction_null(c, published_number(t, two, columns[quantity]),
                              published_uncertainty(t, row, columns[quantity]), "torch 0.4.1 and apex");
}

static status simulate_row(reproduction_run *r, int row)
{
    const published_table *t = &r->table;
    int gpus = (int)published_number(t, row, "gpus");
    double ms[VARIANTS][QUANTITIES] = {{0}};
    char label[48];
    virtual_workload w = workload_of(r, row, OURS);
    for (int v = 0; v < (gpus > 1 && r->draw == 0 ? VARIANTS : 1); v++) {
        virtual_workload variant = workload_of(r, row, v);
        TRY(reproduction_measure(r, &variant));
        ms[v][FORWARD] = r->figures.forward_ms;
        ms[v][BACKWARD] = r->figures.backward_ms;
        ms[v][TOTAL] = ms[v][FORWARD] + ms[v][BACKWARD];
    }
    label_of(label, sizeof label, gpus, published_text(t, row, "policy"));
    for (int q = 0; q < QUANTITIES; q++) {
        bool total = q == TOTAL, calibrated = gpus <= CALIBRATED_GPUS; /* as the protocol says */
        double limit = calibrated ? 0 : total ? total_limit : cell_limit;
        cell_kind kind = calibrated ? CELL_CALIBRATED : total ? CELL_DERIVED : CELL_PREDICTED;
        json_t *c = reproduction_add(r->report, label, quantities[q], "ms", kind,
                                     published_number(t, row, columns[q]), ms[OURS][q], limit);
        TRY(reproduction_from(r, c, &w));
        if (gpus == 1) continue;
        add_null(r, c, row, q);
        for (int v = 0; v < VARIANTS; v++)
            reproduction_baseline(r->report, c, v, v ? ms[v][q] : published_number(t, 0, columns[q]));
        double parts = published_number(t, row, "forward_ms") + published_number(t, row, "backward_ms");
        if (total && fabs(parts - published_number(t, row, "total_ms")) > 1)
            reproduction_cell_note(
                c, "the published total contradicts its parts, which sum to %.0f; ours is %+.1f %% from that",
                parts, 100 * (ms[OURS][q] / parts - 1));
    }
    return STATUS_OK;
}

/* Adds a cell with the time by which the backward pass takes longer on `gpus` GPUs than on 2 GPUs, because of
 * communication. The totals would hide this time, because compute dominates them. */
static void add_increment(reproduction_report *r, const char *policy, int gpus, double limit)
{
    char label[64];
    const json_t *a = cell_of(r, 2, policy, BACKWARD), *b = cell_of(r, gpus, policy, BACKWARD);
    if (!a || !b) return;
    snprintf(label, sizeof label, "2 to %d GPUs, %s", gpus, policy);
    json_t *c = reproduction_add(r, label, "added to backward", "ms", CELL_DERIVED,
                                 report_number_at(b, "published") - report_number_at(a, "published"),
                                 report_number_at(b, "ours") - report_number_at(a, "ours"), limit);
    for (int v = 0; v < VARIANTS; v++) {
        const char *name = r->of->baselines[v];
        double of_a = json_number_value(json_object_get(json_object_get(a, "baselines"), name)),
               of_b = json_number_value(json_object_get(json_object_get(b, "baselines"), name));
        reproduction_baseline(r, c, v, v ? of_b - of_a : 0);
    }
}

/* Sets the efficiency for a draw of the constants, so that one GPU takes as long as without the draw. */
static status anchor(reproduction_run *r)
{
    virtual_workload fitted = workload_of(r, 0, OURS), drawn = fitted;
    r->efficiency = 0;
    if (r->draw == 0) return STATUS_OK;
    fitted.draw = 0;
    fitted.efficiency = 0;
    TRY(reproduction_measure(r, &fitted));
    return reproduction_fit(r, &drawn, r->figures.step_ms, &r->efficiency);
}

static status run(reproduction_run *r)
{
    TRY(anchor(r));
    for (int row = 0; row < r->table.rows; row++) {
        bool held_out = published_number(&r->table, row, "gpus") > CALIBRATED_GPUS;
        if (!held_out || !r->calibration_only) TRY(simulate_row(r, row));
    }
    static const char *const policies[] = {"torch-0.4.1", "apex"};
    for (int p = 0; p < 2; p++) {
        add_increment(r->report, policies[p], 4, 0.55);
        add_increment(r->report, policies[p], 8, 0.35);
    }
    compare_policies(r->report);
    reproduction_note(
        r->report,
        "The published torch-0.4.1 total at 2 GPUs, 433 ms, contradicts its parts, 134 + 291 = 425 ms: the "
        "parts are used, both totals are shown.");
    return STATUS_OK;
}

const reproduction reproduce_torch_vs_apex = {
    .name = "torch-vs-apex",
    .summary = "ResNet-50 under torch-0.4.1 and apex on 1 to 8 V100-PCIE-32G, forward and backward",
    .title =
        "torch 0.4.1 DistributedDataParallel against apex: ResNet-50, batch 128 per GPU, 8 V100-PCIE-32G",
    .source = "results/published/torch-vs-apex.csv, rounded to 1 ms",
    .how = "Forward, then backward with zero_grad and the reduction, the device waited for in between; "
           "input, loss and optimizer not counted. The profile was fitted to the cells marked calibrated and "
           "frozen before the others were run.",
    .profiles = SIM_DEFAULT_PROFILE,
    .baselines = {"as on 1 GPU", [NO_KAPPA] = "no kappa", [IDEAL_OVERLAP] = "ideal overlap"},
    .calibration = "1 GPU, and 2 GPUs under each policy",
    .constants = "v100-pcie-32g since 5022e63, the outcome known",
    .run = run};

/* ---- on GPUs ---------------------------------------------------------------------------------- */

/* Measures a row. Measures LeNet on the emulator, where ResNet-50 would take too long. */
static status measure_row(reproduction_run *r, int row, bool emulated)
{
    const published_table *t = &r->table;
    gpu_row w = {.model = {.name = emulated ? "lenet" : "resnet50"},
                 .batch = emulated ? 2 : BATCH,
                 .gpus = (int)published_number(t, row, "gpus"),
                 .policy = published_text(t, row, "policy"),
                 .optimizer = optimizer_defaults(OPTIMIZER_SGD),
                 .steps = emulated ? 3 : 20,
                 .warmup = emulated ? 1 : 5};
    double ms[QUANTITIES];
    char label[48];
    w.optimizer.lr = 0.1;
    TRY(gpu_row_measure(&w, &ms[FORWARD], &ms[BACKWARD]));
    ms[TOTAL] = ms[FORWARD] + ms[BACKWARD];
    label_of(label, sizeof label, w.gpus, w.policy);
    for (int q = 0; q < QUANTITIES; q++) {
        json_t *c = reproduction_add(r->report, label, quantities[q], "ms", CELL_DIRECTION,
                                     published_number(t, row, columns[q]), ms[q], 0);
        const json_t *one = cell_of(r->report, 1, "none", q);
        if (w.gpus > 1) reproduction_baseline(r->report, c, 0, report_number_at(one, "ours"));
        reproduction_cell_note(c, "%s", emulated ? "LeNet on the emulator: means nothing" : "another GPU");
    }
    return STATUS_OK;
}

static status measure_table(reproduction_run *r, const cuda_probe *probe)
{
    snprintf(r->report->profiles, sizeof r->report->profiles, "%d x %.100s%s", probe->gpu_count,
             probe->gpus[0].name, probe->emulated ? ", EMULATED on the host" : "");
    for (int row = 0; row < r->table.rows; row++) {
        int gpus = (int)published_number(&r->table, row, "gpus");
        if (gpus <= probe->gpu_count)
            TRY(measure_row(r, row, probe->emulated));
        else
            reproduction_note(r->report, "%d GPUs, %s: not measured, found %d GPU%s.", gpus,
                              published_text(&r->table, row, "policy"), probe->gpu_count,
                              probe->gpu_count == 1 ? "" : "s");
    }
    compare_policies(r->report);
    return STATUS_OK;
}

static status run_on_gpus(reproduction_run *r)
{
    const cuda_module *module;
    TRY(cuda_module_open(&module));
    cuda_probe *probe = calloc(1, sizeof *probe);
    if (!probe) return fail(STATUS_SYSTEM, "no memory to look for GPUs");
    module->probe(probe);
    status rc =
        probe->gpu_count > 0
            ? measure_table(r, probe)
            : fail(STATUS_UNAVAILABLE, "reproduce on cuda: no GPU can be used: %s; take --device sim:PROFILE",
                   probe->driver.why[0] ? probe->driver.why : "none was found");
    free(probe);
    return rc;
}

const reproduction reproduce_torch_vs_apex_cuda = {
    .name = "torch-vs-apex",
    .title = "torch 0.4.1 DistributedDataParallel against apex: ResNet-50, batch 128 per GPU; measured on "
             "the GPUs here",
    .source = "results/published/torch-vs-apex.csv, rounded to 1 ms, of V100-PCIE-32G",
    .how = "Forward, then backward with the reduction, the device waited for in between; input, loss and "
           "optimizer not counted; medians of 20 steps, the slowest rank's, float32. The published GPUs are "
           "others, so deviations are the GPUs' and nothing is scored.",
    .profiles = "",
    .baselines = {"ours on 1 GPU"},
    .measured = true,
    .run = run_on_gpus};
