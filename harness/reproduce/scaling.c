/* Scaling tables have a row for one GPU and rows for more GPUs. The efficiency is fitted to the row of one
 * GPU, and the following rows are predicted. A setup adds the profile, the policy and other settings that the
 * table does not state. */
#include "harness/reproduce/reproduce.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double limit = 0.10;

/* Settings for rows. A row uses the first setup that matches it. If a table has several sources, each setup
 * has a `source`, and the notes of calibration cells name the source. If a setup has a source, and `from` is
 * 1, a claim checks that the GPUs scale at most linearly. */
typedef struct setup {
    /* A setup matches a row if the cells of these columns begin with these texts. NULL matches every cell. */
    const char *source, *hardware, *model, *scheme, *batch_per_gpu;
    const char *profile, *name, *policy;
    int from;  /* Least number of GPUs that use the policy. If 1, even a single GPU uses the policy. */
    int batch; /* Batch per GPU. 0 for the published batch. */
    const char *options, *note;
    bool known; /* The result was known when the constants were chosen, so the row is shown but not scored. */
    const char *why_not; /* Why no profile can run the row, or NULL. */
    int micro_batches;   /* 0 for 1. */
} setup;

typedef struct scaling {
    const setup *setups;
    const char *quantity, *unit; /* `unit` is NULL for the published unit. */
    /* `column` names the column of the figure. The column `group` holds the source by which the skill groups
     * cells. If the table lacks this column, `group` itself is the source. */
    const char *column, *group;
    const char *label[4]; /* Columns whose texts form the label of a row. */
    bool seconds;         /* True if figures are seconds per step, false if they are samples per second. */
    bool efficiencies; /* True if efficiencies are scored (score.c). The memory of GPUs is then unlimited. */
} scaling;

static bool begins(const published_table *t, int row, const char *column, const char *begin)
{
    return !begin || strncmp(published_text(t, row, column), begin, strlen(begin)) == 0;
}

static const setup *setup_of(const scaling *s, const published_table *t, int row)
{
    for (const setup *u = s->setups; u->profile; u++)
        if (begins(t, row, "source", u->source) && begins(t, row, "hardware", u->hardware) &&
            begins(t, row, "model", u->model) && begins(t, row, "scheme", u->scheme) &&
            begins(t, row, "batch_per_gpu", u->batch_per_gpu))
            return u;
    return NULL;
}

/* Writes a label such as "DGX-1 P100, resnet50, batch 64, nccl, 8 GPUs". */
static void label_of(const scaling *s, const published_table *t, int row, char *out, size_t size)
{
    int gpus = (int)published_number(t, row, "gpus");
    int used = 0;
    for (int i = 0; i < 4 && s->label[i]; i++)
        used += snprintf(out + used, size - (size_t)used, "%s%.24s, ",
                         strcmp(s->label[i], "batch_per_gpu") == 0 ? "batch " : "",
                         published_text(t, row, s->label[i]));
    if (gpus == 0)
        snprintf(out + used, size - (size_t)used, "1 GPU, no DDP");
    else
        snprintf(out + used, size - (size_t)used, "%d GPU%s", gpus, gpus == 1 ? "" : "s");
}

static int batch_of(const setup *u, const published_table *t, int row)
{
    return u->batch ? u->batch : (int)published_number(t, row, "batch_per_gpu");
}

static int samples_of(const setup *u, const published_table *t, int row)
{
    return batch_of(u, t, row) * (u->micro_batches ? u->micro_batches : 1);
}

/* Draws the model's error of a row from the errors in the tables of other sources. */
static void draw_error(reproduction_run *r, int row)
{
    double low, high;
    int nodes = (int)published_number(&r->table, row, "nodes");
    sim_constant which = nodes > 1 ? SIM_SEVERAL_HOSTS : SIM_SEVERAL_GPUS;
    reproduction_error(r->values, published_text(&r->table, row, "source"), nodes, &low, &high);
    r->error = (sim_override){
        .constant = which, .value = sim_draw_between(sim_constant_table[which].name, r->draw, low, 1, high)};
}

