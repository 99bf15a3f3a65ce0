#include "common/base/input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static status too_large(const char *name, int64_t largest)
{
    return fail(STATUS_DATA, "%s: expected at most %lld bytes", name, (long long)largest);
}

status input_open(const char *path, int64_t largest, int *fd, int64_t *bytes)
{
    struct stat st = {0};
    *fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (*fd < 0 && errno != ENXIO) /* errno is ENXIO if the path is a socket */
        return fail_errno(STATUS_DATA, "%s: cannot be opened", path);
    bool is_file = *fd >= 0 && fstat(*fd, &st) == 0 && S_ISREG(st.st_mode);
    *bytes = st.st_size;
    if (is_file && *bytes <= largest) return STATUS_OK;
    if (*fd >= 0) close(*fd);
    *fd = -1;
    return is_file ? too_large(path, largest)
                   : fail(STATUS_DATA, "%s: expected a regular file, got a %s", path,
                          S_ISDIR(st.st_mode) ? "folder" : "device, pipe or socket");
}

status input_read_fd(int fd, const char *name, int64_t largest, text_buffer *out)
{
    enum { LEAST = 4096 };
    status rc = STATUS_OK;
    for (ssize_t count = 1; rc == STATUS_OK && count != 0;) {
        if (!out->data || out->length + 1 >= out->capacity) {
            size_t capacity = out->capacity ? 2 * out->capacity : LEAST;
            char *data = realloc(out->data, capacity);
            if (!data)
                TRY_GOTO(rc, fail(STATUS_SYSTEM, "%s: no memory for %zu bytes", name, capacity), failed);
            out->data = data;
            out->capacity = capacity;
        }
        count = read(fd, out->data + out->length, out->capacity - out->length - 1);
        if (count < 0 && errno != EINTR) rc = fail_errno(STATUS_IO, "%s: cannot be read", name);
        out->length += count > 0 ? (size_t)count : 0;
        if (rc == STATUS_OK && out->length > (size_t)largest) rc = too_large(name, largest);
        out->data[out->length] = '\0';
    }
failed:
    if (rc != STATUS_OK) text_free(out);
    return rc;
}

status input_read(const char *path, int64_t largest, text_buffer *out)
{
    int fd;
    int64_t bytes = 0;
    TRY(input_open(path, largest, &fd, &bytes));
    out->capacity = (size_t)bytes / 2 + 1; /* input_read_fd() doubles the capacity before it reads */
    status rc = input_read_fd(fd, path, largest, out);
    close(fd);
    return rc;
}

status input_json_decode(const char *name, const text_buffer *text, json_t **out)
{
    json_error_t error;
    *out = json_loadb(text->data, text->length, JSON_REJECT_DUPLICATES, &error);
    if (*out) return STATUS_OK;
    return fail(STATUS_DATA, "%s:%d:%d: %s", name, error.line, error.column, error.text);
}

status input_json(const char *path, int64_t largest, json_t **out)
{
    text_buffer text = {0};
    *out = NULL;
    TRY(input_read(path, largest, &text));
    status rc = input_json_decode(path, &text, out);
    text_free(&text);
    return rc;
}
