#include "common/data/batches.h"

#include "common/ops/op.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

typedef struct scratch {
    int32_t *samples; /* [largest batch] indices of the samples of the current batch */
    void *stored;     /* memory for one sample in the format of the data set */
} scratch;

typedef struct batches {
    batches_config config;
    sampler sampler;
    data_transform transform;
    size_t input_bytes, target_bytes;
    scratch scratches[LOADER_MAX_THREADS];
    pthread_mutex_t lock; /* protects `order` and `epoch` */
    int32_t *order;       /* [samples] order of the samples in `epoch`; NULL for evaluation */
    int64_t epoch;        /* epoch of `order`, or -1 before the first epoch */
} batches;

static void list_samples(batches *b, int32_t *samples, batch_view *out)
{
    const batches_config *c = &b->config;
    int first = c->whole ? 0 : c->rank, end = c->whole ? c->world : c->rank + 1;
    pthread_mutex_lock(&b->lock);
    if (b->order && b->epoch != out->epoch) {
        sampler_shuffle(&b->sampler, c->seed, out->epoch, b->order);
        b->epoch = out->epoch;
    }
    for (int rank = first; rank < end; rank++) {
        sampler_span span = sampler_span_of(&b->sampler, rank, out->epoch_step);
        out->padding += span.padding;
        for (int64_t i = 0; i < span.count; i++) {
            int64_t position = sampler_position(&b->sampler, &span, i);
            samples[out->count++] = (int32_t)(b->order ? b->order[position] : position);
        }
    }
    pthread_mutex_unlock(&b->lock);
}

static int64_t count_targets(const batches *b, void *targets, batch_view *out)
{
    const data_form *form = &b->config.model;
    int64_t each = data_form_target_elements(form), total = out->count * each;
    int64_t padded = b->config.purpose == BATCHES_EVALUATE ? out->padding * each : 0;
    if (form->target == DATA_TARGET_VALUES) return total - padded;
    int32_t *classes = targets;
    int64_t counted = 0;
    for (int64_t i = total - padded; i < total; i++) classes[i] = LOSS_IGNORE;
    for (int64_t i = 0; i < total; i++) counted += classes[i] != LOSS_IGNORE;
    return counted;
}

static status make_batch(void *context, int worker, void *inputs, void *targets, batch_view *out)
{
    batches *b = context;
    const batches_config *c = &b->config;
    const scratch *own = &b->scratches[worker];
    list_samples(b, own->samples, out);
    for (int64_t i = 0; i < out->count; i++) {
        int32_t sample = own->samples[i];
        augment_draw draw = data_augment_draw(c->augment, c->seed, out->epoch, sample);
        const void *stored = dataset_input(c->set, c->part, sample, own->stored);
        data_transform_apply(&b->transform, stored, &draw, (char *)inputs + (size_t)i * b->input_bytes);
        dataset_target(c->set, c->part, sample, (char *)targets + (size_t)i * b->target_bytes);
    }
    out->targets_counted = count_targets(b, targets, out);
    return STATUS_OK;
}

