#include "common/checkpoint/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const safetensors_dtype dtypes[] = {
    {"F64", 8, DTYPE_F64},    {"F32", 4, DTYPE_F32},       {"F16", 2, DTYPE_F16},
    {"BF16", 2, DTYPE_BF16},  {"I64", 8, DTYPE_I64},       {"I32", 4, DTYPE_I32},
    {"U8", 1, DTYPE_U8},      {"I16", 2, DTYPE_COUNT},     {"I8", 1, DTYPE_COUNT},
    {"U64", 8, DTYPE_COUNT},  {"U32", 4, DTYPE_COUNT},     {"U16", 2, DTYPE_COUNT},
    {"BOOL", 1, DTYPE_COUNT}, {"F8_E4M3", 1, DTYPE_COUNT}, {"F8_E5M2", 1, DTYPE_COUNT},
};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

#define METADATA "__metadata__"

const char *safetensors_dtype_name(dtype type)
{
    for (int i = 0; i < DTYPES; i++)
        if (dtypes[i].type == type) return dtypes[i].name;
    return "";
}

char *safetensors_format_shape(char *buffer, size_t size, int rank, const int64_t *dims)
{
    size_t used = 0;
    snprintf(buffer, size, "%s", rank == 0 ? "scalar" : "");
    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(buffer + used, size - used, "%s%" PRId64, i ? "x" : "", dims[i]);
    return buffer;
}

status safetensors_refuse(const char *file, int64_t offset, const char *format, ...)
{
    char text[640];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return fail(STATUS_DATA, "%s: at offset %" PRId64 ": %s", file, offset, text);
}

/* ---- the length ------------------------------------------------------------------------------- */

static bool starts_as_torch_save(const uint8_t *bytes, size_t size)
{
    static const uint8_t zip[] = {'P', 'K', 3, 4}, pickle[] = {0x80, 2};
    return (size >= sizeof zip && memcmp(bytes, zip, sizeof zip) == 0) ||
           (size >= sizeof pickle && memcmp(bytes, pickle, sizeof pickle) == 0);
}

status safetensors_measure(const char *file, const uint8_t *bytes, size_t size, int64_t file_bytes,
                           int64_t *out)
{
    *out = 0;
    if (size < SAFETENSORS_PREFIX)
        return safetensors_refuse(
            file, (int64_t)size,
            "expected %d bytes with the length of a safetensors header, got the end of the file",
            SAFETENSORS_PREFIX);
    uint64_t length = 0;
    for (int i = SAFETENSORS_PREFIX - 1; i >= 0; i--) length = length << 8 | bytes[i];
    bool fits = length <= SAFETENSORS_MAX_HEADER && (int64_t)length <= file_bytes - SAFETENSORS_PREFIX;
    if (!fits && starts_as_torch_save(bytes, size))
        return safetensors_refuse(file, 0,
                                  "expected a safetensors file, got one of torch.save; write it with "
                                  "safetensors.torch.save_file(model.state_dict(), FILE)");
    if (length > SAFETENSORS_MAX_HEADER)
        return safetensors_refuse(file, 0, "expected a header of at most %d bytes, got %" PRIu64,
                                  SAFETENSORS_MAX_HEADER, length);
    if (!fits)
        return safetensors_refuse(
            file, 0, "expected a header of %" PRIu64 " bytes, got %" PRId64 " bytes after its length", length,
            file_bytes - SAFETENSORS_PREFIX);
    *out = (int64_t)length;
    return STATUS_OK;
}

/* ---- entries ---------------------------------------------------------------------------------- */

int64_t safetensors_offset_of(const safetensors_header *h, const char *name)
{
    const char *at = h->text, *end = h->text + h->text_bytes;
    size_t length = strlen(name);
    while (length && (at = memmem(at, (size_t)(end - at), name, length)) != NULL) {
        const char *after = at + length;
        if (at > h->text && at[-1] == '"' && after < end && *after == '"') {
            do after++;
            while (after < end && strchr(" \t\r\n", *after));
            if (after < end && *after == ':') return SAFETENSORS_PREFIX + (at - 1 - h->text);
        }
        at++;
    }
    return SAFETENSORS_PREFIX;
}

