#include "common/data/file.h"

#include <errno.h>
#include <stdlib.h>
#include <zlib.h>

enum { CHUNK = 1 << 20 };

static status unreadable(const char *path, gzFile file)
{
    int code;
    const char *text = gzerror(file, &code);
    if (code == Z_ERRNO) return fail_errno(STATUS_DATA, "%s: cannot be read", path);
    return fail(STATUS_DATA, "%s: damaged gzip data: %s", path, text);
}

static status read_all(const char *path, gzFile file, file_bytes *out)
{
    size_t capacity = 0;
    for (;;) {
        if (out->size == capacity) {
            if (capacity >= (size_t)FILE_LIMIT_MIB << 20)
                return fail(STATUS_DATA, "%s: found more than %d MiB, allowed is at most that", path,
                            (int)FILE_LIMIT_MIB);
            capacity = capacity ? 2 * capacity : CHUNK;
            uint8_t *data = realloc(out->data, capacity);
            if (!data) return fail(STATUS_SYSTEM, "%s: no memory for %zu bytes", path, capacity);
            out->data = data;
        }
        size_t room = capacity - out->size;
        int count = gzread(file, out->data + out->size, room < CHUNK ? (unsigned)room : CHUNK);
        if (count < 0) return unreadable(path, file);
        if (count == 0) break;
        out->size += (size_t)count;
    }
    uint8_t *fitted = realloc(out->data, out->size ? out->size : 1);
    if (fitted) out->data = fitted;
    return STATUS_OK;
}

status file_read(const char *path, file_bytes *out)
{
    *out = (file_bytes){0};
    errno = 0;
    gzFile file = gzopen(path, "rbe");
    if (!file)
        return errno ? fail_errno(STATUS_DATA, "%s: cannot be opened", path)
                     : fail(STATUS_SYSTEM, "%s: no memory to read it", path);
    gzbuffer(file, 1 << 17);
    status result = read_all(path, file, out);
    int closed = gzclose_r(file);
    if (result == STATUS_OK && closed == Z_BUF_ERROR)
        result = fail(STATUS_DATA, "%s: gzip data end early, behind %zu unpacked bytes", path, out->size);
    if (result != STATUS_OK) file_free(out);
    return result;
}

void file_free(file_bytes *bytes)
{
    free(bytes->data);
    *bytes = (file_bytes){0};
}