static virtual_workload workload_of(reproduction_run *r, int row, const setup *u)
{
    const published_table *t = &r->table;
    int gpus = (int)published_number(t, row, "gpus");
    virtual_workload w = {.profile = r->profile ? r->profile : u->profile,
                          .gpus = gpus > 1 ? gpus : 1,
                          .draw = r->draw,
                          .policy = gpus >= u->from ? u->policy : NULL,
                          .variant.unlimited_memory = r->report->of->scaling->efficiencies};
    workload_options(&w, "--model %s --batch %d %s", u->name ? u->name : published_text(t, row, "model"),
                     batch_of(u, t, row), u->options);
    if (u->micro_batches) workload_options(&w, " --accumulate %d", u->micro_batches);
    if (r->values && r->report->of->scaling->efficiencies) {
        draw_error(r, row);
        w.variant.overrides = &r->error;
        w.variant.override_count = 1;
    }
    if (gpus > 1 && published_text(t, row, "nodes")[0])
        workload_options(&w, " --nodes %d", (int)published_number(t, row, "nodes"));
    const char *precision = published_text(t, row, "precision");
    if (strcmp(precision, "tf32") == 0) workload_options(&w, " --tf32");
    if (strcmp(precision, "amp") == 0) workload_options(&w, " --fp16");
    return w;
}

/* The row of one GPU. If it cannot run, `refused` is the reason. */
typedef struct calibrated {
    double factor, published, ours;
    char refused[200];
} calibrated;

static status add_cell(reproduction_run *r, int row, const setup *u, const virtual_workload *w,
                       calibrated *one, bool calibrates)
{
    const published_table *t = &r->table;
    const scaling *s = r->report->of->scaling;
    double published = published_number(t, row, s->column) * (s->seconds ? 1000 : 1);
    status rc = one->refused[0] ? STATUS_CONFIG : reproduction_measure(r, w);
    bool cannot = rc == STATUS_CONFIG; /* The device cannot run this row. */
    if (rc != STATUS_OK && !cannot) return rc;
    double ours = cannot       ? NAN
                  : s->seconds ? r->figures.step_ms
                               : (double)(samples_of(u, t, row) * w->gpus) / r->figures.step_ms * 1000;
    cell_kind kind = calibrates ? CELL_CALIBRATED : u->known ? CELL_DIRECTION : CELL_PREDICTED;
    char label[128];
    label_of(s, t, row, label, sizeof label);
    json_t *c =
        reproduction_add(r->report, label, s->quantity, s->unit ? s->unit : published_text(t, row, "unit"),
                         kind, published, ours, kind == CELL_PREDICTED && !s->efficiencies ? limit : 0);
    double null = one->published * (s->seconds ? 1 : w->gpus);
    reproduction_baseline(r->report, c, 0, null);
    if (calibrates) {
        one->ours = ours;
    } else if (u->from == 1 && u->source) {
        char detail[200];
        snprintf(detail, sizeof detail, "%.3f of %d times one GPU", ours / (one->ours * w->gpus), w->gpus);
        reproduction_claim_that(r->report, ours <= one->ours * w->gpus * (1 + 1e-6), detail,
                                "%.24s: %d GPUs with a server scale at most linearly",
                                published_text(t, row, "hardware"), w->gpus);
    }
    const char *group = published_text(t, row, s->group);
    reproduction_null(c, null, published_uncertainty(t, row, s->column), group[0] ? group : s->group);
    if (calibrates && u->source)
        reproduction_cell_note(c, "%.24s; %s%sefficiencies times %.4f", published_text(t, row, "source"),
                               u->note, u->note[0] ? "; " : "", one->factor);
    else if (calibrates)
        reproduction_cell_note(c, "efficiencies times %.4f", one->factor);
    if (kind == CELL_DIRECTION) reproduction_cell_note(c, "%s", u->note);
    if (s->efficiencies) reproduction_place(c, w->gpus, (int)published_number(t, row, "nodes"));
    if (!cannot) return reproduction_from(r, c, w);
    reproduction_cell_note(c, "%s", one->refused[0] ? one->refused : error_message());
    error_clear();
    return STATUS_OK;
}

static status run(reproduction_run *r)
{
    const published_table *t = &r->table;
    const scaling *s = r->report->of->scaling;
    calibrated one = {.factor = 1, .published = NAN, .ours = NAN};
    int fewest = (int)published_number(t, 0, "gpus");
    for (int row = 0; row < t->rows; row++) {
        const setup *u = setup_of(s, t, row);
        if (!u) return fail(STATUS_INTERNAL, "no setup for row %d of %s", row, r->report->of->name);
        bool calibrates = (int)published_number(t, row, "gpus") == fewest;
        if (!calibrates && r->calibration_only) continue;
        virtual_workload w = workload_of(r, row, u);
        if (calibrates) {
            double value = published_number(t, row, s->column);
            one = (calibrated){.factor = 1, .published = s->seconds ? 1000 * value : value, .ours = NAN};
            double step_ms = s->seconds ? one.published : 1000 * samples_of(u, t, row) / value;
            status rc = u->why_not ? fail(STATUS_CONFIG, "%s", u->why_not)
                                   : reproduction_fit(r, &w, step_ms, &one.factor);
            if (rc != STATUS_OK && (rc != STATUS_CONFIG || !s->efficiencies)) return rc;
            if (rc != STATUS_OK) snprintf(one.refused, sizeof one.refused, "%s", error_message());
            error_clear();
        }
        w.efficiency = one.factor;
        TRY(add_cell(r, row, u, &w, &one, calibrates));
    }
    return STATUS_OK;
}