#define REFUSE_ENTRY(h, name, ...) safetensors_refuse((h)->file, safetensors_offset_of(h, name), __VA_ARGS__)

static status decode_dtype(const safetensors_header *h, safetensors_tensor *t, const json_t *entry)
{
    const json_t *value = json_object_get(entry, "dtype");
    if (!json_is_string(value)) return REFUSE_ENTRY(h, t->name, "tensor %.100s has no dtype", t->name);
    for (int i = 0; i < DTYPES; i++)
        if (strcmp(json_string_value(value), dtypes[i].name) == 0) t->dtype = &dtypes[i];
    if (t->dtype) return STATUS_OK;
    return REFUSE_ENTRY(h, t->name, "tensor %.100s: expected dtype F64, F32, F16, BF16 or I64, got '%.20s'",
                        t->name, json_string_value(value));
}

static status decode_shape(const safetensors_header *h, safetensors_tensor *t, const json_t *entry)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape)) return REFUSE_ENTRY(h, t->name, "tensor %.100s has no shape", t->name);
    size_t rank = json_array_size(shape);
    if (rank > SAFETENSORS_MAX_RANK)
        return REFUSE_ENTRY(h, t->name, "tensor %.100s: expected at most %d dimensions, got %zu", t->name,
                            SAFETENSORS_MAX_RANK, rank);
    t->rank = (int)rank;
    t->elements = 1;
    for (size_t i = 0; i < rank; i++) {
        const json_t *dim = json_array_get(shape, i);
        t->dims[i] = json_is_integer(dim) ? json_integer_value(dim) : -1;
        if (t->dims[i] < 0 || __builtin_mul_overflow(t->elements, t->dims[i], &t->elements))
            return REFUSE_ENTRY(h, t->name,
                                "tensor %.100s: expected a shape of sizes from 0 whose product is below 2^63",
                                t->name);
    }
    return STATUS_OK;
}

static status decode_offsets(const safetensors_header *h, safetensors_tensor *t, const json_t *entry)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return REFUSE_ENTRY(h, t->name, "tensor %.100s has no pair of data_offsets", t->name);
    t->begin = json_integer_value(begin);
    t->end = json_integer_value(end);
    if (t->begin < 0 || t->end < t->begin)
        return REFUSE_ENTRY(
            h, t->name, "tensor %.100s: expected increasing data_offsets from 0, got %" PRId64 " to %" PRId64,
            t->name, t->begin, t->end);
    if (t->end > h->data_bytes)
        return REFUSE_ENTRY(h, t->name,
                            "tensor %.100s: its data end at %" PRId64 ", but the file has %" PRId64
                            " bytes of data: it is truncated, or edited",
                            t->name, t->end, h->data_bytes);
    int64_t bytes;
    char text[160];
    if (__builtin_mul_overflow(t->elements, t->dtype->bytes, &bytes) || t->end - t->begin != bytes)
        return REFUSE_ENTRY(
            h, t->name, "tensor %.100s: expected the data of %s of shape %s, got %" PRId64 " bytes", t->name,
            t->dtype->name, safetensors_format_shape(text, sizeof text, t->rank, t->dims), t->end - t->begin);
    return STATUS_OK;
}

static status decode_metadata(const safetensors_header *h, const json_t *metadata)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata)) return REFUSE_ENTRY(h, METADATA, "%s: expected a JSON object", METADATA);
    json_object_foreach((json_t *)metadata, key, value) if (!json_is_string(value)) return REFUSE_ENTRY(
        h, key, "metadata %.100s: expected a string", key);
    return STATUS_OK;
}

