#include "tests/common/checkpoint/fixture.h"

#include "common/base/random.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const model_options toy_model = {.name = "toy"}, lenet_model = {.name = "lenet"},
                    small_model = {.name = "small"},
                    bert_model = {.name = "bert",
                                  .layers = 2,
                                  .hidden = 32,
                                  .heads = 4,
                                  .vocabulary = 97,
                                  .positions = 16,
                                  .sequence = 7},
                    gpt2_model = {.name = "gpt2",
                                  .layers = 2,
                                  .hidden = 24,
                                  .heads = 3,
                                  .vocabulary = 50,
                                  .positions = 16,
                                  .sequence = 9};
const checkpoint_progress some_progress = {.step = 1234567890123,
                                           .optimizer_step = 1234567890120,
                                           .epoch = 17,
                                           .epoch_step = 399,
                                           .batches_tracked = 1234567890121,
                                           .seed = UINT64_MAX - 5};

/* ---- files ------------------------------------------------------------------------------------ */

int files_in(const char *path)
{
    int count = 0;
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

uint8_t *read_file(const char *path, size_t *size)
{
    struct stat st;
    FILE *file = fopen(path, "rb");
    *size = 0;
    if (!file) return NULL;
    assert_int_equal(fstat(fileno(file), &st), 0);
    *size = (size_t)st.st_size;
    uint8_t *bytes = malloc(*size + 1);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

void write_safetensors(const char *path, const char *header, size_t data_bytes)
{
    uint64_t length = strlen(header);
    size_t size = 8 + length + data_bytes;
    uint8_t *bytes = malloc(size);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++) bytes[8 + length + i] = (uint8_t)i;
    write_file(path, bytes, size);
    free(bytes);
}

/* ---- ranks ------------------------------------------------------------------------------------ */

static void build_small(nn_model **out)
{
    nn_model *m;
    must(nn_model_create(small_model.name, &m));
    nn_ref x = nn_input_image(m, 6, 6, 3);
    x = nn_conv2d(m, x, "conv1", 5, 3, 1, 1, false, nn_init_default());
    x = nn_activation(m, nn_batchnorm(m, x, "bn1", 1e-5, false), ACTIVATION_RELU);
    x = nn_conv2d(m, x, "conv2", 4, 3, 2, 1, true, nn_init_default());
    x = nn_activation(m, nn_batchnorm(m, x, "bn2", 1e-5, false), ACTIVATION_RELU);
    x = nn_linear(m, nn_flatten(m, x), "fc", 3, true, nn_init_default());
    must(nn_model_finish(m, x, NN_LOSS_CROSS_ENTROPY));
    *out = m;
}

static void open_parts(rank_state *r, device_memory_kind kind)
{
    nn_program_config program = {
        .batch = 2, .mode = NN_TRAIN, .type = device_get_info(r->device)->compute_type, .world = 1};
    param_set_config config = {.param_kind = kind, .grad_kind = kind, .buffer_kind = kind};
    must(device_stream_open(r->device, DEVICE_STREAM_COMPUTE, &r->stream));
    must(nn_program_compile(r->model, &program, &r->program));
    must(param_set_open(r->device, r->model, r->program, &config, &r->set));
    must(optimizer_open(r->device, &r->optimizer_options, r->set->type, r->set->arena_elements,
                        r->model->parameter_elements, &r->ledger, &r->optimizer));
}

void rank_open(rank_state *r, const char *name, const model_options *options, const optimizer_options *o)
{
    device_config config = {.name = name, .world = 1, .threads = 1};
    *r = (rank_state){.optimizer_options = o ? *o : optimizer_defaults(OPTIMIZER_ADAM)};
    if (device_open(&config, &r->device) == STATUS_UNAVAILABLE) {
        error_clear();
        print_message("# skipped: the device %s is not there\n", name);
        skip();
    }
    assert_non_null(r->device);
    if (options == &small_model) {
        build_small(&r->model);
    } else {
        must(model_build(options, &r->model));
        must(model_resolve(options, &r->options));
        r->model_binding = (option_binding){.table = &model_option_table, .storage = &r->options};
    }
    open_parts(r, DEVICE_MEMORY_PRIVATE);
    r->arenas = checkpoint_arenas_of(r->set, r->stream, r->optimizer);
    r->subject = (checkpoint_subject){.model = r->model,
                                      .type = r->set->type,
                                      .model_options = r->model_binding.table ? &r->model_binding : NULL,
                                      .optimizer = &r->optimizer_options};
}

void rank_close(rank_state *r)
{
    optimizer_close(&r->optimizer);
    param_set_close(&r->set);
    nn_program_free(&r->program);
    device_stream_close(&r->stream);
    device_close(&r->device);
    nn_model_free(&r->model);
}

static void fill(const param_set *set, void *arena, const piece *pieces, int count, uint64_t start)
{
    for (int p = 0; p < count; p++) {
        for (int64_t i = pieces[p].offset; i < pieces[p].offset + pieces[p].count; i++) {
            double value = random_signed(start, (uint64_t)i);
            if (set->type == DTYPE_F64)
                ((double *)arena)[i] = value;
            else
                ((float *)arena)[i] = (float)value;
        }
    }
}

void rank_fill(rank_state *r, uint64_t seed)
{
    param_set *set = r->set;
    int params = r->model->param_count;
    fill(set, set->params.data, set->pieces, params, random_start(seed, 0));
    fill(set, set->buffers.data, set->buffer_pieces, r->model->buffer_count, random_start(seed, 1));
    for (int s = 0; s < optimizer_state_count(&r->optimizer_options); s++)
        fill(set, optimizer_state(r->optimizer, s)->data, set->pieces, params,
             random_start(seed, (uint64_t)(2 + s)));
}

static void expect_same_arena(const rank_state *r, const char *what, const void *found, const void *wanted,
                              int64_t elements)
{
    int size = dtype_size(r->set->type);
    for (int64_t i = 0; i < elements; i++) {
        const char *f = (const char *)found + i * size, *w = (const char *)wanted + i * size;
        if (memcmp(f, w, (size_t)size) == 0) continue;
        bool wide = r->set->type == DTYPE_F64;
        fail_msg("model %s, %s, element %lld: found %.17g, wanted %.17g", r->model->name, what, (long long)i,
                 wide ? *(const double *)f : *(const float *)f,
                 wide ? *(const double *)w : *(const float *)w);
    }
}

void expect_same_parameters(const rank_state *found, const rank_state *wanted)
{
    const param_set *f = found->set, *w = wanted->set;
    expect_same_arena(found, "parameters", f->params.data, w->params.data, f->arena_elements);
    expect_same_arena(found, "buffers", f->buffers.data, w->buffers.data, f->buffer_elements);
}

void expect_same_rank(const rank_state *found, const rank_state *wanted)
{
    expect_same_parameters(found, wanted);
    for (int s = 0; s < optimizer_state_count(&wanted->optimizer_options); s++)
        expect_same_arena(found, "optimizer state", optimizer_state(found->optimizer, s)->data,
                          optimizer_state(wanted->optimizer, s)->data, found->set->arena_elements);
}

status rank_save(rank_state *r, const char *path, const checkpoint_progress *progress)
{
    checkpoint_source source = checkpoint_arenas_source(&r->arenas);
    return checkpoint_save(path, &r->subject, progress, &source);
}

status rank_load(rank_state *r, const char *path, checkpoint_progress *progress)
{
    checkpoint *c = NULL;
    checkpoint_sink sink = checkpoint_arenas_sink(&r->arenas);
    status rc = checkpoint_open(path, &c);
    if (rc == STATUS_OK) rc = checkpoint_load(c, &r->subject, &sink);
    if (rc == STATUS_OK && progress) *progress = checkpoint_get_info(c)->progress;
    checkpoint_close(&c);
    return rc;
}
