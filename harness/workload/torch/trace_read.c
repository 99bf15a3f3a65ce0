#include "common/base/input.h"
#include "harness/workload/torch/trace.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

/* Most bytes of a file, uncompressed, and of one event or one value at the top of the file. */
#define MOST_BYTES (INT64_C(2) << 30)
enum { MOST_VALUE = 2 << 20, BLOCK = 1 << 16 };

typedef struct reader {
    gzFile file;
    unsigned char block[BLOCK];
    int at, end;
    int64_t bytes;
    char value[MOST_VALUE + 1]; /* [length]: the value that cut() has read, and a zero byte */
    size_t length;
    bool too_long;
} reader;

/* Returns the next byte, or -1 at the end of the file. */
static int peek(reader *r)
{
    if (r->at < r->end) return r->block[r->at];
    r->at = 0;
    r->end = gzread(r->file, r->block, BLOCK);
    if (r->end > 0) r->bytes += r->end;
    if (r->bytes > MOST_BYTES) r->end = 0;
    return r->end > 0 ? r->block[0] : -1;
}

static int skip_space(reader *r)
{
    int c;
    while ((c = peek(r)) >= 0 && isspace(c)) r->at++;
    return c;
}

/* Fails because the file ends, or because `wanted` is missing. */
static status refuse(reader *r, const char *wanted)
{
    if (r->bytes > MOST_BYTES)
        return fail(STATUS_DATA, "expected at most 2 GiB of JSON; record fewer steps, e.g. active=3");
    if (peek(r) < 0)
        return fail(STATUS_DATA, "expected a whole trace, got %lld bytes of JSON", (long long)r->bytes);
    return fail(STATUS_DATA, "expected %s at byte %lld; is this a trace of torch.profiler?", wanted,
                (long long)(r->bytes - r->end + r->at));
}

/* Skips blanks and the byte `c`, which must come next. */
static status expect_byte(reader *r, char c, const char *wanted)
{
    if (skip_space(r) != c) return refuse(r, wanted);
    r->at++;
    return STATUS_OK;
}

/* Cuts the next value out of the file. A value that is too long is not stored. */
static status cut(reader *r)
{
    int depth = 0, c = skip_space(r);
    bool in_text = false, escaped = false;
    r->length = 0;
    r->too_long = false;
    if (c < 0 || strchr(",:]}", c)) return refuse(r, "a value");
    for (; (c = peek(r)) >= 0; r->at++) {
        if (!in_text && depth == 0 && r->length > 0 && (strchr(",:]}", c) || isspace(c))) break;
        r->too_long = r->length == MOST_VALUE;
        if (!r->too_long) r->value[r->length++] = (char)c;
        if (in_text) {
            in_text = escaped || c != '"';
            escaped = !escaped && c == '\\';
            if (in_text || depth > 0) continue;
        } else {
            in_text = c == '"';
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            if (in_text || depth > 0 || !strchr("]}", c)) continue;
        }
        r->at++;
        break;
    }
    r->value[r->length] = '\0';
    return c < 0 ? refuse(r, "the rest of a value") : STATUS_OK;
}

/* Skips the comma before the next entry of a list. Sets *more to false after the list's end `close`. */
static status next_entry(reader *r, char close, bool first, bool *more)
{
    *more = skip_space(r) != close;
    if (!*more) r->at++;
    return *more && !first ? expect_byte(r, ',', "a comma") : STATUS_OK;
}

static status read_events(reader *r, torch_trace *t)
{
    bool more;
    TRY(expect_byte(r, '[', "a list of events"));
    for (int64_t number = 0;; number++) {
        TRY(next_entry(r, ']', number == 0, &more));
        if (!more) return STATUS_OK;
        TRY(cut(r));
        if (r->too_long)
            return fail(STATUS_DATA, "event %lld: expected at most %d bytes", (long long)number, MOST_VALUE);
        /* Complete events have a duration. Others, such as arrows, are not needed. */
        if (memmem(r->value, r->length, "\"X\"", 3)) TRY(torch_add_event(t, r->value, r->length, number));
    }
}

