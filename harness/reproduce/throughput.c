/* Training throughput as published by NVIDIA, OneFlow and TensorFlow, each scaled from its own row of one
 * GPU. */
#include "harness/reproduce/reproduce.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double limit = 0.10;

/* What the published sources leave open is said in the note. */
static const struct {
    const char *source, *hardware, *model; /* as published, from the beginning */
    const char *profile, *name, *policy;
    int batch, sequence;
    const char *note;
} setups[] = {
    {"NVIDIA DeepLearningExamples 2019-12", "DGX-1 V100", "ResNet-50", "dgx1-v100", "resnet50", "apex", 128,
     0, "batch not stated: 128"},
    {"NVIDIA DeepLearningExamples 21.03", "DGX A100 80G", "ResNet-50", "dgx-a100-80g", "resnet50", "ddp", 256,
     0, "batch not stated: 256"},
    {"OneFlow DLPerf", "V100-SXM2 16G", "ResNet-50", "v100-sxm2-ib100", "resnet50", "apex", 128, 0, ""},
    {"OneFlow DLPerf", "V100-SXM2 16G", "BERT-base", "v100-sxm2-ib100", "bert_base",
     "apex:message-size=250000000", 32, 128,
     "one message after backward, as the example's message_size of 250,000,000 makes it; sequence 128"},
    {"TensorFlow benchmarks", "DGX-1 P100", "ResNet-50", "dgx1-p100", "resnet50", "sync", 64, 0,
     "server on the host, with one GPU as well"},
};
enum { SETUPS = sizeof setups / sizeof setups[0] };

/* Parameters are on a server with one GPU as well. */
static bool has_server(int s)
{
    return strcmp(setups[s].policy, "sync") == 0;
}

static bool starts_with(const char *text, const char *begin)
{
    return strncmp(text, begin, strlen(begin)) == 0;
}

static int setup_of(const published_table *t, int row)
{
    for (int s = 0; s < SETUPS; s++)
        if (starts_with(published_text(t, row, "source"), setups[s].source) &&
            starts_with(published_text(t, row, "hardware"), setups[s].hardware) &&
            strcmp(published_text(t, row, "model"), setups[s].model) == 0)
            return s;
    return -1;
}

static virtual_workload workload_of(const reproduction_run *r, int row, int s)
{
    const published_table *t = &r->table;
    int gpus = (int)published_number(t, row, "gpus");
    virtual_workload w = {.profile = r->profile ? r->profile : setups[s].profile,
                          .gpus = gpus,
                          .draw = r->draw,
                          .policy = gpus > 1 || has_server(s) ? setups[s].policy : NULL};
    workload_options(&w, "--model %s --batch %d %s --prefetch off --warmup 3 --steps 1", setups[s].name,
                     setups[s].batch,
                     setups[s].sequence ? "--optimizer adam" : "--optimizer sgd --momentum 0.9");
    if (setups[s].sequence) workload_options(&w, " --sequence %d", setups[s].sequence);
    if (gpus > 1) workload_options(&w, " --nodes %d", (int)published_number(t, row, "nodes"));
    if (strcmp(published_text(t, row, "precision"), "tf32") == 0) workload_options(&w, " --tf32");
    return w;
}

/* A server on the host cannot make GPUs faster than one alone with the same server. */
static void claim_no_gain(reproduction_run *r, int row, double rate, double one)
{
    const published_table *t = &r->table;
    int gpus = (int)published_number(t, row, "gpus");
    char detail[200];
    snprintf(detail, sizeof detail, "%.3f of %d times one GPU", rate / (one * gpus), gpus);
    reproduction_claim_that(r->report, rate <= one * gpus * (1 + 1e-6), detail,
                            "%.24s: %d GPUs with a server scale at most linearly",
                            published_text(t, row, "hardware"), gpus);
}

static status run_row(reproduction_run *r, int row, double *factor, double *one_gpu_rate, double *one_ours)
{
    const published_table *t = &r->table;
    int s = setup_of(t, row), gpus = (int)published_number(t, row, "gpus");
    char label[64];
    double published = published_number(t, row, "value");
    snprintf(label, sizeof label, "%.24s, %s, %d GPU%s", published_text(t, row, "hardware"),
             published_text(t, row, "model"), gpus, gpus == 1 ? "" : "s");
    if (s < 0) return fail(STATUS_INTERNAL, "no setup for the published row %s", label);
    virtual_workload w = workload_of(r, row, s);
    if (gpus == 1) {
        *one_gpu_rate = published;
        TRY(reproduction_fit(r, &w, 1000.0 * setups[s].batch / published, factor));
    }
    if (gpus > 1 && r->calibration_only) return STATUS_OK;
    w.efficiency = *factor;
    status rc = reproduction_measure(r, &w);
    bool cannot = rc == STATUS_CONFIG; /* the device cannot do this row: shown without a figure */
    if (rc != STATUS_OK && !cannot) return rc;
    double ours = cannot ? NAN : (double)(setups[s].batch * gpus) / r->figures.step_ms * 1000;
    reproduction_cell *c = reproduction_add(r->report, label, "throughput", published_text(t, row, "unit"),
                                            gpus == 1 ? CELL_CALIBRATED : CELL_PREDICTED, published, ours,
                                            gpus == 1 ? 0 : limit);
    c->baselines[0] = *one_gpu_rate * gpus;
    if (gpus == 1)
        *one_ours = ours;
    else if (has_server(s))
        claim_no_gain(r, row, ours, *one_ours);
    reproduction_null(c, c->baselines[0], published_uncertainty(t, row, "value"),
                      published_text(t, row, "source"));
    if (cannot) snprintf(c->note, sizeof c->note, "%s", error_message());
    if (cannot) error_clear();
    if (gpus == 1)
        snprintf(c->note, sizeof c->note, "%.24s; %s%sefficiencies times %.4f",
                 published_text(t, row, "source"), setups[s].note, setups[s].note[0] ? "; " : "", *factor);
    return cannot ? STATUS_OK : reproduction_from(r, c, &w);
}

static status run(reproduction_run *r)
{
    double factor = 1, one_gpu_rate = NAN, one_ours = NAN;
    for (int row = 0; row < r->table.rows; row++) TRY(run_row(r, row, &factor, &one_gpu_rate, &one_ours));
    return STATUS_OK;
}

const reproduction reproduce_throughput = {
    .name = "throughput",
    .summary = "images and sequences a second on V100, A100 and P100 machines, 1 to 32 GPUs",
    .title = "Training throughput: ResNet-50 and BERT-base, 1 to 32 GPUs",
    .source = "results/published/throughput.csv",
    .how = "A whole step. For each source and hardware all efficiencies are multiplied by the factor that "
           "gives its "
           "row of one GPU, before its other rows are run.",
    .profiles = "dgx1-v100, dgx-a100-80g, v100-sxm2-ib100, dgx1-p100",
    .baselines = {"1 GPU times GPUs"},
    .calibration = "one GPU, for each source, hardware and model",
    .constants = "dgx1-v100, dgx-a100-80g, v100-sxm2-ib100 and dgx1-p100 since 60e78b8",
    .run = run};
