#include "common/checkpoint/checkpoint_impl.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool checkpoint_has_index(const char *path)
{
    size_t length = strlen(path), suffix = strlen(INDEX_SUFFIX);
    return length > suffix && strcmp(path + length - suffix, INDEX_SUFFIX) == 0;
}

char *index_path_of(const char *index, const char *name, char *buffer)
{
    const char *slash = strrchr(index, '/');
    snprintf(buffer, CHECKPOINT_PATH_MAX, "%.*s%s", slash ? (int)(slash + 1 - index) : 0, index, name);
    return buffer;
}

char *index_file_path(const checkpoint_file *file, char *buffer)
{
    int stem = (int)(strlen(file->index) - strlen(INDEX_SUFFIX));
    snprintf(buffer, CHECKPOINT_PATH_MAX, "%.*s-%c-%05d-of-%05d.safetensors", stem, file->index, file->set,
             file->number + 1, file->count);
    return buffer;
}

/* ---- decoding --------------------------------------------------------------------------------- */

/* A file of the same folder, so that an index reads nothing elsewhere. */
static bool is_plain(const char *name)
{
    return *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static status add_file(checkpoint_index *x, const char *tensor, const json_t *value)
{
    const char *name = json_string_value(value);
    if (!name || !is_plain(name))
        return safetensors_refuse(
            x->path, 0, "tensor %.100s: expected the name of a file in the index's folder, got '%.60s'",
            tensor, name ? name : "no text");
    for (int i = 0; i < x->count; i++)
        if (strcmp(x->files[i].name, name) == 0) return STATUS_OK;
    x->files[x->count++].name = name;
    return STATUS_OK;
}

static bool read_hash(const json_t *value, uint64_t *out)
{
    const char *digits = json_string_value(value);
    if (!digits || strlen(digits) != METADATA_HASH_DIGITS ||
        strspn(digits, "0123456789abcdef") != METADATA_HASH_DIGITS)
        return false;
    *out = strtoull(digits, NULL, 16);
    return true;
}

static status check_hash(checkpoint_index *x, const char *text, int64_t bytes)
{
    const json_t *metadata = json_object_get(x->json, "metadata");
    uint64_t stored, computed;
    x->foreign = !json_object_get(metadata, METADATA_HEADER_HASH) && !json_object_get(metadata, INDEX_FILES);
    if (x->foreign) return STATUS_OK;
    TRY(metadata_hash_header(text, bytes, &computed));
    if (read_hash(json_object_get(metadata, METADATA_HEADER_HASH), &stored) && stored == computed)
        return STATUS_OK;
    return safetensors_refuse(
        x->path, 0, "expected an index with checksum %016" PRIx64 ": it is damaged, or edited", computed);
}

static status read_file_hashes(checkpoint_index *x)
{
    const json_t *hashes = json_object_get(json_object_get(x->json, "metadata"), INDEX_FILES);
    for (int i = 0; i < x->count && !x->foreign; i++)
        if (!read_hash(json_object_get(hashes, x->files[i].name), &x->files[i].hash))
            return safetensors_refuse(
                x->path, 0, "file %.100s has no checksum: the index is damaged, or edited", x->files[i].name);
    return STATUS_OK;
}

static status decode(checkpoint_index *x, const char *text, int64_t bytes)
{
    json_error_t error;
    const char *tensor;
    json_t *value;
    x->json = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &error);
    if (!x->json) return safetensors_refuse(x->path, error.position, "malformed index: %s", error.text);
    json_t *map = json_object_get(x->json, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        return safetensors_refuse(x->path, 0, "expected an index with a weight_map of tensors and files");
    TRY(check_hash(x, text, bytes));
    x->files = calloc(json_object_size(map), sizeof *x->files);
    if (!x->files) return fail(STATUS_SYSTEM, "%s: no memory for an index", x->path);
    json_object_foreach(map, tensor, value) TRY(add_file(x, tensor, value));
    return read_file_hashes(x);
}

status index_decode(const char *path, const char *text, int64_t bytes, checkpoint_index *out)
{
    *out = (checkpoint_index){.path = path};
    status rc = decode(out, text, bytes);
    if (rc != STATUS_OK) index_free(out);
    return rc;
}

void index_free(checkpoint_index *index)
{
    json_decref(index->json);
    free(index->files);
    *index = (checkpoint_index){0};
}

status index_check_tensors(const checkpoint_index *x, const safetensors_header *merged,
                           const safetensors_header *const *headers)
{
    const char *tensor;
    json_t *value, *map = json_object_get(x->json, "weight_map");
    json_object_foreach(map, tensor, value)
    {
        const safetensors_tensor *t = safetensors_find(merged, tensor);
        int file = 0;
        while (strcmp(x->files[file].name, json_string_value(value)) != 0) file++;
        if (!t || t->in != headers[file])
            return safetensors_refuse(x->path, 0, "expected tensor %.100s in %.100s, got none", tensor,
                                      x->files[file].name);
    }
    if ((size_t)merged->count == json_object_size(map)) return STATUS_OK;
    return safetensors_refuse(x->path, 0, "expected %zu tensors in its files, got %d", json_object_size(map),
                              merged->count);
}
