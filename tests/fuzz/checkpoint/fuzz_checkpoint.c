/* Reads a file as checkpoint_open() and checkpoint_load() do before they read tensors: length, header,
 * metadata, and the match against a model. The two models cover every naming convention of PyTorch that
 * occurs. */
#include "common/checkpoint/checkpoint_impl.h"
#include "models/models.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static nn_model *batchnorm_model(void)
{
    nn_model *m = NULL;
    if (nn_model_create("small", &m) != STATUS_OK) abort();
    nn_ref x = nn_input_image(m, 2, 2, 1);
    x = nn_batchnorm(m, nn_conv2d(m, x, "conv1", 1, 1, 1, 0, false, nn_init_default()), "bn1", 1e-5, false);
    x = nn_linear(m, nn_flatten(m, x), "fc", 2, true, nn_init_default());
    if (nn_model_finish(m, x, NN_LOSS_CROSS_ENTROPY) != STATUS_OK) abort();
    return m;
}

static nn_model *tied_model(void)
{
    const model_options options = {
        .name = "gpt2", .layers = 1, .hidden = 2, .heads = 1, .vocabulary = 3, .positions = 2, .sequence = 2};
    nn_model *m = NULL;
    if (model_build(&options, &m) != STATUS_OK) abort();
    return m;
}

/* Writes the right checksum, since a wrong one would hide the code that follows the check. */
static void seal(char *text, int64_t length)
{
    uint64_t hash;
    char digits[METADATA_HASH_DIGITS + 1];
    char *at = metadata_hash_digits(text, length, METADATA_HEADER_HASH);
    if (!at || metadata_hash_header(text, length, &hash) != STATUS_OK) return;
    snprintf(digits, sizeof digits, "%016" PRIx64, hash);
    memcpy(at, digits, METADATA_HASH_DIGITS);
}

static void match_model(const safetensors_header *h, const checkpoint_info *info, const nn_model *model)
{
    const optimizer_options adam = optimizer_defaults(OPTIMIZER_ADAM);
    checkpoint_subject subject = {.model = model, .type = DTYPE_F32, .optimizer = &adam};
    checkpoint_contents contents;
    match m;
    text_buffer differences = {0};
    metadata_compare(h, info, &subject);
    metadata_differences(h, &subject, &differences);
    text_free(&differences);
    if (checkpoint_contents_make(model, DTYPE_F32, info->foreign ? NULL : &adam, &contents) != STATUS_OK)
        abort();
    match_request request = {.model = model, .contents = &contents, .foreign = info->foreign};
    if (match_make(h, &request, &m) == STATUS_OK) {
        for (int i = 0; i < contents.count; i++)
            if (m.found[i] && m.found[i]->elements != contents.tensors[i].elements) __builtin_trap();
        match_free(&m);
    }
    checkpoint_contents_free(&contents);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static nn_model *models[2];
    if (!models[0]) models[0] = batchnorm_model();
    if (!models[1]) models[1] = tied_model();
    int64_t length;
    safetensors_header h;
    checkpoint_info info;
    uint64_t data_hash;
    error_clear();
    if (safetensors_measure("f", bytes, size, (int64_t)size, &length) != STATUS_OK) return 0;
    char *text = malloc((size_t)length + 1);
    if (!text) return 0;
    memcpy(text, bytes + SAFETENSORS_PREFIX, (size_t)length);
    seal(text, length);
    if (safetensors_decode("f", text, length, (int64_t)size, &h) == STATUS_OK) {
        for (int i = 0; i < h.count; i++)
            if (h.tensors[i].begin < 0 || safetensors_data_offset(&h) + h.tensors[i].end > (int64_t)size)
                __builtin_trap();
        if (metadata_decode(&h, &info, &data_hash) == STATUS_OK)
            for (int i = 0; i < 2; i++) match_model(&h, &info, models[i]);
        safetensors_free(&h);
    }
    free(text);
    return 0;
}
