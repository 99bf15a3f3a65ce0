/* --config FILE, and the configuration in a run's JSON, from which it runs again. */
#include "harness/run/config_toml.h"
#include "harness/run/run_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a run writes and shows, and how its ranks find each other: not of what is run. */
static const char *const of_output[] = {"config",    "json", "trace",   "trace-steps", "save",       "save-every",
                                        "report",    "quiet", "verbose", "log-level",  "plan",       "rendezvous",
                                        "connect-timeout"};

static bool is_of_output(const char *name)
{
    for (size_t i = 0; i < sizeof of_output / sizeof of_output[0]; i++)
        if (strcmp(of_output[i], name) == 0) return true;
    return false;
}

json_t *run_config_given(const run_config *c)
{
    json_t *object = json_object();
    for (int b = 0; object && b < BINDING_COUNT; b++)
        for (size_t i = 0; i < c->bindings[b].table->count; i++) {
            const char *name = c->bindings[b].table->options[i].name;
            char value[4096 + 64]; /* a path fits */
            bool chosen = strcmp(name, "device") == 0 || strcmp(name, "gpus") == 0 ||
                          (strcmp(name, "steps") == 0 && c->run.epochs == 0);
            if ((!chosen && !options_given(&c->bindings[b], name)) || is_of_output(name)) continue;
            options_format(&c->bindings[b], i, value, sizeof value);
            json_object_set_new(object, name, json_string(value));
        }
    return object;
}

/* The value as on the command line; NULL: no value of an option. */
static json_t *as_text(const json_t *value)
{
    char text[40];
    if (json_is_string(value)) return json_string(json_string_value(value));
    if (json_is_boolean(value)) return json_string(json_is_true(value) ? "yes" : "no");
    if (!json_is_number(value)) return NULL;
    if (json_is_integer(value)) snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
    else snprintf(text, sizeof text, "%.17g", json_real_value(value));
    return json_string(text);
}

static status read_all(const char *path, FILE *file, text_buffer *out)
{
    char piece[4096];
    size_t length;
    while ((length = fread(piece, 1, sizeof piece, file)) > 0) {
        if (memchr(piece, '\0', length)) return fail(STATUS_DATA, "--config: %s: expected text, got a zero byte", path);
        text_append(out, "%.*s", (int)length, piece);
    }
    return out->out_of_memory ? fail(STATUS_SYSTEM, "no memory for %s", path) : STATUS_OK;
}

static status read_toml(const char *path, FILE *file, json_t **out)
{
    text_buffer text = {0};
    char *json = NULL;
    json_error_t error;
    status rc = read_all(path, file, &text);
    if (rc == STATUS_OK) rc = config_toml_to_json(path, text.data ? text.data : "", text.length, &json);
    if (rc == STATUS_OK && !(*out = json_loads(json, 0, &error))) rc = fail(STATUS_DATA, "--config: %s: %s", path, error.text);
    free(json);
    text_free(&text);
    return rc;
}

static status read_json(const char *path, FILE *file, json_t **out)
{
    json_error_t error;
    if ((*out = json_loadf(file, JSON_REJECT_DUPLICATES, &error))) return STATUS_OK;
    return fail(STATUS_DATA, "--config: %s:%d:%d: %s", path, error.line, error.column, error.text);
}

static bool is_toml(const char *path)
{
    size_t length = strlen(path);
    return length > 5 && strcmp(path + length - 5, ".toml") == 0;
}

/* The options of the file as text: read once, kept for the process, since options borrow their texts. */
static status load(const char *path, json_t **out)
{
    static json_t *files; /* path to options */
    json_t *read = NULL;
    *out = json_object_get(files, path);
    if (*out) return STATUS_OK;
    FILE *file = fopen(path, "re");
    if (!file) return fail_errno(STATUS_DATA, "--config: %s", path);
    status rc = is_toml(path) ? read_toml(path, file, &read) : read_json(path, file, &read);
    fclose(file);
    TRY(rc);
    bool of_run = json_object_get(read, "jobs") != NULL;
    const json_t *options = of_run ? json_object_get(read, "options") : read;
    json_t *texts = json_object(), *value;
    const char *name;
    if (!json_is_object(options))
        rc = fail(STATUS_DATA, "--config: %s: expected %s", path,
                  of_run ? "a run's options; an older program wrote it" : "an object of options");
    json_object_foreach((json_t *)options, name, value)
    {
        json_t *text = as_text(value);
        if (!text && rc == STATUS_OK)
            rc = fail(STATUS_DATA, "--config: %s: %s: expected a text, a number, true or false", path, name);
        if (text) json_object_set_new(texts, name, text);
    }
    json_decref(read);
    if (!files) files = json_object();
    if (rc == STATUS_OK && json_object_set(files, path, texts) != 0) rc = fail(STATUS_SYSTEM, "no memory for %s", path);
    json_decref(texts); /* `files` has it */
    *out = rc == STATUS_OK ? texts : NULL;
    return rc;
}

status run_config_read(run_config *c, const char *path)
{
    json_t *options, *value;
    const char *name;
    TRY(load(path, &options));
    json_object_foreach(options, name, value)
    {
        status rc = strcmp(name, "config") == 0 ? fail(STATUS_USAGE, "--config: expected no option of that name")
                                                : options_set(c->bindings, BINDING_COUNT, name, json_string_value(value));
        if (rc == STATUS_OK) continue;
        error_context("%s", path);
        return rc;
    }
    return STATUS_OK;
}