/* ---- the tables ------------------------------------------------------------------------------- */

#define STEPS " --prefetch off --warmup 3 --steps 1"
#define MOMENTUM "--optimizer sgd --momentum 0.9"

/* PyTorch's own benchmark of DistributedDataParallel. */
static const setup ddp_setups[] = {{.profile = "dgx1-v100-4xib100",
                                    .policy = "ddp-2019",
                                    .from = 1,
                                    .batch = 32,
                                    .options = MOMENTUM " --weight-decay 1e-4" STEPS},
                                   {0}};
static const scaling ddp_scaling = {ddp_setups, "iteration", "ms", "seconds", "PyTorch's DDP benchmark",
                                    {"model"},  true,        false};
const reproduction reproduce_ddp_benchmark = {
    .name = "ddp-benchmark",
    .summary = "ResNet-50 and -101 under DistributedDataParallel of torch 1.4 on 1 to 16 V100",
    .title = "PyTorch's benchmark of DistributedDataParallel: DGX-1 V100, four 100 Gb/s adapters, torch 1.4",
    .source = "results/published/ddp-benchmark.csv, medians, rounded to 1 ms",
    .how = "A whole step, under policy ddp-2019. For each model all efficiencies are multiplied by the "
           "factor that gives its row of one GPU without DDP, before its other rows are run.",
    .profiles = "dgx1-v100-4xib100",
    .baselines = {"as on 1 GPU"},
    .calibration = "one GPU without DDP, for each model",
    .constants = "dgx1-v100-4xib100 since 5022e63, the outcome known",
    .scaling = &ddp_scaling,
    .run = run};

/* Tables of NVIDIA, OneFlow and TensorFlow. The rows of more GPUs are predicted from the preceding row of one
 * GPU. */
static const setup throughput_setups[] = {
    {"NVIDIA DeepLearningExamples 2019-12", "DGX-1 V100", NULL, NULL, NULL, "dgx1-v100", "resnet50", "apex",
     2, 128, MOMENTUM STEPS, "batch not stated: 128", false, NULL, 0},
    {"NVIDIA DeepLearningExamples 21.03", "DGX A100 80G", NULL, NULL, NULL, "dgx-a100-80g", "resnet50", "ddp",
     2, 256, MOMENTUM STEPS, "batch not stated: 256", false, NULL, 0},
    {"OneFlow DLPerf", NULL, "ResNet-50", NULL, NULL, "v100-sxm2-ib100", "resnet50", "apex", 2, 0,
     MOMENTUM STEPS, "", false, NULL, 0},
    {"OneFlow DLPerf", NULL, "BERT-base", NULL, NULL, "v100-sxm2-ib100", "bert_base",
     "apex:message-size=250000000", 2, 0, "--optimizer adam" STEPS " --sequence 128",
     "one message after backward, as the example's message_size of 250,000,000 makes it; sequence 128", false,
     NULL, 0},
    {"TensorFlow benchmarks", NULL, NULL, NULL, NULL, "dgx1-p100", "resnet50", "sync", 1, 0,
     MOMENTUM STEPS " --server-placement own", "server on the host, with one GPU as well", false, NULL, 0},
    {0}};
static const scaling throughput_scaling = {throughput_setups, "throughput",          NULL,  "value",
                                           "source",          {"hardware", "model"}, false, false};
const reproduction reproduce_throughput = {
    .name = "throughput",
    .summary = "images and sequences a second on V100, A100 and P100 machines, 1 to 32 GPUs",
    .title = "Training throughput: ResNet-50 and BERT-base, 1 to 32 GPUs",
    .source = "results/published/throughput.csv",
    .how = "A whole step. For each source and hardware all efficiencies are multiplied by the factor that "
           "gives its row of one GPU, before its other rows are run.",
    .profiles = "dgx1-v100, dgx-a100-80g, v100-sxm2-ib100, dgx1-p100",
    .baselines = {"1 GPU times GPUs"},
    .calibration = "one GPU, for each source, hardware and model",
    .constants = "dgx1-v100, dgx-a100-80g, v100-sxm2-ib100 and dgx1-p100 since 5022e63, the outcome known",
    .scaling = &throughput_scaling,
    .run = run};

