#include "common/checkpoint/checkpoint_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define KEY(name) METADATA_PREFIX name
enum { VALUE_MAX = 256, KEY_MAX = 128 };
static const char no_hash[] = "0000000000000000";

/* Options of a model that do not affect its tensors. A checkpoint can be loaded with other values of these
 * options. */
static const char *const model_use[] = {"image", "sequence", "sync-batchnorm"};

static const struct {
    const char *key;
    size_t offset;
} progress_fields[] = {
    {KEY("step"), offsetof(checkpoint_progress, step)},
    {KEY("optimizer_step"), offsetof(checkpoint_progress, optimizer_step)},
    {KEY("epoch"), offsetof(checkpoint_progress, epoch)},
    {KEY("epoch_step"), offsetof(checkpoint_progress, epoch_step)},
    {KEY("batches_tracked"), offsetof(checkpoint_progress, batches_tracked)},
};
enum { PROGRESS_FIELDS = sizeof progress_fields / sizeof progress_fields[0] };

/* ---- options as texts ------------------------------------------------------------------------- */

static option_binding optimizer_binding(const optimizer_options *o)
{
    return (option_binding){.table = &optimizer_option_table, .storage = (void *)o};
}

/* Returns true if the option is the name of the model or the kind of optimizer. These two options have
 * separate keys in the metadata. */
static bool is_name(const option *o)
{
    return strcmp(o->name, "model") == 0 || strcmp(o->name, "optimizer") == 0;
}

static char *option_key(char *buffer, const char *group, const option *o)
{
    snprintf(buffer, KEY_MAX, METADATA_PREFIX "%s.%s", group, o->name);
    return buffer;
}

/* ---- encoding --------------------------------------------------------------------------------- */

static int set_text(json_t *to, const char *key, const char *value)
{
    return json_object_set_new(to, key, json_string(value));
}

static int set_number(json_t *to, const char *key, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return set_text(to, key, text);
}

static int set_options(json_t *to, const char *group, const option_binding *binding)
{
    char key[KEY_MAX], value[VALUE_MAX];
    int failures = 0;
    for (size_t i = 0; i < binding->table->count; i++) {
        const option *o = &binding->table->options[i];
        if (!is_name(o))
            failures +=
                set_text(to, option_key(key, group, o), options_format(binding, i, value, sizeof value));
    }
    return failures;
}

json_t *metadata_encode(const checkpoint_subject *subject, const checkpoint_progress *progress)
{
    json_t *to = json_object();
    const optimizer_options *optimizer = subject->optimizer;
    option_binding binding = optimizer_binding(optimizer);
    int failures = 0;
    failures += set_text(to, "format", "pt"); /* Hugging Face's loaders require this key. */
    failures += set_number(to, KEY("schema_version"), CHECKPOINT_SCHEMA_VERSION);
    failures += set_text(to, KEY("model"), subject->model->name);
    if (subject->model_options) failures += set_options(to, "model", subject->model_options);
    failures += set_text(to, KEY("optimizer"), optimizer ? optimizer_names[optimizer->kind] : "none");
    if (optimizer) failures += set_options(to, "optimizer", &binding);
    for (int i = 0; i < PROGRESS_FIELDS; i++) {
        int64_t value;
        memcpy(&value, (const char *)progress + progress_fields[i].offset, sizeof value);
        failures += set_number(to, progress_fields[i].key, (uint64_t)value);
    }
    failures += set_number(to, KEY("seed"), progress->seed);
    failures += set_text(to, METADATA_DATA_HASH, no_hash);
    failures += set_text(to, METADATA_HEADER_HASH, no_hash);
    if (failures == 0) return to;
    json_decref(to);
    return NULL;
}

/* ---- hashes ----------------------------------------------------------------------------------- */

char *metadata_hash_digits(char *text, int64_t bytes, const char *key)
{
    char pattern[KEY_MAX];
    int length = snprintf(pattern, sizeof pattern, "\"%s\":\"", key);
    char *at = memmem(text, (size_t)bytes, pattern, (size_t)length);
    if (!at || text + bytes - (at + length) <= METADATA_HASH_DIGITS) return NULL;
    return at[length + METADATA_HASH_DIGITS] == '"' ? at + length : NULL;
}

status metadata_hash_header(const char *text, int64_t bytes, uint64_t *out)
{
    XXH3_state_t *state = XXH3_createState();
    if (!state) return fail(STATUS_SYSTEM, "no memory for a checksum");
    const char *digits = metadata_hash_digits((char *)text, bytes, METADATA_HEADER_HASH);
    const char *end = text + bytes, *rest = digits ? digits + METADATA_HASH_DIGITS : end;
    XXH3_64bits_reset(state);
    XXH3_64bits_update(state, text, (size_t)((digits ? digits : end) - text));
    if (digits) XXH3_64bits_update(state, no_hash, METADATA_HASH_DIGITS);
    XXH3_64bits_update(state, rest, (size_t)(end - rest));
    *out = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return STATUS_OK;
}

/* ---- decoding --------------------------------------------------------------------------------- */

static status refuse_value(const safetensors_header *h, const char *key, const char *got,
                           const char *expected)
{
    return safetensors_refuse(h->file, safetensors_offset_of(h, key), "metadata %s: expected %s, got '%.40s'",
                              key, expected, got);
}

static status need_text(const safetensors_header *h, const char *key, const char **out)
{
    *out = safetensors_metadata(h, key);
    if (*out) return STATUS_OK;
    return safetensors_refuse(h->file, SAFETENSORS_PREFIX,
                              "metadata %s is missing: the file is damaged, or edited", key);
}

