#include "common/base/log.h"
#include "common/checkpoint/checkpoint_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { CHUNK = 1 << 20 };

/* One of its files. */
typedef struct source_file {
    char *path;
    int fd;
    int64_t bytes;
    char *text; /* the header's JSON */
    safetensors_header header;
    checkpoint_info info;
    uint64_t data_hash;
} source_file;

struct checkpoint {
    char *path;
    source_file *files;
    int count;
    safetensors_header header; /* of all tensors */
};

static status no_memory(const checkpoint *c)
{
    return fail(STATUS_SYSTEM, "%s: no memory to load it", c->path);
}

/* ---- opening ---------------------------------------------------------------------------------- */

static status read_at(const source_file *f, int64_t offset, void *to, int64_t bytes)
{
    char *at = to;
    while (bytes > 0) {
        ssize_t count = pread(f->fd, at, bytes < CHUNK ? (size_t)bytes : CHUNK, offset);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0)
            return fail_errno(STATUS_IO, "%s: at offset %" PRId64 ": cannot be read", f->path, offset);
        if (count == 0)
            return safetensors_refuse(f->path, offset, "the file was truncated while it was read");
        at += count;
        offset += count;
        bytes -= count;
    }
    return STATUS_OK;
}

static status open_file(source_file *f)
{
    struct stat st;
    /* Non-blocking: a pipe without a writer does not block. */
    f->fd = open(f->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (f->fd < 0 || fstat(f->fd, &st) != 0) return fail_errno(STATUS_DATA, "%s: cannot be opened", f->path);
    if (!S_ISREG(st.st_mode))
        return fail(STATUS_DATA, "%s: expected a regular file, got a %s", f->path,
                    S_ISDIR(st.st_mode) ? "folder" : "device, pipe or socket");
    f->bytes = st.st_size;
    return STATUS_OK;
}

static void close_file(source_file *f)
{
    if (f->fd >= 0) close(f->fd);
    safetensors_free(&f->header);
    free(f->text);
    free(f->path);
    *f = (source_file){.fd = -1};
}

static status allocate_text(source_file *f, int64_t length)
{
    f->text = calloc((size_t)length + 1, 1);
    return f->text ? STATUS_OK : fail(STATUS_SYSTEM, "%s: no memory to load it", f->path);
}

static status read_header(source_file *f)
{
    uint8_t prefix[SAFETENSORS_PREFIX];
    int64_t size = f->bytes < SAFETENSORS_PREFIX ? f->bytes : SAFETENSORS_PREFIX, length;
    TRY(read_at(f, 0, prefix, size));
    TRY(safetensors_measure(f->path, prefix, (size_t)size, f->bytes, &length));
    TRY(allocate_text(f, length));
    TRY(read_at(f, SAFETENSORS_PREFIX, f->text, length));
    TRY(safetensors_decode(f->path, f->text, length, f->bytes, &f->header));
    return metadata_decode(&f->header, &f->info, &f->data_hash);
}

/* Takes a copy of the path. */
static status open_path(const char *path, source_file *f)
{
    *f = (source_file){.path = strdup(path), .fd = -1};
    return f->path ? open_file(f) : fail(STATUS_SYSTEM, "%s: no memory to load it", path);
}

/* The file that the index means: not one of another save. */
static status open_named(const checkpoint_index *x, int number, source_file *f)
{
    char path[CHECKPOINT_PATH_MAX];
    uint64_t hash = 0;
    TRY(open_path(index_path_of(x->path, x->files[number].name, path), f));
    TRY(read_header(f));
    if (!f->info.foreign) TRY(metadata_header_hash(&f->header, &hash));
    if (f->info.foreign == x->foreign && hash == x->files[number].hash) return STATUS_OK;
    return safetensors_refuse(f->path, SAFETENSORS_PREFIX,
                              "expected the file that %.200s names, got that of another save", x->path);
}

static status merge(checkpoint *c, const checkpoint_index *x)
{
    const safetensors_header **headers = calloc((size_t)c->count, sizeof *headers);
    if (!headers) return no_memory(c);
    for (int i = 0; i < c->count; i++) headers[i] = &c->files[i].header;
    status rc = safetensors_merge(c->path, headers, c->count, &c->header);
    if (rc == STATUS_OK && x) rc = index_check_tensors(x, &c->header, headers);
    free(headers);
    return rc;
}

static status open_files(checkpoint *c, const checkpoint_index *x)
{
    c->files = calloc((size_t)x->count, sizeof *c->files);
    if (!c->files) return no_memory(c);
    for (status rc; c->count < x->count;) {
        rc = open_named(x, c->count, &c->files[c->count]);
        c->count++; /* also of one that failed: it is closed with the others */
        TRY(rc);
    }
    return merge(c, x);
}

static status open_index(checkpoint *c)
{
    source_file file;
    checkpoint_index x = {0};
    status rc = open_path(c->path, &file);
    if (rc == STATUS_OK && file.bytes > SAFETENSORS_MAX_HEADER)
        rc = safetensors_refuse(c->path, 0, "expected an index of at most %d bytes, got %" PRId64,
                                SAFETENSORS_MAX_HEADER, file.bytes);
    if (rc == STATUS_OK) rc = allocate_text(&file, file.bytes);
    if (rc == STATUS_OK) rc = read_at(&file, 0, file.text, file.bytes);
    if (rc == STATUS_OK) rc = index_decode(c->path, file.text, file.bytes, &x);
    if (rc == STATUS_OK) rc = open_files(c, &x);
    index_free(&x);
    close_file(&file);
    return rc;
}

static status open_one(checkpoint *c)
{
    c->files = calloc(1, sizeof *c->files);
    if (!c->files) return no_memory(c);
    c->count = 1;
    TRY(open_path(c->path, c->files));
    TRY(read_header(c->files));
    return merge(c, NULL);
}

status checkpoint_open(const char *path, checkpoint **out)
{
    checkpoint *c = *out = calloc(1, sizeof *c);
    if (!c) return fail(STATUS_SYSTEM, "%s: no memory to load it", path);
    c->path = strdup(path);
    status rc = !c->path                     ? fail(STATUS_SYSTEM, "%s: no memory to load it", path)
                : checkpoint_has_index(path) ? open_index(c)
                                             : open_one(c);
    if (rc != STATUS_OK) checkpoint_close(out);
    return rc;
}

void checkpoint_close(checkpoint **pointer)
{
    checkpoint *c = *pointer;
    if (!c) return;
    for (int i = 0; i < c->count; i++) close_file(&c->files[i]);
    safetensors_free(&c->header);
    free(c->files);
    free(c->path);
    free(c);
    *pointer = NULL;
}

const checkpoint_info *checkpoint_get_info(const checkpoint *c)
{
    return &c->files[0].info;
}

status checkpoint_header_hash(const checkpoint *c, uint64_t *out)
{
    return metadata_header_hash(&c->files[0].header, out);
}

/* ---- checks of the data ----------------------------------------------------------------------- */

static const source_file *file_of(const checkpoint *c, const safetensors_tensor *t)
{
    const source_file *f = c->files;
    while (&f->header != t->in) f++;
    return f;
}

static int64_t place_of(const safetensors_tensor *t)
{
    return safetensors_data_offset(t->in) + t->begin;
}

static status check_data_hash(const source_file *f, void *chunk)
{
    XXH3_state_t *state = XXH3_createState();
    if (!state) return fail(STATUS_SYSTEM, "%s: no memory to load it", f->path);
    XXH3_64bits_reset(state);
    int64_t at = safetensors_data_offset(&f->header);
    status rc = STATUS_OK;
    while (at < f->bytes && rc == STATUS_OK) {
        int64_t size = f->bytes - at < CHUNK ? f->bytes - at : CHUNK;
        rc = read_at(f, at, chunk, size);
        if (rc == STATUS_OK) XXH3_64bits_update(state, chunk, (size_t)size);
        at += size;
    }
    uint64_t computed = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    if (rc != STATUS_OK || computed == f->data_hash) return rc;
    return safetensors_refuse(f->path, safetensors_data_offset(&f->header),
                              "expected tensors with checksum %016" PRIx64 ", got %016" PRIx64
                              ": they are damaged, or edited",
                              f->data_hash, computed);
}

static status check_tie(const checkpoint *c, const match_tied *pair, void *chunk)
{
    char *one = chunk, *other = one + CHUNK / 2;
    int64_t bytes = pair->one->end - pair->one->begin;
    for (int64_t at = 0; at < bytes; at += CHUNK / 2) {
        int64_t size = bytes - at < CHUNK / 2 ? bytes - at : CHUNK / 2;
        TRY(read_at(file_of(c, pair->one), place_of(pair->one) + at, one, size));
        TRY(read_at(file_of(c, pair->other), place_of(pair->other) + at, other, size));
        if (memcmp(one, other, (size_t)size) != 0)
            return safetensors_refuse(
                pair->other->in->file, place_of(pair->other),
                "tensor %.100s: expected the values of %.100s, since the model ties them", pair->other->name,
                pair->one->name);
    }
    return STATUS_OK;
}

static status check_data(const checkpoint *c, const match *m)
{
    void *chunk = malloc(CHUNK);
    if (!chunk) return no_memory(c);
    status rc = STATUS_OK;
    for (int i = 0; i < c->count && !c->files[0].info.foreign && rc == STATUS_OK; i++)
        rc = check_data_hash(&c->files[i], chunk);
    for (int i = 0; i < m->tied_count && rc == STATUS_OK; i++) rc = check_tie(c, &m->tied[i], chunk);
    free(chunk);
    return rc;
}

/* ---- loading ---------------------------------------------------------------------------------- */

/* A matrix [rows, columns] of elements of 2, 4 or 8 bytes as [columns, rows]. */
static void transpose(char *to, const char *from, int64_t rows, int64_t columns, int bytes)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            memcpy(to + (c * rows + r) * bytes, from + (r * columns + c) * bytes, (size_t)bytes);
}

