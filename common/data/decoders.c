#include "common/data/decoders.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- IDX -------------------------------------------------------------------------------------- */

enum { MAGIC_IMAGES = 0x00000803, MAGIC_LABELS = 0x00000801 };

static uint32_t big_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static status check_header(const char *name, const uint8_t *bytes, size_t size, uint32_t magic)
{
    int dimensions = (int)(magic & 0xff);
    size_t header = 4 + 4 * (size_t)dimensions;
    if (size >= 4 && big_endian(bytes) != magic)
        return fail(STATUS_DATA,
                    "%s: offset 0: expected magic number 0x%08" PRIx32
                    " (IDX, unsigned bytes, %d dimension%s), got 0x%08" PRIx32,
                    name, magic, dimensions, dimensions == 1 ? "" : "s", big_endian(bytes));
    if (size < header)
        return fail(STATUS_DATA, "%s: expected an IDX header of %zu bytes, got %zu bytes", name, header,
                    size);
    return STATUS_OK;
}

static status check_dimension(const char *name, const uint8_t *bytes, size_t offset, const char *what,
                              uint32_t highest, int64_t *out)
{
    uint32_t value = big_endian(bytes + offset);
    if (value < 1 || value > highest)
        return fail(STATUS_DATA, "%s: offset %zu: expected %s from 1 to %" PRIu32 ", got %" PRIu32, name,
                    offset, what, highest, value);
    *out = value;
    return STATUS_OK;
}

static status check_size(const char *name, size_t size, size_t wanted, const char *content)
{
    if (size == wanted) return STATUS_OK;
    return fail(STATUS_DATA, "%s: %sexpected %zu bytes (%s), got %zu", name,
                size < wanted ? "truncated: " : "", wanted, content, size);
}

status idx_decode_images(const char *name, const uint8_t *bytes, size_t size, idx_images *out)
{
    TRY(check_header(name, bytes, size, MAGIC_IMAGES));
    TRY(check_dimension(name, bytes, 4, "a number of images", INT32_MAX, &out->count));
    TRY(check_dimension(name, bytes, 8, "an image height", IDX_MAX_SIDE, &out->h));
    TRY(check_dimension(name, bytes, 12, "an image width", IDX_MAX_SIDE, &out->w));
    char content[80];
    snprintf(content, sizeof content, "%" PRId64 " images of %" PRId64 "x%" PRId64, out->count, out->h,
             out->w);
    TRY(check_size(name, size, 16 + (size_t)(out->count * out->h * out->w), content));
    out->pixels = bytes + 16;
    return STATUS_OK;
}

status idx_decode_labels(const char *name, const uint8_t *bytes, size_t size, int classes, idx_labels *out)
{
    TRY(check_header(name, bytes, size, MAGIC_LABELS));
    TRY(check_dimension(name, bytes, 4, "a number of labels", INT32_MAX, &out->count));
    char content[40];
    snprintf(content, sizeof content, "%" PRId64 " labels", out->count);
    TRY(check_size(name, size, 8 + (size_t)out->count, content));
    out->labels = bytes + 8;
    out->highest = 0;
    for (int64_t i = 0; i < out->count; i++) {
        if (out->labels[i] >= classes)
            return fail(STATUS_DATA, "%s: offset %" PRId64 ": expected a label from 0 to %d, got %d", name,
                        8 + i, classes - 1, out->labels[i]);
        if (out->labels[i] > out->highest) out->highest = out->labels[i];
    }
    return STATUS_OK;
}

/* ---- CIFAR-10 --------------------------------------------------------------------------------- */

enum { RECORD = 1 + CIFAR10_PIXELS, PLANE = CIFAR10_SIDE * CIFAR10_SIDE };

status cifar10_count(const char *name, size_t size, int64_t *count)
{
    if (size == 0 || size % RECORD != 0)
        return fail(STATUS_DATA,
                    "%s: expected a multiple of %d bytes (per record 1 label and %d pixels), got %zu", name,
                    (int)RECORD, (int)CIFAR10_PIXELS, size);
    *count = (int64_t)(size / RECORD);
    return STATUS_OK;
}

status cifar10_decode(const char *name, const uint8_t *bytes, int64_t count, uint8_t *pixels, uint8_t *labels)
{
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *record = bytes + i * RECORD;
        if (record[0] >= CIFAR10_CLASSES)
            return fail(STATUS_DATA, "%s: offset %" PRId64 ": expected a label from 0 to %d, got %d", name,
                        i * RECORD, CIFAR10_CLASSES - 1, record[0]);
        labels[i] = record[0];
        for (int p = 0; p < PLANE; p++)
            for (int c = 0; c < CIFAR10_CHANNELS; c++)
                pixels[i * CIFAR10_PIXELS + p * CIFAR10_CHANNELS + c] = record[1 + c * PLANE + p];
    }
    return STATUS_OK;
}

/* ---- CSV -------------------------------------------------------------------------------------- */

enum { FIELD_MAX = 63 }; /* largest length of a number, in bytes */

typedef struct reader {
    const char *name;
    const uint8_t *bytes;
    size_t size, at, line_start;
    int64_t line; /* counted from 1 */
} reader;

/* A field of a line, without the comma. */
typedef struct field {
    const uint8_t *text;
    size_t length, column; /* `column` is counted from 1 */
    bool last;
} field;

/* Copies at most 24 bytes of a field to `buffer`, and replaces unprintable characters by dots. Returns
 * `buffer`. */
