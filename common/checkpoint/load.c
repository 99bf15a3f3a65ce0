#include "common/base/input.h"
#include "common/base/log.h"
#include "common/checkpoint/checkpoint_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { CHUNK = 1 << 20 };

struct checkpoint {
    char *path;
    int fd;
    int64_t bytes;
    char *text;
    safetensors_header header;
    checkpoint_info info;
    uint64_t data_hash;
};

static status no_memory(const checkpoint *c)
{
    return fail(STATUS_SYSTEM, "%s: no memory to load it", c->path);
}

/* ---- opening ---------------------------------------------------------------------------------- */

static status read_at(const checkpoint *c, int64_t offset, void *to, int64_t bytes)
{
    char *at = to;
    while (bytes > 0) {
        ssize_t count = pread(c->fd, at, bytes < CHUNK ? (size_t)bytes : CHUNK, offset);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0)
            return fail_errno(STATUS_IO, "%s: at offset %" PRId64 ": cannot be read", c->path, offset);
        if (count == 0)
            return safetensors_refuse(c->path, offset, "the file was truncated while it was read");
        at += count;
        offset += count;
        bytes -= count;
    }
    return STATUS_OK;
}

static status read_header(checkpoint *c)
{
    uint8_t prefix[SAFETENSORS_PREFIX];
    int64_t size = c->bytes < SAFETENSORS_PREFIX ? c->bytes : SAFETENSORS_PREFIX, length;
    TRY(read_at(c, 0, prefix, size));
    TRY(safetensors_measure(c->path, prefix, (size_t)size, c->bytes, &length));
    c->text = calloc((size_t)length + 1, 1);
    if (!c->text) return no_memory(c);
    TRY(read_at(c, SAFETENSORS_PREFIX, c->text, length));
    TRY(safetensors_decode(c->path, c->text, length, c->bytes, &c->header));
    return metadata_decode(&c->header, &c->info, &c->data_hash);
}

bool checkpoint_is_index(const char *path)
{
    return text_ends_with(path, ".index.json");
}

status checkpoint_open(const char *path, checkpoint **out)
{
    *out = NULL;
    if (checkpoint_is_index(path))
        return fail(
            STATUS_DATA,
            "%s: expected a checkpoint in one file, got an index of several; PyTorch writes one file with "
            "safetensors.torch.save_model(model, FILE); the last commit that reads several of this program "
            "is "
            "64fafa80",
            path);
    checkpoint *c = *out = calloc(1, sizeof *c);
    if (!c) return fail(STATUS_SYSTEM, "%s: no memory to load it", path);
    c->fd = -1;
    c->path = strdup(path);
    status rc = c->path ? input_open(c->path, INT64_MAX, &c->fd, &c->bytes)
                        : fail(STATUS_SYSTEM, "%s: no memory to load it", path);
    if (rc == STATUS_OK) rc = read_header(c);
    if (rc != STATUS_OK) checkpoint_close(out);
    return rc;
}

void checkpoint_close(checkpoint **pointer)
{
    checkpoint *c = *pointer;
    if (!c) return;
    if (c->fd >= 0) close(c->fd);
    safetensors_free(&c->header);
    free(c->text);
    free(c->path);
    free(c);
    *pointer = NULL;
}

const checkpoint_info *checkpoint_get_info(const checkpoint *c)
{
    return &c->info;
}

/* ---- checks of the data ----------------------------------------------------------------------- */

static int64_t place_of(const checkpoint *c, const safetensors_tensor *t)
{
    return safetensors_data_offset(&c->header) + t->begin;
}

static status hash_from(const checkpoint *c, int64_t at, uint64_t *out)
{
    XXH3_state_t *state = XXH3_createState();
    void *chunk = malloc(CHUNK);
    status rc = state && chunk && XXH3_64bits_reset(state) == XXH_OK ? STATUS_OK : no_memory(c);
    while (at < c->bytes && rc == STATUS_OK) {
        int64_t size = c->bytes - at < CHUNK ? c->bytes - at : CHUNK;
        rc = read_at(c, at, chunk, size);
        if (rc == STATUS_OK) XXH3_64bits_update(state, chunk, (size_t)size);
        at += size;
    }
    if (rc == STATUS_OK) *out = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    free(chunk);
    return rc;
}

status checkpoint_hash(const checkpoint *c, uint64_t *out)
{
    return c->info.foreign ? hash_from(c, 0, out)
                           : metadata_hash_header(c->header.text, c->header.text_bytes, out);
}

static status check_data_hash(const checkpoint *c)
{
    uint64_t computed;
    TRY(hash_from(c, safetensors_data_offset(&c->header), &computed));
    if (computed == c->data_hash) return STATUS_OK;
    return safetensors_refuse(c->path, safetensors_data_offset(&c->header),
                              "expected tensors with checksum %016" PRIx64 ", got %016" PRIx64
                              ": they are damaged, or edited",
                              c->data_hash, computed);
}

static status check_tie(const checkpoint *c, const match_tied *pair, void *chunk)
{
    char *one = chunk, *other = one + CHUNK / 2;
    int64_t bytes = pair->one->end - pair->one->begin;
    for (int64_t at = 0; at < bytes; at += CHUNK / 2) {
        int64_t size = bytes - at < CHUNK / 2 ? bytes - at : CHUNK / 2;
        TRY(read_at(c, place_of(c, pair->one) + at, one, size));
        TRY(read_at(c, place_of(c, pair->other) + at, other, size));
        if (memcmp(one, other, (size_t)size) != 0)
            return safetensors_refuse(
                c->path, place_of(c, pair->other),
                "tensor %.100s: expected the values of %.100s, since the model ties them", pair->other->name,
                pair->one->name);
    }
    return STATUS_OK;
}

static status check_data(const checkpoint *c, const match *m)
{
    status rc = c->info.foreign ? STATUS_OK : check_data_hash(c);
    void *chunk = malloc(CHUNK);
    if (rc == STATUS_OK && !chunk) rc = no_memory(c);
    for (int i = 0; i < m->tied_count && rc == STATUS_OK; i++) rc = check_tie(c, &m->tied[i], chunk);
    free(chunk);
    return rc;
}

/* ---- loading ---------------------------------------------------------------------------------- */

/* Transposes a matrix [rows, columns] of elements of 2, 4 or 8 bytes. */
static void transpose(char *to, const char *from, int64_t rows, int64_t columns, int bytes)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            memcpy(to + (c * rows + r) * bytes, from + (r * columns + c) * bytes, (size_t)bytes);
}

/* Loads one tensor. `values` and `transposed` each have room for one tensor. */
static status load_tensor(const checkpoint *c, const match *m, const checkpoint_tensor *wanted,
                          const safetensors_tensor *t, char *values, char *transposed,
                          const checkpoint_sink *sink)
{
    bool swap = m->transposed && match_is_conv1d(wanted->name);
    TRY(read_at(c, place_of(c, t), values, t->end - t->begin));
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
    TRY(metadata_compare(&c->header, info, subject));
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
    if (!info->foreign) metadata_differences(&c->header, subject, &differences);
    if (differences.length) log_warn("%s: options differ from the saved ones: %s", c->path, differences.data);
    text_free(&differences);
}
