#include "common/data/dataset.h"

#include "common/base/input.h"
#include "common/data/dataset_impl.h"
#include "common/data/sampler.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <zlib.h>

static const dataset_type *const types[] = {&dataset_wine, &dataset_fashion_mnist, &dataset_mnist,
                                            &dataset_idx,  &dataset_cifar10,       &dataset_synthetic};
enum { TYPES = sizeof types / sizeof types[0] };
static const uint8_t gzip_magic[] = {0x1f, 0x8b};

static status find_type(const char *spec, const dataset_type **out, const char **argument)
{
    const char *colon = strchr(spec, ':');
    size_t length = colon ? (size_t)(colon - spec) : strlen(spec);
    *argument = colon ? colon + 1 : NULL;
    for (int i = 0; i < TYPES; i++) {
        if (strlen(types[i]->name) != length || memcmp(types[i]->name, spec, length) != 0) continue;
        *out = types[i];
        return STATUS_OK;
    }
    const char *usages[TYPES];
    char list[256];
    for (int i = 0; i < TYPES; i++) usages[i] = types[i]->usage;
    return fail(STATUS_USAGE, "--data: expected one of %s, got '%s'",
                text_join(list, sizeof list, usages, TYPES), spec);
}

status dataset_open(const dataset_config *config, dataset **out)
{
    const dataset_type *type;
    const char *argument;
    *out = NULL;
    TRY(find_type(config->spec, &type, &argument));
    if (argument && !*argument)
        return fail(STATUS_USAGE, "--data: expected %s, got '%s'", type->usage, config->spec);
    dataset *set = calloc(1, sizeof *set);
    if (!set) return fail(STATUS_SYSTEM, "no memory for a data set");
    set->type = type;
    set->description.name = type->name;
    status result = type->open(set, config, argument);
    if (result != STATUS_OK) dataset_close(&set);
    *out = set;
    return result;
}

void dataset_close(dataset **set)
{
    if (!*set) return;
    for (int i = 0; i < (*set)->block_count; i++) free((*set)->blocks[i]);
    free(*set);
    *set = NULL;
}

const data_description *dataset_describe(const dataset *set)
{
    return &set->description;
}

uint64_t dataset_hash(const dataset *set, data_part part)
{
    const stored_part *stored = &set->stored[part];
    const int64_t *samples = set->description.samples;
    int64_t rows = stored->picks ? samples[DATA_TRAIN] + samples[DATA_TEST] : samples[part];
    const void *inputs = stored->pixels ? (const void *)stored->pixels : stored->features;
    if (!inputs) return 0;
    return XXH3_64bits_withSeed(stored->labels, (size_t)rows,
                                XXH3_64bits(inputs, (size_t)rows * dataset_input_bytes(set)));
}

size_t dataset_input_bytes(const dataset *set)
{
    const data_form *form = &set->description.form;
    return (size_t)data_form_input_elements(form) *
           (form->kind == DATA_IMAGE ? sizeof(uint8_t) : sizeof(float));
}

static int64_t row_of(const stored_part *part, int64_t index)
{
    return part->picks ? part->picks[index] : index;
}

const void *dataset_input(const dataset *set, data_part part, int64_t index, void *scratch)
{
    const stored_part *stored = &set->stored[part];
    const data_form *form = &set->description.form;
    assert(index >= 0 && index < set->description.samples[part]);
    if (set->type == &dataset_synthetic) {
        synthetic_input(set, part, index, scratch);
        return scratch;
    }
    int64_t offset = row_of(stored, index) * data_form_input_elements(form);
    if (form->kind == DATA_IMAGE) return stored->pixels + offset;
    return stored->features + offset;
}

void dataset_target(const dataset *set, data_part part, int64_t index, void *target)
{
    const stored_part *stored = &set->stored[part];
    assert(index >= 0 && index < set->description.samples[part]);
    if (set->type == &dataset_synthetic)
        synthetic_target(set, part, index, target);
    else
        *(int32_t *)target = stored->labels[row_of(stored, index)];
}

/* ---- for the data sets ------------------------------------------------------------------------ */

void dataset_own(dataset *set, void *block)
{
    assert(set->block_count < DATASET_MAX_BLOCKS);
    set->blocks[set->block_count++] = block;
}

