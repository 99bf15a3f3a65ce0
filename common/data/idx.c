#include "common/data/idx.h"

#include <inttypes.h>
#include <stdio.h>

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
                    "%s: offset 0: found magic number 0x%08" PRIx32 ", allowed is 0x%08" PRIx32
                    " (IDX, unsigned bytes, %d dimension%s)",
                    name, big_endian(bytes), magic, dimensions, dimensions == 1 ? "" : "s");
    if (size < header)
        return fail(STATUS_DATA, "%s: ends at offset %zu, allowed is an IDX header of %zu bytes", name, size,
                    header);
    return STATUS_OK;
}

static status check_dimension(const char *name, const uint8_t *bytes, size_t offset, const char *what,
                              uint32_t highest, int64_t *out)
{
    uint32_t value = big_endian(bytes + offset);
    if (value < 1 || value > highest)
        return fail(STATUS_DATA, "%s: offset %zu: found %s %" PRIu32 ", allowed is 1 to %" PRIu32, name,
                    offset, what, value, highest);
    *out = value;
    return STATUS_OK;
}

static status check_size(const char *name, size_t size, size_t wanted, const char *content)
{
    if (size < wanted)
        return fail(STATUS_DATA, "%s: truncated: ends at offset %zu, allowed is %zu (%s)", name, size, wanted,
                    content);
    if (size > wanted)
        return fail(STATUS_DATA, "%s: offset %zu: found %zu bytes behind the end, allowed is none (%s)", name,
                    wanted, size - wanted, content);
    return STATUS_OK;
}

status idx_decode_images(const char *name, const uint8_t *bytes, size_t size, idx_images *out)
{
    TRY(check_header(name, bytes, size, MAGIC_IMAGES));
    TRY(check_dimension(name, bytes, 4, "number of images", INT32_MAX, &out->count));
    TRY(check_dimension(name, bytes, 8, "image height", IDX_MAX_SIDE, &out->h));
    TRY(check_dimension(name, bytes, 12, "image width", IDX_MAX_SIDE, &out->w));
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
    TRY(check_dimension(name, bytes, 4, "number of labels", INT32_MAX, &out->count));
    char content[40];
    snprintf(content, sizeof content, "%" PRId64 " labels", out->count);
    TRY(check_size(name, size, 8 + (size_t)out->count, content));
    out->labels = bytes + 8;
    out->highest = 0;
    for (int64_t i = 0; i < out->count; i++) {
        if (out->labels[i] >= classes)
            return fail(STATUS_DATA, "%s: offset %" PRId64 ": found label %d, allowed is 0 to %d", name,
                        8 + i, out->labels[i], classes - 1);
        if (out->labels[i] > out->highest) out->highest = out->labels[i];
    }
    return STATUS_OK;
}
