#include "common/data/csv.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIELD_MAX = 63 }; /* bytes of a number */

typedef struct reader {
    const char *name;
    const uint8_t *bytes;
    size_t size, at, line_start;
    int64_t line; /* from 1 */
} reader;

/* One field of a line, without its comma. */
typedef struct field {
    const uint8_t *text;
    size_t length, column; /* column from 1 */
    bool last;             /* of its line */
} field;

/* Shows at most 24 bytes of a field, with dots for what cannot be printed. */
static const char *show(char *buffer, size_t size, const field *f)
{
    size_t length = f->length < 24 ? f->length : 24;
    for (size_t i = 0; i < length; i++)
        buffer[i] = f->text[i] >= 32 && f->text[i] < 127 ? (char)f->text[i] : '.';
    snprintf(buffer + length, size - length, "%s", f->length > length ? "..." : "");
    return buffer;
}

static status wrong(const reader *r, const field *f, const char *allowed)
{
    char found[32];
    return fail(STATUS_DATA, "%s: line %" PRId64 ", column %zu: found '%s', allowed is %s", r->name, r->line,
                f->column, show(found, sizeof found, f), allowed);
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

/* A decimal number and nothing else; strtod alone would also take blanks, "inf", "nan" and "0x1p3". */
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

/* A whole number from 0, of at most nine digits. */
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

    /* A feature takes a digit and a comma at least, a sample its class and a line feed too. */
    int64_t least = out->samples * 2 + out->samples * out->features * 2 - 1,
            left = (int64_t)(r->size - r->at);
    if (left < least)
        return fail(STATUS_DATA,
                    "%s: line 1: found %" PRId64 " samples of %" PRId64
                    " features, which take at least %" PRId64 " bytes, allowed is what the %" PRId64
                    " bytes behind that line can hold",
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
            char allowed[64];
            snprintf(allowed, sizeof allowed, "%" PRId64 " features and a class a line", out->features);
            return wrong(r, &f, allowed);
        }
    }
    field f = next_field(r);
    int64_t label;
    if (!parse_whole(&f, &label) || label >= out->classes) {
        char allowed[40];
        snprintf(allowed, sizeof allowed, "a class from 0 to %d", out->classes - 1);
        return wrong(r, &f, allowed);
    }
    if (!f.last) {
        f = next_field(r);
        return wrong(r, &f, "the end of the line behind the class");
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
                        "%s: truncated: ends behind line %" PRId64 ", allowed is %" PRId64
                        " (one line a sample)",
                        r->name, r->line - 1, out->samples + 1);
        TRY(read_sample(r, i, out));
        next_line(r);
    }
    if (r->at < r->size) {
        field f = next_field(r);
        return wrong(r, &f, "the end of the file behind the last sample");
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