static const char *show(char *buffer, size_t size, const field *f)
{
    size_t length = f->length < 24 ? f->length : 24;
    for (size_t i = 0; i < length; i++)
        buffer[i] = f->text[i] >= 32 && f->text[i] < 127 ? (char)f->text[i] : '.';
    snprintf(buffer + length, size - length, "%s", f->length > length ? "..." : "");
    return buffer;
}

static status wrong(const reader *r, const field *f, const char *expected)
{
    char got[32];
    return fail(STATUS_DATA, "%s: line %" PRId64 ", column %zu: expected %s, got '%s'", r->name, r->line,
                f->column, expected, show(got, sizeof got, f));
}

static field next_field(reader *r)
{
    size_t begin = r->at;
    while (r->at < r->size && r->bytes[r->at] != ',' && r->bytes[r->at] != '\n') r->at++;
    field f = {r->bytes + begin, r->at - begin, begin - r->line_start + 1, true};
    if (r->at < r->size && r->bytes[r->at] == ',') {
        f.last = false;
        r->at++;
    } else if (f.length > 0 && f.text[f.length - 1] == '\r') {
        f.length--;
    }
    return f;
}

static void next_line(reader *r)
{
    if (r->at < r->size) r->at++;
    r->line_start = r->at;
    r->line++;
}

/* Parses a decimal number. Unlike strtod(), refuses blanks, "inf", "nan" and hexadecimal numbers such as
 * "0x1p3". */
static bool parse_number(const field *f, double *out)
{
    char text[FIELD_MAX + 1];
    if (f->length == 0 || f->length > FIELD_MAX) return false;
    for (size_t i = 0; i < f->length; i++)
        if (!memchr("0123456789+-.eE", f->text[i], 15)) return false;
    memcpy(text, f->text, f->length);
    text[f->length] = '\0';
    char *end;
    *out = strtod(text, &end);
    return *end == '\0' && isfinite(*out);
}

static bool parse_whole(const field *f, int64_t *out)
{
    if (f->length == 0 || f->length > 9) return false;
    *out = 0;
    for (size_t i = 0; i < f->length; i++) {
        if (f->text[i] < '0' || f->text[i] > '9') return false;
        *out = *out * 10 + (f->text[i] - '0');
    }
    return true;
}

static status read_header(reader *r, csv_table *out)
{
    field f = next_field(r);
    if (f.last || !parse_whole(&f, &out->samples) || out->samples < 1)
        return wrong(r, &f,
                     "the number of samples, a comma, the number of features and the names of the classes");
    f = next_field(r);
    if (f.last || !parse_whole(&f, &out->features) || out->features < 1)
        return wrong(r, &f, "the number of features, and then the names of the classes");
    do {
        f = next_field(r);
        if (f.length == 0) return wrong(r, &f, "the name of a class");
        if (out->classes == CSV_MAX_CLASSES) return wrong(r, &f, "at most 256 names of classes");
        out->classes++;
    } while (!f.last);
    next_line(r);

    /* Each feature of a sample needs at least a digit and a comma. Each sample also needs at least a digit
     * for the class, and a line feed except in the last line. */
    int64_t least = out->samples * 2 + out->samples * out->features * 2 - 1,
            left = (int64_t)(r->size - r->at);
    if (left < least)
        return fail(STATUS_DATA,
                    "%s: line 1: %" PRId64 " samples of %" PRId64 " features take at least %" PRId64
                    " bytes, got %" PRId64 " after that line",
                    r->name, out->samples, out->features, least, left);
    return STATUS_OK;
}

static status read_sample(reader *r, int64_t sample, csv_table *out)
{
    for (int64_t i = 0; i < out->features; i++) {
        field f = next_field(r);
        if (!parse_number(&f, &out->values[sample * out->features + i]))
            return wrong(r, &f, "a decimal number");
        if (f.last) {
            char expected[64];
            snprintf(expected, sizeof expected, "%" PRId64 " features and a class per line", out->features);
            return wrong(r, &f, expected);
        }
    }
    field f = next_field(r);
    int64_t label;
    if (!parse_whole(&f, &label) || label >= out->classes) {
        char expected[40];
        snprintf(expected, sizeof expected, "a class from 0 to %d", out->classes - 1);
        return wrong(r, &f, expected);
    }
    if (!f.last) {
        f = next_field(r);
        return wrong(r, &f, "the end of the line after the class");
    }
    out->labels[sample] = (uint8_t)label;
    return STATUS_OK;
}

static status read_samples(reader *r, csv_table *out)
{
    out->values = malloc((size_t)(out->samples * out->features) * sizeof *out->values);
    out->labels = malloc((size_t)out->samples);
    if (!out->values || !out->labels) return fail(STATUS_SYSTEM, "%s: no memory for its samples", r->name);
    for (int64_t i = 0; i < out->samples; i++) {
        if (r->at == r->size)
            return fail(STATUS_DATA,
                        "%s: truncated: expected %" PRId64 " lines (one per sample), got %" PRId64, r->name,
                        out->samples + 1, r->line - 1);
        TRY(read_sample(r, i, out));
        next_line(r);
    }
    if (r->at < r->size) {
        field f = next_field(r);
        return wrong(r, &f, "the end of the file after the last sample");
    }
    return STATUS_OK;
}

status csv_decode(const char *name, const uint8_t *bytes, size_t size, csv_table *out)
{
    reader r = {.name = name, .bytes = bytes, .size = size, .line = 1};
    *out = (csv_table){0};
    TRY(read_header(&r, out));
    status result = read_samples(&r, out);
    if (result != STATUS_OK) csv_free(out);
    return result;
}

void csv_free(csv_table *table)
{
    free(table->values);
    free(table->labels);
    *table = (csv_table){0};
}
