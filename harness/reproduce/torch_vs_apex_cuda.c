/* torch-vs-apex on the GPUs that are here: another GPU than the published, so directions alone. */
#include "common/device/cuda/cuda_module.h"
#include "harness/reproduce/reproduce.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 128, STEPS = 20, WARMUP = 5, EMULATED_BATCH = 2, EMULATED_STEPS = 3 };

static const char *const quantities[] = {"forward", "backward", "total"};
static const char *const columns[] = {"forward_ms", "backward_ms", "total_ms"};

static status find_gpus(cuda_probe *out)
{
    const cuda_module *module;
    TRY(cuda_module_open(&module, NULL));
    module->probe(out);
    if (out->gpu_count > 0) return STATUS_OK;
    return fail(STATUS_UNAVAILABLE, "reproduce on cuda: no GPU can be used: %s; take --device sim:PROFILE",
                out->why_driver[0] ? out->why_driver : "none was found");
}

static void label_of(char *out, size_t size, int gpus, const char *policy)
{
    snprintf(out, size, "%d GPU%s, %s", gpus, gpus == 1 ? "" : "s", policy);
}

/* The emulator could not do a ResNet-50 in any time: LeNet shows that the path is there. */
static gpu_row row_of(const cuda_probe *probe, const published_table *t, int row)
{
    gpu_row r = {.model = {.name = probe->emulated ? "lenet" : "resnet50"},
                 .batch = probe->emulated ? EMULATED_BATCH : BATCH,
                 .gpus = (int)published_number(t, row, "gpus"),
                 .policy = published_text(t, row, "policy"),
                 .optimizer = optimizer_defaults(OPTIMIZER_SGD),
                 .steps = probe->emulated ? EMULATED_STEPS : STEPS,
                 .warmup = probe->emulated ? 1 : WARMUP};
    r.optimizer.lr = 0.1;
    return r;
}

static status measure_row(const cuda_probe *probe, const published_table *t, int row, reproduction_report *r)
{
    gpu_row w = row_of(probe, t, row);
    double ours[3];
    char label[48];
    TRY(gpu_row_measure(&w, &ours[0], &ours[1]));
    ours[2] = ours[0] + ours[1];
    label_of(label, sizeof label, w.gpus, w.policy);
    for (int q = 0; q < 3; q++) {
        reproduction_cell *c = reproduction_add(r, label, quantities[q], "ms", CELL_DIRECTION,
                                                published_number(t, row, columns[q]), ours[q], 0);
        const reproduction_cell *one = reproduction_find(r, "1 GPU, none", quantities[q]);
        if (w.gpus > 1 && one) c->baselines[0] = one->ours;
        snprintf(c->note, sizeof c->note, "%s", probe->emulated ? "LeNet on the emulator: means nothing" : "another GPU");
    }
    return STATUS_OK;
}

static void claim(reproduction_report *r, int gpus)
{
    char torch[48], apex[48], detail[120];
    label_of(torch, sizeof torch, gpus, "torch-0.4.1");
    label_of(apex, sizeof apex, gpus, "apex");
    const reproduction_cell *t = reproduction_find(r, torch, "total"), *a = reproduction_find(r, apex, "total");
    if (!t || !a) return;
    snprintf(detail, sizeof detail, "%.1f against %.1f ms", a->ours, t->ours);
    reproduction_claim_that(r, a->ours < t->ours, detail, "%d GPUs: apex is below torch-0.4.1", gpus);
}

static status run_table(const cuda_probe *probe, const published_table *t, reproduction_report *r)
{
    for (int row = 0; row < t->rows; row++) {
        int gpus = (int)published_number(t, row, "gpus");
        if (gpus <= probe->gpu_count) TRY(measure_row(probe, t, row, r));
        else
            reproduction_note(r, "%d GPUs, %s: not measured, found %d GPU%s.", gpus, published_text(t, row, "policy"),
                              probe->gpu_count, probe->gpu_count == 1 ? "" : "s");
    }
    for (int gpus = 2; gpus <= 8; gpus *= 2) claim(r, gpus);
    return STATUS_OK;
}

status reproduce_torch_vs_apex_cuda(reproduction_report *r)
{
    published_table t = {0};
    cuda_probe *probe = calloc(1, sizeof *probe);
    if (!probe) return fail(STATUS_SYSTEM, "no memory to look for GPUs");
    r->title = "torch 0.4.1 DistributedDataParallel against apex: ResNet-50, batch 128 per GPU; measured on the GPUs here";
    r->source = "results/published/torch-vs-apex.csv, rounded to 1 ms, of V100-PCIE-32G";
    r->how = "Forward, then backward with the reduction, the device waited for in between; input, loss and optimizer not "
             "counted; medians of 20 steps, the slowest rank's, float32. The published GPUs are others, so deviations are "
             "the GPUs' and nothing is scored.";
    r->measured = true;
    r->baselines[0] = "ours on 1 GPU";
    status rc = find_gpus(probe);
    if (rc == STATUS_OK)
        snprintf(r->profiles, sizeof r->profiles, "%d x %.100s%s", probe->gpu_count, probe->gpus[0].name,
                 probe->emulated ? ", EMULATED on the host" : "");
    if (rc == STATUS_OK) rc = published_open("torch-vs-apex", &t);
    if (rc == STATUS_OK) rc = run_table(probe, &t, r);
    published_close(&t);
    free(probe);
    return rc;
}