/* `values` and `transposed` hold one tensor each. */
static status load_tensor(const checkpoint *c, const match *m, const checkpoint_tensor *wanted,
                          const safetensors_tensor *t, char *values, char *transposed,
                          const checkpoint_sink *sink)
{
    bool swap = m->transposed && match_is_conv1d(wanted->name);
    TRY(read_at(file_of(c, t), place_of(t), values, t->end - t->begin));
    if (swap) transpose(transposed, values, t->dims[0], t->dims[1], t->dtype->bytes);
    return sink->write(sink->context, wanted, t->dtype->type, swap ? transposed : values);
}

static status load_all(const checkpoint *c, const checkpoint_contents *contents, const match *m,
                       const checkpoint_sink *sink)
{
    size_t size = (size_t)contents->largest_elements * sizeof(double);
    char *values = malloc(size), *transposed = m->transposed ? malloc(size) : NULL;
    status rc = values && (transposed || !m->transposed) ? STATUS_OK : no_memory(c);
    for (int i = 0; i < contents->count && rc == STATUS_OK; i++)
        if (contents->tensors[i].kind != CHECKPOINT_BATCHES)
            rc = load_tensor(c, m, &contents->tensors[i], m->found[i], values, transposed, sink);
    free(values);
    free(transposed);
    return rc;
}