/* Reads a value at the top of the file. */
static status read_property(reader *r, torch_trace *t, const char *key)
{
    bool description = strcmp(key, "harness") == 0, device = strcmp(key, "deviceProperties") == 0;
    TRY(cut(r));
    if (r->too_long || (!description && !device && strcmp(key, "distributedInfo") != 0)) return STATUS_OK;
    json_t *value = json_loadb(r->value, r->length, JSON_DECODE_ANY, NULL);
    if (!value) return fail(STATUS_DATA, "expected valid JSON in \"%s\"", key);
    const char *name = json_string_value(json_object_get(json_array_get(value, 0), "name"));
    json_int_t rank = json_integer_value(json_object_get(value, "rank"));
    json_int_t world = json_integer_value(json_object_get(value, "world_size"));
    if (device && name && strlen(name) < sizeof t->device) snprintf(t->device, sizeof t->device, "%s", name);
    text_printable(t->device, false);
    if (description && json_is_object(value)) {
        json_decref(t->description);
        t->description = json_incref(value);
    } else if (!device && rank >= 0 && rank < world && world < (1 << 24)) {
        t->rank = (int)rank;
        t->world = (int)world;
    }
    json_decref(value);
    return STATUS_OK;
}

static status read_object(reader *r, torch_trace *t)
{
    bool more, found = false;
    char key[64];
    TRY(expect_byte(r, '{', "'{'"));
    for (bool first = true;; first = false) {
        TRY(next_entry(r, '}', first, &more));
        if (!more) break;
        if (skip_space(r) != '"') return refuse(r, "a key");
        TRY(cut(r));
        snprintf(key, sizeof key, "%.*s", (int)r->length - 2, r->value + 1);
        TRY(expect_byte(r, ':', "a colon"));
        bool events = strcmp(key, "traceEvents") == 0;
        found = found || events;
        TRY(events ? read_events(r, t) : read_property(r, t, key));
    }
    if (found) return STATUS_OK;
    return fail(STATUS_DATA, "expected \"traceEvents\", which export_chrome_trace() writes");
}

/* ---- the whole file ---------------------------------------------------------------------------------- */

/* Refuses a file from which events have been removed: their times would be missing in every part. */
static status check_complete(const torch_trace *t)
{
    int64_t span = t->last_index - t->first_index + 1;
    if (t->host_events == 0 || span <= 2 * t->host_events) return STATUS_OK;
    return fail(STATUS_DATA,
                "expected all events of the process, but the trace is sampled: it has %lld of %lld events",
                (long long)t->host_events, (long long)span);
}

static int by_begin(const void *a, const void *b)
{
    const torch_event *x = a, *y = b;
    if (x->begin_ns != y->begin_ns) return x->begin_ns < y->begin_ns ? -1 : 1;
    return (x->end_ns < y->end_ns) - (x->end_ns > y->end_ns); /* the outer event first */
}

/* Sets the time at which the host launched each kernel. */
static status find_launches(torch_trace *t)
{
    torch_pairs launches = {0};
    status rc = STATUS_OK;
    for (int i = 0; i < t->count && rc == STATUS_OK; i++)
        if (t->events[i].kind == TORCH_LAUNCH)
            rc = torch_pairs_add(&launches, t->events[i].id, t->events[i].begin_ns);
    torch_pairs_sort(&launches);
    for (int i = 0; i < t->count; i++) {
        int until = torch_count_until(launches.list, launches.count, sizeof *launches.list, t->events[i].id);
        bool found = until > 0 && launches.list[until - 1].key == t->events[i].id;
        t->events[i].host_ns = found ? launches.list[until - 1].value : INT64_MIN;
    }
    free(launches.list);
    return rc;
}

status torch_read_fd(int fd, const char *name, torch_trace *out)
{
    *out = (torch_trace){.world = 1, .first_index = INT64_MAX, .last_index = -1, .device = "CPU"};
    snprintf(out->name, sizeof out->name, "%s", name);
    reader *r = calloc(1, sizeof *r);
    gzFile file = r ? gzdopen(fd, "rb") : NULL;
    status rc = file ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for a trace");
    if (file) {
        r->file = file;
        rc = read_object(r, out);
        gzclose(file);
    } else {
        close(fd);
    }
    free(r);
    if (rc == STATUS_OK) rc = check_complete(out);
    if (out->count > 0) qsort(out->events, (size_t)out->count, sizeof *out->events, by_begin);
    if (rc == STATUS_OK) rc = find_launches(out);
    if (rc != STATUS_OK) error_context("%s", name);
    return rc;
}

status torch_read(const char *path, torch_trace *out)
{
    int fd;
    int64_t bytes;
    *out = (torch_trace){0};
    TRY(input_open(path, MOST_BYTES, &fd, &bytes));
    return torch_read_fd(fd, path, out);
}

void torch_free(torch_trace *t)
{
    free(t->events);
    free(t->shapes);
    json_decref(t->description);
    *t = (torch_trace){0};
}