/* TensorFlow's benchmarks of May 2017. A server holds the variables even if there is only one GPU. The
 * benchmarks used NCCL 1, and reduced each gradient separately as soon as the gradient was ready
 * (tf_cnn_benchmarks, variable_mgr.py). The rows of ResNet-50 with 64 images per P100 are also in
 * `throughput`. */
#define SGD "--optimizer sgd" STEPS
static const setup tf_setups[] = {{NULL, "DGX-1 P100", "resnet50", NULL, "64", "dgx1-p100", NULL, "sync", 1,
                                   0, SGD " --server-placement own",
                                   "not blind: also in the table throughput", true, NULL, 0},
                                  {NULL, "DGX-1 P100", NULL, "ps-cpu", NULL, "dgx1-p100", NULL, "sync", 1, 0,
                                   SGD " --server-placement own", NULL, false, NULL, 0},
                                  {NULL, "DGX-1 P100", NULL, "nccl", NULL, "dgx1-p100-nccl1", NULL, "naive",
                                   2, 0, SGD, NULL, false, NULL, 0},
                                  {NULL, "GCE K80", NULL, "ps-cpu", NULL, "gce-k80", NULL, "sync", 1, 0,
                                   SGD " --server-placement own", NULL, false, NULL, 0},
                                  {0}};
static const scaling tf_scaling = {tf_setups,  "throughput",
                                   "images/s", "images_per_s",
                                   "hardware", {"hardware", "model", "batch_per_gpu", "scheme"},
                                   false,      false};
const reproduction reproduce_tf_benchmarks = {
    .name = "tf-benchmarks",
    .summary = "AlexNet, Inception v3, ResNets and VGG-16 under TensorFlow's server and NCCL on P100 and K80",
    .title = "TensorFlow's benchmarks of May 2017: server on the processor and NCCL, 8 P100 and 8 K80",
    .source = "results/published/tf-benchmarks.csv",
    .how = "A whole step. For each machine, model and batch all efficiencies are multiplied by the factor "
           "that gives its row of one GPU, whose variables the server holds, too, before its other rows are "
           "run.",
    .profiles = "dgx1-p100, dgx1-p100-nccl1, gce-k80",
    .baselines = {"1 GPU times GPUs"},
    .calibration = "one GPU, for each machine, model and batch",
    .constants = "dgx1-p100, gce-k80 and dgx1-p100-nccl1 since 5022e63, the outcome known",
    .scaling = &tf_scaling,
    .run = run};

/* Tables of NVIDIA and OneFlow, from which the mechanisms of virtual time may be learned. The policy of a row
 * follows from a property of its scheme:
 *   torch DDP   torch.nn.parallel.DistributedDataParallel: buckets of 25 MiB
 *   apex DDP    apex.parallel.DistributedDataParallel: messages of 10,000,000 elements; in BERT one message
 *               after the backward pass (message_size=250000000 in run_pretraining.py)
 *   torch DDP of NVIDIA's BERT   one bucket, as large as the memory of the GPU (run_pretraining.py)
 *   Horovod     policy horovod, or horovod-xla with XLA
 * The loader of a row, where the table states its workers:
 *   torch       PyTorch's example divides the workers of a host among its GPUs and rounds up
 * (imagenet/main.py). A worker of 2020 makes 140 images/s (gotorch issue 177), because Pillow's wheels had no
 *               libjpeg-turbo before 9.0 (pillow-wheels pull request 237)
 *   DALI        decodes on the processor, with libjpeg-turbo, as the profile's loader_decode
 * Gradients have 4 bytes per element: apex at O1, which DLPerf recommends, torch.cuda.amp and Horovod without
 * compression keep parameters and gradients in float32. */