status checkpoint_load(checkpoint *c, const checkpoint_subject *subject, const checkpoint_sink *sink)
{
    checkpoint_contents contents;
    match m = {0};
    status rc;
    const checkpoint_info *info = checkpoint_get_info(c);
    TRY(metadata_compare(&c->files[0].header, info, subject));
    const optimizer_options *optimizer = info->foreign ? NULL : subject->optimizer;
    TRY(checkpoint_contents_make(subject->model, subject->type, optimizer, &contents));
    match_request request = {.model = subject->model,
                             .contents = &contents,
                             .foreign = info->foreign,
                             .skips_state = !info->foreign && !optimizer};
    TRY_GOTO(rc, match_make(&c->header, &request, &m), out);
    TRY_GOTO(rc, check_data(c, &m), out);
    rc = load_all(c, &contents, &m, sink);
out:
    match_free(&m);
    checkpoint_contents_free(&contents);
    return rc;
}

void checkpoint_log_load(const checkpoint *c, const checkpoint_subject *subject)
{
    const checkpoint_info *info = checkpoint_get_info(c);
    const checkpoint_progress *p = &info->progress;
    const char *wanted = safetensors_dtype_name(subject->type);
    int converted = 0;
    for (int i = 0; i < c->header.count; i++) {
        dtype type = c->header.tensors[i].dtype->type;
        converted += match_is_floating(type) && type != subject->type;
    }
    if (info->foreign)
        log_info("%s: parameters and buffers loaded; another program wrote it, so %s starts fresh, at step 0",
                 c->path, subject->optimizer ? "the optimizer" : "everything else");
    else if (subject->optimizer)
        log_info("%s: loaded; the run resumes at step %" PRId64 " (step %" PRId64 " of epoch %" PRId64 ")",
                 c->path, p->step, p->epoch_step, p->epoch);
    else
        log_info("%s: parameters and buffers of step %" PRId64 " loaded", c->path, p->step);
    if (converted) log_info("%s: %d tensors converted to %s", c->path, converted, wanted);
    text_buffer differences = {0};
    if (!info->foreign) metadata_differences(&c->files[0].header, subject, &differences);
    if (differences.length) log_warn("%s: options differ from the saved ones: %s", c->path, differences.data);
    text_free(&differences);
}