static void close_batches(void *context)
{
    batches *b = context;
    for (int i = 0; i < LOADER_MAX_THREADS; i++) {
        free(b->scratches[i].samples);
        free(b->scratches[i].stored);
    }
    free(b->order);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

/* ---- open ------------------------------------------------------------------------------------- */

static status plan(batches *b)
{
    const batches_config *c = &b->config;
    const data_description *set = dataset_describe(c->set);
    bool train = c->purpose == BATCHES_TRAIN;
    sampler_config sampling = {.mode = c->sampler,
                               .samples = set->samples[c->part],
                               .batch = c->batch,
                               .world = c->world,
                               .drop_last = train && c->drop_last};
    TRY(sampler_init(&b->sampler, &sampling));
    if (!train) b->config.augment = 0;
    TRY(data_transform_plan(set, &c->model, b->config.augment, &b->transform));
    b->input_bytes = (size_t)data_form_input_elements(&c->model) * sizeof(float);
    b->target_bytes = (size_t)data_form_target_elements(&c->model) * sizeof(float);
    b->epoch = -1;
    return STATUS_OK;
}

static status allocate(batches *b, int64_t largest)
{
    int workers = b->config.threads ? b->config.threads : 1;
    bool whole = true;
    for (int i = 0; i < workers; i++) {
        b->scratches[i].samples = malloc((size_t)largest * sizeof(int32_t));
        b->scratches[i].stored = malloc(dataset_input_bytes(b->config.set));
        whole = whole && b->scratches[i].samples && b->scratches[i].stored;
    }
    if (b->config.purpose == BATCHES_TRAIN) {
        b->order = malloc((size_t)b->sampler.config.samples * sizeof(int32_t));
        whole = whole && b->order;
    }
    return whole ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for batches of %" PRId64 " samples", largest);
}

status batches_open(const batches_config *config, batch_source **out)
{
    assert(!config->whole || config->purpose == BATCHES_TRAIN);
    *out = NULL;
    batches *b = calloc(1, sizeof *b);
    if (!b) return fail(STATUS_SYSTEM, "no memory for batches");
    b->config = *config;
    pthread_mutex_init(&b->lock, NULL);
    int64_t largest = config->batch * (config->whole ? config->world : 1);
    status result = plan(b);
    if (result == STATUS_OK) result = allocate(b, largest);
    if (result != STATUS_OK) {
        close_batches(b);
        return result;
    }
    batch_maker maker = {.context = b,
                         .form = config->model,
                         .largest_batch = largest,
                         .steps_per_epoch = b->sampler.steps,
                         .input_bytes = (size_t)largest * b->input_bytes,
                         .target_bytes = (size_t)largest * b->target_bytes,
                         .make = make_batch,
                         .close = close_batches,
                         .threads = config->threads,
                         .first_step = config->first_step,
                         .memory = config->memory};
    return loader_open(&maker, out);
}

/* ---- options ---------------------------------------------------------------------------------- */

static const char *const sampler_names[] = {
    [SAMPLER_DISTRIBUTED] = "distributed", [SAMPLER_GLOBAL] = "global", [SAMPLER_GLOBAL + 1] = NULL};

#define FIELD(name) offsetof(data_options, name)
static const option options[] = {
    {"data", OPTION_TEXT, FIELD(data), .argument = "SET", .initial = "synthetic",
     .help = "wine[:FILE], fashion-mnist[:DIR], mnist:DIR, idx:IMAGES,LABELS, cifar10:DIR or "
             "synthetic[:SHAPE[:CLASSES[:SAMPLES]]], by default of the model's shape"},
    {"batch", OPTION_INT, FIELD(batch), .alias = "batch-size", .argument = "N", .initial = "32", .low = 1,
     .high = 1 << 20, .help = "samples per rank and step"},
    {"sampler", OPTION_CHOICE, FIELD(sampler), .level = OPTION_RARE, .initial = "distributed",
     .choices = sampler_names,
     .help = "distributed: each rank draws its batches, as with DistributedSampler; global: a batch for all "
             "ranks is cut into chunks, as with DataParallel"},
    {"drop-last", OPTION_FLAG, FIELD(drop_last), .level = OPTION_RARE,
     .help = "drop incomplete batches instead of repeating samples"},
    {"augment", OPTION_TEXT, FIELD(augment), .argument = "none|crop|flip|crop,flip", .initial = "none",
     .help = "augment training images: crop at random with 4 pixels of padding, flip horizontally at random"},
    {"loader-threads", OPTION_INT, FIELD(loader_threads), .level = OPTION_RARE, .argument = "N",
     .initial = "1", .high = LOADER_MAX_THREADS,
     .help = "threads that prepare batches ahead of time (0 for none)"},
};

const option_table data_option_table = {"Data", options, sizeof options / sizeof options[0]};