#define BERT "--optimizer adam" STEPS " --sequence "
static const setup training_setups[] = {
    {NULL, "DGX-2", NULL, NULL, NULL, "dgx1-v100", "resnet50", "apex", 2, 0, MOMENTUM STEPS, "", false,
     "no profile has the 16 GPUs of a DGX-2", 0},
    {"NVIDIA PyTorch ResNet-50", "DGX A100 80G", NULL, NULL, NULL, "dgx-a100-80g", "resnet50", "ddp", 2, 0,
     MOMENTUM STEPS, "", false, NULL, 0},
    {"NVIDIA PyTorch ResNet-50", "DGX A100 40G", NULL, NULL, NULL, "dgx-a100-40g", "resnet50", "ddp", 2, 256,
     MOMENTUM STEPS, "batch not stated: 256", false, NULL, 0},
    {"NVIDIA PyTorch ResNet-50", NULL, NULL, NULL, NULL, "dgx1-v100", "resnet50", "ddp", 2, 0, MOMENTUM STEPS,
     "", false, NULL, 0},
    {"NVIDIA TensorFlow ResNet-50", "DGX A100", NULL, NULL, NULL, "dgx-a100-40g", "resnet50", "horovod-xla",
     2, 0, MOMENTUM STEPS, "", false, NULL, 0},
    {"NVIDIA TensorFlow ResNet-50", NULL, NULL, NULL, NULL, "dgx1-v100", "resnet50", "horovod-xla", 2, 0,
     MOMENTUM STEPS, "", false, NULL, 0},
    {"NVIDIA PyTorch BERT", NULL, NULL, "torch DDP 128", NULL, "dgx1-v100", "bert_large", "flat", 2, 0,
     BERT "128", "", false, NULL, 128},
    {"NVIDIA PyTorch BERT", NULL, NULL, "torch DDP 512", NULL, "dgx1-v100", "bert_large", "flat", 2, 0,
     BERT "512 --positions 512", "", false, NULL, 512},
    {"NVIDIA PyTorch BERT", NULL, NULL, "torch DDP SQuAD", NULL, "dgx1-v100", "bert_large", "ddp", 2, 0,
     BERT "384 --positions 512", "sequence not stated: 384", false, NULL, 0},
    {"DLPerf NVIDIA PyTorch ResNet-50", NULL, NULL, NULL, NULL, "v100-sxm2-ib100", "resnet50", "apex", 2, 0,
     MOMENTUM STEPS, "", false, NULL, 0},
    {"DLPerf NVIDIA PyTorch BERT", NULL, NULL, NULL, NULL, "v100-sxm2-ib100", "bert_base",
     "apex:message-size=250000000", 2, 0, BERT "128", "", false, NULL, 0},
    {"DLPerf PyTorch ResNet-50", NULL, NULL, "torch DDP 8 workers", NULL, "v100-sxm2-ib100", "resnet50",
     "ddp", 2, 0, MOMENTUM STEPS " --loader-workers host:8 --loader-rate 140", "", false, NULL, 0},
    {"DLPerf PyTorch ResNet-50", NULL, NULL, "torch DDP 48 workers", NULL, "v100-sxm2-ib100", "resnet50",
     "ddp", 2, 0, MOMENTUM STEPS " --loader-workers host:48 --loader-rate 140", "", false, NULL, 0},
    {"DLPerf PyTorch ResNet-50", NULL, NULL, "torch DDP and DALI 8", NULL, "v100-sxm2-ib100", "resnet50",
     "ddp", 2, 0, MOMENTUM STEPS " --loader-workers host:8", "", false, NULL, 0},
    {"DLPerf PyTorch ResNet-50", NULL, NULL, "torch DDP and DALI 48", NULL, "v100-sxm2-ib100", "resnet50",
     "ddp", 2, 0, MOMENTUM STEPS " --loader-workers host:48", "", false, NULL, 0},
    {"DLPerf NVIDIA TensorFlow BERT", NULL, NULL, "Horovod and XLA", NULL, "v100-sxm2-ib100", "bert_base",
     "horovod-xla", 2, 0, BERT "128", "", false, NULL, 0},
    {"DLPerf NVIDIA TensorFlow BERT", NULL, NULL, NULL, NULL, "v100-sxm2-ib100", "bert_base", "horovod", 2, 0,
     BERT "128", "", false, NULL, 0},
    {0}};
static const scaling training_scaling = {.setups = training_setups,
                                         .quantity = "throughput",
                                         .column = "value",
                                         .group = "source",
                                         .label = {"row", "hardware", "model", "precision"},
                                         .efficiencies = true};
const reproduction reproduce_training = {
    .name = "training",
    .summary = "ResNet-50 and BERT in float32, TF32 and half precision on 1 to 32 V100 and A100",
    .title = "Training throughput of NVIDIA's and OneFlow's examples: ResNet-50 and BERT, 1 to 32 GPUs",
    .source = "results/published/training.csv",
    .how =
        "A whole step. For each configuration all efficiencies are multiplied by the factor that gives its "
        "row of one GPU, before its other rows are run.",
    .profiles = "dgx1-v100, dgx-a100-40g, dgx-a100-80g, v100-sxm2-ib100",
    .baselines = {"1 GPU times GPUs"},
    .calibration = "one GPU, for each configuration",
    .constants = "dgx1-v100, dgx-a100-40g, dgx-a100-80g and v100-sxm2-ib100 since 5022e63, the outcome known",
    .scaling = &training_scaling,
    .run = run};
