#include "harness/verify/golden.h"

#include "common/base/input.h"
#include "common/base/random.h"
#include "common/net/status_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 256 << 20 };

static status not_golden(const golden_file *f, const char *what)
{
    return fail(STATUS_DATA, "%s: %s is missing or of the wrong kind", f->path, what);
}

static status read_optimizer(golden_file *f, json_t *c)
{
    json_t *o = json_object_get(c, "optimizer");
    const char *name = json_string_value(json_object_get(o, "name"));
    int kind = 0, nesterov = 0;
    if (!name) return not_golden(f, "case.optimizer.name");
    while (optimizer_names[kind] && strcmp(name, optimizer_names[kind]) != 0) kind++;
    if (!optimizer_names[kind])
        return fail(STATUS_DATA, "%s: case.optimizer.name: expected one of sgd, adam, adamw, got '%s'",
                    f->path, name);
    optimizer_options *d = &f->optimizer;
    *d = optimizer_defaults((optimizer_kind)kind);
    d->momentum = d->dampening = d->clip_norm = 0;
    if (json_unpack(o, "{s?F, s?F, s?F, s?F, s?F, s?b, s?[F, F]}", "lr", &d->lr, "momentum", &d->momentum,
                    "dampening", &d->dampening, "weight_decay", &d->weight_decay, "eps", &d->eps, "nesterov",
                    &nesterov, "betas", &d->beta1, &d->beta2) != 0 ||
        json_unpack(c, "{s?F}", "clip_norm", &d->clip_norm) != 0)
        return not_golden(f, "case.optimizer");
    d->nesterov = nesterov;
    return STATUS_OK;
}

static status read_case(golden_file *f, json_t *c)
{
    const char *model = json_string_value(json_object_get(c, "model")), *loss_over = "", *activation = "";
    const json_t *input = json_object_get(c, "input");
    model_options *m = &f->model;
    int64_t world = 0;
    int sync_batchnorm = 0;
    if (!model) return not_golden(f, "case.model");
    snprintf(f->model_name, sizeof f->model_name, "%s", model);
    *m = (model_options){.name = f->model_name};
    if (json_unpack(c, "{s:I, s:I, s:I, s?I, s?s, s?s, s?b, s?I, s?I, s?I, s?I, s?I, s?I, s?I}", "world_size",
                    &world, "batch_per_rank", &f->batch, "steps", &f->steps, "seed", &f->seed, "loss_over",
                    &loss_over, "activation", &activation, "sync_batchnorm", &sync_batchnorm, "classes",
                    &m->classes, "layers", &m->layers, "hidden", &m->hidden, "heads", &m->heads, "vocab",
                    &m->vocabulary, "positions", &m->positions, "sequence", &m->sequence) != 0 ||
        world < 1 || world > JOB_MOST_RANKS || f->batch < 1 || f->batch > GOLDEN_MOST_BATCH || f->steps < 1 ||
        f->steps > 100000)
        return not_golden(f, "case.world_size, case.batch_per_rank or case.steps");
    f->world = (int)world;
    bool silu = strcmp(activation, "silu") == 0;
    f->global_loss = strcmp(loss_over, "global") == 0;
    f->kinks = (strncmp(model, "resnet", 6) == 0 && !silu) || strcmp(model, "inception_v3") == 0;
    m->activation = silu ? ACTIVATION_SILU : ACTIVATION_NONE;
    m->sync_batchnorm = sync_batchnorm;
    if (json_array_size(input) == 3) {
        m->channels = json_integer_value(json_array_get(input, 0));
        m->image = json_integer_value(json_array_get(input, 1));
    }
    if (options_check(&(option_binding){.table = &model_option_table, .storage = &f->model}) != STATUS_OK) {
        error_context("%s", f->path);
        return STATUS_DATA;
    }
    return read_optimizer(f, c);
}