status dataset_allocate(dataset *set, size_t bytes, void **out)
{
    *out = malloc(bytes);
    if (!*out) return fail(STATUS_SYSTEM, "data set %s: no memory for %zu bytes", set->type->name, bytes);
    dataset_own(set, *out);
    return STATUS_OK;
}

status dataset_add_file(dataset *set, const char *path, const char **out)
{
    void *copy;
    assert(set->description.file_count < DATA_MAX_FILES);
    TRY(dataset_allocate(set, strlen(path) + 1, &copy));
    *out = strcpy(copy, path);
    set->description.files[set->description.file_count++] = *out;
    return STATUS_OK;
}

status dataset_split(dataset *set, const stored_part *rows, int64_t count, uint64_t seed)
{
    void *picks;
    int64_t train_count;
    if (count < 2)
        return fail(STATUS_DATA, "%s: expected at least 2 samples, since a fifth is held out, got %" PRId64,
                    set->description.files[0], count);
    TRY(dataset_allocate(set, (size_t)count * sizeof(int32_t), &picks));
    TRY(stratified_split(rows->labels, count, seed, picks, &train_count));
    for (int part = 0; part < DATA_PARTS; part++) set->stored[part] = *rows;
    set->stored[DATA_TRAIN].picks = picks;
    set->stored[DATA_TEST].picks = (const int32_t *)picks + train_count;
    set->description.samples[DATA_TRAIN] = train_count;
    set->description.samples[DATA_TEST] = count - train_count;
    return STATUS_OK;
}

/* ---- files ------------------------------------------------------------------------------------ */

static status unpack(const char *path, z_stream *z, text_buffer *out)
{
    for (;;) {
        if (out->length == out->capacity) {
            if (out->capacity >= (size_t)FILE_LIMIT_MIB << 20)
                return fail(STATUS_DATA, "%s: expected at most %d MiB", path, (int)FILE_LIMIT_MIB);
            size_t capacity = out->capacity ? 2 * out->capacity : 1 << 20;
            char *data = realloc(out->data, capacity);
            if (!data) return fail(STATUS_SYSTEM, "%s: no memory for %zu bytes", path, capacity);
            out->data = data;
            out->capacity = capacity;
        }
        size_t room = out->capacity - out->length;
        z->next_out = (uint8_t *)out->data + out->length;
        z->avail_out = (uInt)(room < UINT_MAX ? room : UINT_MAX);
        int code = inflate(z, Z_NO_FLUSH);
        out->length = (size_t)((char *)z->next_out - out->data);
        if (code == Z_STREAM_END && z->avail_in == 0) return STATUS_OK;
        if (code == Z_STREAM_END && (z->avail_in < 2 || memcmp(z->next_in, gzip_magic, 2) != 0))
            return fail(STATUS_DATA,
                        "%s: expected the end of the file after the gzip data, got %u more bytes", path,
                        z->avail_in);
        if (code == Z_STREAM_END) code = inflateReset(z);
        if (code == Z_BUF_ERROR || (code == Z_OK && z->avail_in == 0 && z->avail_out > 0))
            return fail(STATUS_DATA, "%s: gzip data end early, after %zu unpacked bytes", path, out->length);
        if (code == Z_MEM_ERROR) return fail(STATUS_SYSTEM, "%s: no memory to read it", path);
        if (code != Z_OK)
            return fail(STATUS_DATA, "%s: damaged gzip data: %s", path, z->msg ? z->msg : zError(code));
    }
}

status file_read(const char *path, text_buffer *out)
{
    enum { GZIP = 16 + MAX_WBITS };
    *out = (text_buffer){0};
    TRY(input_read(path, ((int64_t)FILE_LIMIT_MIB << 20) - 1, out));
    if (out->length < 2 || memcmp(out->data, gzip_magic, 2) != 0) return STATUS_OK;
    text_buffer packed = *out;
    *out = (text_buffer){0};
    z_stream z = {.next_in = (uint8_t *)packed.data, .avail_in = (uInt)packed.length};
    status rc = inflateInit2(&z, GZIP) == Z_OK ? unpack(path, &z, out)
                                               : fail(STATUS_SYSTEM, "%s: no memory to read it", path);
    inflateEnd(&z);
    text_free(&packed);
    if (rc != STATUS_OK) text_free(out);
    return rc;
}
