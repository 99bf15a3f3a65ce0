#include "common/checkpoint/atomic_file.h"
#include "common/checkpoint/checkpoint_impl.h"

#include <glob.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little endian");

typedef struct saving {
    const char *path;
    const checkpoint_subject *subject;
    const checkpoint_progress *progress;
    const checkpoint_source *source;
    checkpoint_contents contents;
    char *header; /* length of the header, JSON, and spaces that fill the header to a multiple of 8 bytes */
    int64_t header_bytes;
    void *values; /* memory for the values of one tensor */
    XXH3_state_t *hash;
    atomic_file file;
} saving;

static status no_memory(const saving *s)
{
    return fail(STATUS_SYSTEM, "%s: no memory to save a checkpoint", s->path);
}

/* ---- the header ------------------------------------------------------------------------------- */

static json_t *describe_tensor(const checkpoint_tensor *t)
{
    json_t *dims = json_array();
    for (int i = 0; i < t->shape.rank; i++) json_array_append_new(dims, json_integer(t->shape.dims[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", safetensors_dtype_name(t->type), "shape", dims,
                     "data_offsets", (json_int_t)t->begin, (json_int_t)(t->begin + t->bytes));
}

static char *describe(const saving *s)
{
    json_t *header = json_object();
    int failures = json_object_set_new(header, "__metadata__", metadata_encode(s->subject, s->progress));
    for (int i = 0; i < s->contents.count; i++) {
        const checkpoint_tensor *t = &s->contents.tensors[i];
        failures += json_object_set_new(header, t->name, describe_tensor(t));
    }
    char *text = failures ? NULL : json_dumps(header, JSON_COMPACT);
    json_decref(header);
    return text;
}

static status make_header(saving *s)
{
    char *text = describe(s);
    if (!text) return no_memory(s);
    uint64_t length = strlen(text), padded = (length + 7) / 8 * 8;
    if (padded > SAFETENSORS_MAX_HEADER) {
        free(text);
        return fail(STATUS_CONFIG, "%s: expected a header of at most %d bytes, got %" PRIu64, s->path,
                    SAFETENSORS_MAX_HEADER, padded);
    }
    s->header_bytes = SAFETENSORS_PREFIX + (int64_t)padded;
    s->header = malloc((size_t)s->header_bytes);
    if (s->header) {
        memcpy(s->header, &padded, SAFETENSORS_PREFIX);
        memset(s->header + SAFETENSORS_PREFIX, ' ', padded);
        memcpy(s->header + SAFETENSORS_PREFIX, text, length);
    }
    free(text);
    return s->header ? STATUS_OK : no_memory(s);
}

static status put_hash(saving *s, const char *key, uint64_t hash)
{
    char digits[METADATA_HASH_DIGITS + 1];
    char *at =
        metadata_hash_digits(s->header + SAFETENSORS_PREFIX, s->header_bytes - SAFETENSORS_PREFIX, key);
    if (!at) return fail(STATUS_INTERNAL, "%s: the header has no digits for %s", s->path, key);
    snprintf(digits, sizeof digits, "%016" PRIx64, hash);
    memcpy(at, digits, METADATA_HASH_DIGITS);
    return STATUS_OK;
}

static status seal_header(saving *s)
{
    TRY(put_hash(s, METADATA_DATA_HASH, XXH3_64bits_digest(s->hash)));
    uint64_t hash;
    TRY(metadata_hash_header(s->header + SAFETENSORS_PREFIX, s->header_bytes - SAFETENSORS_PREFIX, &hash));
    TRY(put_hash(s, METADATA_HEADER_HASH, hash));
    return atomic_file_overwrite(&s->file, 0, s->header, (size_t)s->header_bytes);
}

/* ---- the data --------------------------------------------------------------------------------- */

/* Reads the tensor even if the file could not be written so far (*written), because other ranks send it. */
static status write_tensor(saving *s, const checkpoint_tensor *t, status *written)
{
    if (t->kind == CHECKPOINT_BATCHES) {
        memcpy(s->values, &s->progress->batches_tracked, sizeof s->progress->batches_tracked);
    } else {
        TRY(s->source->read(s->source->context, t, s->values));
    }
    XXH3_64bits_update(s->hash, s->values, (size_t)t->bytes);
    if (*written == STATUS_OK) *written = atomic_file_append(&s->file, s->values, (size_t)t->bytes);
    return STATUS_OK;
}

static status write_tensors(saving *s, bool batches, status *written)
{
    for (int i = 0; i < s->contents.count; i++) {
        const checkpoint_tensor *t = &s->contents.tensors[i];
        if ((t->kind == CHECKPOINT_BATCHES) == batches) TRY(write_tensor(s, t, written));
    }
    return STATUS_OK;
}

static status write_file(saving *s)
{
    status written = atomic_file_open(s->path, &s->file);
    if (written == STATUS_OK) written = atomic_file_append(&s->file, s->header, (size_t)s->header_bytes);
    /* Writes the tensors in the order of their offsets: num_batches_tracked first, then the other tensors. */
    TRY(write_tensors(s, true, &written));
    TRY(write_tensors(s, false, &written));
    TRY(written);
    TRY(seal_header(s));
    return atomic_file_commit(&s->file);
}

static status prepare(saving *s)
{
    const checkpoint_subject *subject = s->subject;
    TRY(checkpoint_contents_make(subject->model, subject->type, subject->optimizer, &s->contents));
    TRY(make_header(s));
    s->values = malloc((size_t)s->contents.largest_elements * sizeof(double) + sizeof(int64_t));
    s->hash = XXH3_createState();
    if (!s->values || !s->hash) return no_memory(s);
    XXH3_64bits_reset(s->hash);
    return STATUS_OK;
}

status checkpoint_save(const char *path, const checkpoint_subject *subject,
                       const checkpoint_progress *progress, const checkpoint_source *source)
{
    saving s = {.path = path,
                .subject = subject,
                .progress = progress,
                .source = source,
                .file = {.fd = -1, .folder = -1}};
    status rc = prepare(&s);
    if (rc == STATUS_OK) rc = write_file(&s);
    atomic_file_abandon(&s.file);
    checkpoint_contents_free(&s.contents);
    XXH3_freeState(s.hash);
    free(s.values);
    free(s.header);
    return rc;
}

status checkpoint_probe(const char *path)
{
    atomic_file file;
    TRY(atomic_file_open(path, &file));
    atomic_file_abandon(&file);
    return STATUS_OK;
}

/* ---- options ------------------------------------------------------------------------------------- */

static const char epoch_word[] = ATOMIC_FILE_EPOCH;

#define FIELD(name) offsetof(checkpoint_options, name)
static const option checkpoint_option_list[] = {
    {"save", OPTION_TEXT, FIELD(save), .argument = "FILE",
     .help = "write a checkpoint at the end (safetensors, with PyTorch's names); {epoch} in the name becomes "
             "the number of epochs"},
    {"save-every", OPTION_PERIOD, FIELD(save_every), .level = OPTION_RARE, .argument = "STEPS|EPOCHSep",
     .initial = "0", .high = 1e12,
     .help = "write the checkpoint of --save every so many steps, or epochs as in 50ep, too (0 for only at "
             "the end)"},
    {"load", OPTION_TEXT, FIELD(load), .argument = "FILE",
     .help = "resume from a checkpoint, or start from parameters that PyTorch saved"},
};
const option_table checkpoint_option_table = {
    "Checkpoints", checkpoint_option_list, sizeof checkpoint_option_list / sizeof checkpoint_option_list[0]};

status checkpoint_options_check(const checkpoint_options *o)
{
    if (o->save && checkpoint_is_index(o->save))
        return fail(STATUS_USAGE, "--save: expected the name of one file, got the index '%s'", o->save);
    if (o->save_every.count > 0 && !o->save)
        return fail(STATUS_USAGE, "--save-every: expected --save FILE too");
    return STATUS_OK;
}

char *checkpoint_path(const checkpoint_options *o, int64_t epoch, char *buffer, size_t size)
{
    const char *place = strstr(o->save, epoch_word);
    if (place)
        snprintf(buffer, size, "%.*s%" PRId64 "%s", (int)(place - o->save), o->save, epoch,
                 place + strlen(epoch_word));
    else
        snprintf(buffer, size, "%s", o->save);
    return buffer;
}

void checkpoint_clean(const checkpoint_options *o)
{
    char pattern[PATH_MAX], *place;
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "%s.partial", o->save);
    if ((place = strstr(pattern, epoch_word)) == NULL) {
        atomic_file_clean(o->save);
        return;
    }
    memmove(place + 1, place + strlen(epoch_word), strlen(place + strlen(epoch_word)) + 1);
    *place = '*';
    if (glob(pattern, GLOB_NOESCAPE, NULL, &found) != 0) return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        found.gl_pathv[i][strlen(found.gl_pathv[i]) - strlen(".partial")] = '\0';
        atomic_file_clean(found.gl_pathv[i]);
    }
    globfree(&found);
}