static status read_tensor(const golden_file *f, const char *name, json_t *object, golden_tensor *out)
{
    json_t *dims, *samples;
    snprintf(out->name, sizeof out->name, "%s", name);
    if (json_unpack(object, "{s:o, s:o, s:F, s:F, s:F}", "shape", &dims, "samples", &samples, "l2", &out->l2,
                    "sum", &out->sum, "float32_l2_error", &out->error) != 0 ||
        !json_is_array(dims) || !json_is_array(samples))
        return not_golden(f, name);
    out->elements = 1;
    size_t i;
    json_t *item;
    json_array_foreach(dims, i, item)
    {
        if (__builtin_mul_overflow(out->elements, json_integer_value(item), &out->elements))
            return not_golden(f, name);
    }
    json_array_foreach(samples, i, item)
    {
        if (out->sample_count == GOLDEN_MAX_SAMPLES) break;
        int64_t index = json_integer_value(json_array_get(item, 0));
        if (json_array_size(item) != 2 || index < 0 || index >= out->elements) return not_golden(f, name);
        out->sample_index[out->sample_count] = index;
        out->sample_value[out->sample_count++] = json_number_value(json_array_get(item, 1));
    }
    return STATUS_OK;
}

static status read_tensors(const golden_file *f, const json_t *root, const char *key, golden_tensors *out)
{
    const json_t *object = json_object_get(root, key);
    if (!json_is_object(object)) return not_golden(f, key);
    out->list = calloc(json_object_size(object) + 1, sizeof *out->list);
    if (!out->list) return fail(STATUS_SYSTEM, "no memory for %s", f->path);
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        TRY(read_tensor(f, name, value, &out->list[out->count]));
        out->count++;
    }
    return STATUS_OK;
}

/* Reads an array of numbers for each step. */
static status read_losses(const golden_file *f, const json_t *root, const char *key, double **out)
{
    const json_t *steps = json_object_get(root, key);
    size_t width = (size_t)f->losses_per_step;
    if (json_array_size(steps) != (size_t)f->steps) return not_golden(f, "loss or loss_float32_error");
    *out = calloc((size_t)f->steps * width, sizeof **out);
    if (!*out) return fail(STATUS_SYSTEM, "no memory for %s", f->path);
    for (size_t s = 0; s < (size_t)f->steps; s++) {
        const json_t *row = json_array_get(steps, s);
        if (json_array_size(row) != width) return not_golden(f, "loss");
        for (size_t r = 0; r < width; r++) (*out)[s * width + r] = json_number_value(json_array_get(row, r));
    }
    return STATUS_OK;
}

static status read_file(golden_file *f, const json_t *root)
{
    if (!json_is_object(root) || !json_is_object(json_object_get(root, "case")) ||
        !json_is_object(json_object_get(root, "gradients_first_step")))
        return fail(STATUS_DATA, "%s: not a golden trajectory: it has no case and no gradients_first_step",
                    f->path);
    int64_t format = json_integer_value(json_object_get(root, "format"));
    if (format != 1) return fail(STATUS_DATA, "%s: format: expected 1, got %lld", f->path, (long long)format);
    f->parameters = json_integer_value(json_object_get(root, "parameters"));
    TRY(read_case(f, json_object_get(root, "case")));
    f->losses_per_step = f->global_loss ? 1 : f->world;
    TRY(read_losses(f, root, "loss", &f->loss));
    TRY(read_losses(f, root, "loss_float32_error", &f->loss_error));
    TRY(read_tensors(f, root, "gradients_first_step", &f->gradients));
    TRY(read_tensors(f, root, "parameters_final", &f->parameters_final));
    return read_tensors(f, root, "buffers_final", &f->buffers_final);
}

status golden_open(const char *path, golden_file **out)
{
    *out = NULL;
    golden_file *f = calloc(1, sizeof *f);
    if (!f) return fail(STATUS_SYSTEM, "no memory for %s", path);
    snprintf(f->path, sizeof f->path, "%s", path);
    json_t *root;
    status rc = input_json(path, MOST_BYTES, &root);
    if (rc == STATUS_OK) rc = read_file(f, root);
    json_decref(root);
    if (rc != STATUS_OK) golden_close(&f);
    *out = f;
    return rc;
}

void golden_close(golden_file **file)
{
    golden_file *f = *file;
    if (!f) return;
    free(f->loss);
    free(f->loss_error);
    free(f->gradients.list);
    free(f->parameters_final.list);
    free(f->buffers_final.list);
    free(f);
    *file = NULL;
}

/* ---- values ----------------------------------------------------------------------------------- */