static status decode_entries(safetensors_header *h)
{
    const char *key;
    json_t *value;
    h->tensors = calloc(json_object_size(h->json) + 1, sizeof *h->tensors);
    if (!h->tensors) return fail(STATUS_SYSTEM, "%s: no memory for its header", h->file);
    json_object_foreach(h->json, key, value)
    {
        if (strcmp(key, METADATA) == 0) {
            TRY(decode_metadata(h, value));
            continue;
        }
        safetensors_tensor *t = &h->tensors[h->count];
        t->name = key;
        if (!json_is_object(value)) return REFUSE_ENTRY(h, key, "tensor %.100s: expected a JSON object", key);
        TRY(decode_dtype(h, t, value));
        TRY(decode_shape(h, t, value));
        TRY(decode_offsets(h, t, value));
        h->count++;
    }
    return STATUS_OK;
}

/* ---- the whole -------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const safetensors_tensor *s = a, *t = b;
    if (s->begin != t->begin) return s->begin < t->begin ? -1 : 1;
    return s->end < t->end ? -1 : s->end > t->end;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const safetensors_tensor *)a)->name, ((const safetensors_tensor *)b)->name);
}

static status check_cover(safetensors_header *h)
{
    int64_t end = 0;
    qsort(h->tensors, (size_t)h->count, sizeof *h->tensors, by_place);
    for (int i = 0; i < h->count; i++) {
        const safetensors_tensor *t = &h->tensors[i];
        if (t->begin < end)
            return REFUSE_ENTRY(h, t->name,
                                "tensor %.100s: its data begin at %" PRId64
                                " and overlap the data of %.100s, which "
                                "end at %" PRId64,
                                t->name, t->begin, h->tensors[i - 1].name, end);
        if (t->begin > end)
            return REFUSE_ENTRY(h, t->name,
                                "tensor %.100s: expected its data at %" PRId64 " (no holes), got %" PRId64,
                                t->name, end, t->begin);
        end = t->end;
    }
    if (end != h->data_bytes)
        return safetensors_refuse(h->file, safetensors_data_offset(h) + end,
                                  "expected the end of the file after the last tensor, got %" PRId64 " bytes",
                                  h->data_bytes - end);
    qsort(h->tensors, (size_t)h->count, sizeof *h->tensors, by_name);
    return STATUS_OK;
}

static status decode_text(safetensors_header *h)
{
    json_error_t error;
    if (h->text_bytes == 0 || h->text[0] != '{')
        return safetensors_refuse(h->file, SAFETENSORS_PREFIX, "expected a header in JSON, got no '{'");
    h->json = json_loadb(h->text, (size_t)h->text_bytes, JSON_REJECT_DUPLICATES, &error);
    if (!h->json && json_error_code(&error) == json_error_out_of_memory)
        return fail(STATUS_SYSTEM, "%s: no memory for its header", h->file);
    if (!h->json)
        return safetensors_refuse(h->file, SAFETENSORS_PREFIX + (int64_t)error.position,
                                  "malformed header: %s", error.text);
    TRY(decode_entries(h));
    return check_cover(h);
}

status safetensors_decode(const char *file, const char *text, int64_t text_bytes, int64_t file_bytes,
                          safetensors_header *out)
{
    *out = (safetensors_header){.file = file,
                                .text = text,
                                .text_bytes = text_bytes,
                                .data_bytes = file_bytes - SAFETENSORS_PREFIX - text_bytes};
    status rc = decode_text(out);
    if (rc != STATUS_OK) safetensors_free(out);
    return rc;
}

void safetensors_free(safetensors_header *h)
{
    json_decref(h->json);
    free(h->tensors);
    *h = (safetensors_header){0};
}

/* ---- what is in it ---------------------------------------------------------------------------- */

const safetensors_tensor *safetensors_find(const safetensors_header *h, const char *name)
{
    safetensors_tensor key = {.name = name};
    return h->count ? bsearch(&key, h->tensors, (size_t)h->count, sizeof key, by_name) : NULL;
}

const char *safetensors_metadata(const safetensors_header *h, const char *key)
{
    return json_string_value(json_object_get(json_object_get(h->json, METADATA), key));
}

bool safetensors_has_metadata(const safetensors_header *h, const char *prefix)
{
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(h->json, METADATA), key,
                        value) if (strncmp(key, prefix, strlen(prefix)) == 0) return true;
    return false;
}