static status need_number(const safetensors_header *h, const char *key, uint64_t high, uint64_t *out)
{
    const char *text;
    char *end;
    TRY(need_text(h, key, &text));
    errno = 0;
    *out = strtoull(text, &end, 10);
    bool digits = text[0] >= '0' && text[0] <= '9' && *end == '\0';
    if (digits && errno == 0 && *out <= high) return STATUS_OK;
    return refuse_value(h, key, text, "an integer");
}

static status need_hash(const safetensors_header *h, const char *key, uint64_t *out)
{
    const char *text;
    TRY(need_text(h, key, &text));
    if (strlen(text) != METADATA_HASH_DIGITS || strspn(text, "0123456789abcdef") != METADATA_HASH_DIGITS)
        return refuse_value(h, key, text, "16 hexadecimal digits");
    *out = strtoull(text, NULL, 16);
    return STATUS_OK;
}

static status check_header_hash(const safetensors_header *h)
{
    uint64_t stored, computed;
    TRY(need_hash(h, METADATA_HEADER_HASH, &stored));
    TRY(metadata_hash_header(h->text, h->text_bytes, &computed));
    if (stored == computed) return STATUS_OK;
    return safetensors_refuse(h->file, safetensors_offset_of(h, METADATA_HEADER_HASH),
                              "expected a header with checksum %016" PRIx64 ", got %016" PRIx64
                              ": it is damaged, or edited",
                              stored, computed);
}

status metadata_decode(const safetensors_header *h, checkpoint_info *info, uint64_t *data_hash)
{
    *info = (checkpoint_info){.foreign = !safetensors_has_metadata(h, METADATA_PREFIX)};
    *data_hash = 0;
    if (info->foreign) return STATUS_OK;
    uint64_t value;
    TRY(need_number(h, KEY("schema_version"), UINT64_MAX, &value));
    if (value != CHECKPOINT_SCHEMA_VERSION)
        return refuse_value(h, KEY("schema_version"), safetensors_metadata(h, KEY("schema_version")), "1");
    TRY(check_header_hash(h));
    TRY(need_hash(h, METADATA_DATA_HASH, data_hash));
    TRY(need_text(h, KEY("model"), &info->model));
    TRY(need_text(h, KEY("optimizer"), &info->optimizer));
    for (int i = 0; i < PROGRESS_FIELDS; i++) {
        TRY(need_number(h, progress_fields[i].key, INT64_MAX, &value));
        memcpy((char *)&info->progress + progress_fields[i].offset, &value, sizeof value);
    }
    return need_number(h, KEY("seed"), UINT64_MAX, &info->progress.seed);
}

/* ---- comparing -------------------------------------------------------------------------------- */

static bool may_differ(const char *group, const option *o)
{
    if (strcmp(group, "optimizer") == 0) return true;
    for (size_t i = 0; i < sizeof model_use / sizeof model_use[0]; i++)
        if (strcmp(o->name, model_use[i]) == 0) return true;
    return false;
}

/* Finds the first option, starting at *index, whose saved value differs from the current value. If `may` is
 * true, considers only options that may differ. If `may` is false, considers only the other options. Writes
 * the key, the saved value and the current value of the option. */
static const option *next_difference(const safetensors_header *h, const char *group,
                                     const option_binding *binding, bool may, size_t *index, char *key,
                                     const char **saved, char *value)
{
    for (; *index < binding->table->count; ++*index) {
        const option *o = &binding->table->options[*index];
        bool counts = !is_name(o) && may_differ(group, o) == may;
        *saved = counts ? safetensors_metadata(h, option_key(key, group, o)) : NULL;
        options_format(binding, *index, value, VALUE_MAX);
        if (*saved && strcmp(*saved, value) != 0) return o;
    }
    return NULL;
}

status metadata_compare(const safetensors_header *h, const checkpoint_info *info,
                        const checkpoint_subject *subject)
{
    char key[KEY_MAX], value[VALUE_MAX];
    const char *saved;
    size_t at = 0;
    if (info->foreign) return STATUS_OK;
    if (strcmp(info->model, subject->model->name) != 0)
        return safetensors_refuse(h->file, safetensors_offset_of(h, KEY("model")),
                                  "expected model '%s', got '%.60s'", subject->model->name, info->model);
    const option_binding *model = subject->model_options;
    const option *o = model ? next_difference(h, "model", model, false, &at, key, &saved, value) : NULL;
    if (o)
        return safetensors_refuse(h->file, safetensors_offset_of(h, key),
                                  "expected a model with %s %s, got %.40s", o->name, value, saved);
    if (!subject->optimizer) return STATUS_OK;
    const char *name = optimizer_names[subject->optimizer->kind];
    if (strcmp(info->optimizer, name) == 0) return STATUS_OK;
    return safetensors_refuse(h->file, safetensors_offset_of(h, KEY("optimizer")),
                              "expected the state of optimizer '%s', got '%.60s'", name, info->optimizer);
}

static void differences_of(const safetensors_header *h, const char *group, const option_binding *binding,
                           text_buffer *out)
{
    char key[KEY_MAX], value[VALUE_MAX];
    const char *saved;
    const option *o;
    for (size_t i = 0; (o = next_difference(h, group, binding, true, &i, key, &saved, value)); i++)
        text_append(out, "%s%s was %.40s, is %s", out->length ? "; " : "", o->name, saved, value);
}

void metadata_differences(const safetensors_header *h, const checkpoint_subject *subject, text_buffer *out)
{
    if (subject->model_options) differences_of(h, "model", subject->model_options, out);
    if (!subject->optimizer) return;
    option_binding binding = optimizer_binding(subject->optimizer);
    differences_of(h, "optimizer", &binding, out);
}