void golden_fill_param(const golden_file *file, const nn_param *p, float *out)
{
    uint64_t start = random_start(file->seed, random_fnv1a64(p->name));
    bool vector = p->shape.rank == 1;
    double base = vector && text_ends_with(p->name, "weight") ? 0.5 : 0,
           scale = vector                          ? 0.1
                   : strstr(p->name, "embeddings") ? 0.05
                                                   : sqrt(3.0 / (double)(p->elements / p->shape.dims[0]));
    for (int64_t i = 0; i < p->elements; i++)
        out[i] = (float)(base + scale * random_signed(start, (uint64_t)i));
}

static uint64_t stream_of(const golden_file *file, const char *what, int64_t step, int rank)
{
    char name[64];
    snprintf(name, sizeof name, "%s.step%lld.rank%d", what, (long long)step, rank);
    return random_start(file->seed, random_fnv1a64(name));
}

static void fill_images(uint64_t start, shape s, int64_t batch, float *out)
{
    int64_t h = s.dims[0], w = s.dims[1], c = s.dims[2];
    for (int64_t n = 0; n < batch; n++)
        for (int64_t i = 0; i < c; i++)
            for (int64_t at = 0; at < h * w; at++)
                out[(n * h * w + at) * c + i] =
                    (float)random_signed(start, (uint64_t)((n * c + i) * h * w + at));
}

/* Fills the inputs (float32 values or int32 tokens) and targets (int32, or float32 for mean squared error) of
 * one rank and step. Images are NHWC, as in this program. Returns the number of targets that count. */
static int64_t fill_batch(const golden_file *file, const nn_model *model, int64_t step, int rank, void *input,
                          void *target)
{
    const nn_layer *in = &model->layers[0];
    uint64_t inputs = stream_of(file, "input", step, rank), targets = stream_of(file, "target", step, rank);
    int64_t count = file->batch * shape_elements(in->sample);
    int64_t rows = file->batch * model->rows_per_sample, used = rows;
    if (model->input_kind == NN_INPUT_IMAGE) {
        fill_images(inputs, in->sample, file->batch, input);
    } else {
        for (int64_t i = 0; i < count; i++) {
            if (model->input_kind == NN_INPUT_FEATURES)
                ((float *)input)[i] = (float)random_signed(inputs, (uint64_t)i);
            else
                ((int32_t *)input)[i] =
                    (int32_t)(random_uniform(inputs, (uint64_t)i) * (double)in->vocabulary);
        }
    }
    if (model->loss == NN_LOSS_MSE) {
        for (int64_t i = 0; i < rows * model->classes; i++)
            ((float *)target)[i] = (float)random_signed(targets, (uint64_t)i);
        return rows * model->classes;
    }
    bool masked = strcmp(file->model_name, "bert") == 0;
    uint64_t masks = stream_of(file, "mask", step, rank);
    for (int64_t i = 0; i < rows; i++) {
        bool ignored = masked && random_uniform(masks, (uint64_t)i) >= 0.15;
        int32_t value = (int32_t)(random_uniform(targets, (uint64_t)i) * (double)model->classes);
        ((int32_t *)target)[i] = ignored ? LOSS_IGNORE : value;
        used -= ignored;
    }
    return used;
}

/* ---- batches ---------------------------------------------------------------------------------- */

enum { ELEMENT = 4 }; /* Bytes of float32 or int32. */

typedef struct golden_ranks {
    const golden_file *file;
    const nn_model *model;
    int first, ranks;
} golden_ranks;

static int64_t fill(const void *context, int64_t step, void *inputs, void *targets)
{
    const golden_ranks *g = context;
    data_form form = data_form_of_model(g->model);
    size_t input_bytes = (size_t)(g->file->batch * data_form_input_elements(&form)) * ELEMENT;
    size_t target_bytes = (size_t)(g->file->batch * data_form_target_elements(&form)) * ELEMENT;
    int64_t counted = 0;
    for (int i = 0; i < g->ranks; i++)
        counted += fill_batch(g->file, g->model, step, g->first + i, (char *)inputs + (size_t)i * input_bytes,
                              (char *)targets + (size_t)i * target_bytes);
    return counted;
}

status golden_source_open(const golden_file *file, const nn_model *model, int first, int ranks,
                          batch_source **out)
{
    golden_ranks g = {.file = file, .model = model, .first = first, .ranks = ranks};
    data_form form = data_form_of_model(model);
    return batch_source_open_filled(&form, file->batch * ranks, fill, &g, sizeof g, out);
}
