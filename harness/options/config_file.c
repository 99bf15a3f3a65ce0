/* Reads --config FILE, and writes the options of a run into its JSON, from which the run can be repeated. */
#include "common/base/input.h"
#include "harness/options/config_toml.h"
#include "harness/options/run_options.h"
#include "harness/result/result_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Options that only affect the output or how processes connect. run_config_given() leaves these options
 * out. */
static const char of_output[] = "config json trace trace-steps save save-every report quiet verbose "
                                "print-steps print-shapes log-level plan "
                                "rendezvous connect-timeout nnodes node-rank master-addr master-port";

json_t *run_config_given(const run_config *c, bool with_chosen)
{
    json_t *object = json_object();
    for (int b = 0; b < BINDING_COUNT; b++)
        for (size_t i = 0; i < c->bindings[b].table->count; i++) {
            const char *name = c->bindings[b].table->options[i].name;
            char value[4096 + 64]; /* room for a path */
            bool chosen = with_chosen && (strcmp(name, "device") == 0 || strcmp(name, "gpus") == 0 ||
                                          (strcmp(name, "steps") == 0 && c->run.epochs == 0));
            if ((!chosen && !options_given(&c->bindings[b], name)) || run_option_is_among(name, of_output))
                continue;
            options_format(&c->bindings[b], i, value, sizeof value);
            json_object_set_new(object, name, json_string(value));
        }
    return object;
}

/* Returns the value as text for the command line, or NULL if no option can have the value. */
static json_t *as_text(const json_t *value)
{
    char text[40];
    if (json_is_string(value)) return json_string(json_string_value(value));
    if (json_is_boolean(value)) return json_string(json_is_true(value) ? "yes" : "no");
    if (!json_is_number(value)) return NULL;
    if (json_is_integer(value))
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
    else
        snprintf(text, sizeof text, "%.17g", json_real_value(value));
    return json_string(text);
}

/* ---- options and their places in the file ------------------------------------------------------ */

static status read_toml(const char *path, const text_buffer *text, json_t **options)
{
    char *json = NULL;
    json_error_t error;
    TRY(config_toml_to_json(path, text->data, text->length, &json));
    *options = json_loads(json, 0, &error);
    free(json);
    return *options ? STATUS_OK : fail(STATUS_DATA, "--config: %s: %s", path, error.text);
}

/* Returns the opening quote of the next key `name` in valid JSON, or NULL if there is none. */
static const char *find_key(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (; (text = strchr(text, '"')); text++)
        if (strncmp(text + 1, name, length) == 0 && text[length + 1] == '"' &&
            text[length + 2 + strspn(text + length + 2, " \t\r\n")] == ':')
            return text;
    return NULL;
}

/* Adds to each value the line and the column of its key. jansson does not report positions, but keeps the
 * keys in order. The search for the first key begins at `text`, which points into the file. */
static json_t *with_places(const char *file, const char *text, const json_t *values)
{
    json_t *options = json_object(), *value;
    const char *name, *line_begin = file;
    int line = 1;
    json_object_foreach((json_t *)values, name, value)
    {
        const char *key = find_key(text, name), *end;
        if (key) text = key;
        for (; (end = strchr(line_begin, '\n')) && end < text; line++) line_begin = end + 1;
        json_object_set_new(options, name,
                            json_pack("{s:O, s:i, s:i}", "value", value, "line", line, "column",
                                      (int)(text - line_begin) + 1));
    }
    return options;
}

static status read_json(const char *path, const text_buffer *text, json_t **options)
{
    json_t *read;
    status rc = input_json_decode(path, text, &read);
    bool of_result = json_object_get(read, "jobs") || json_object_get(read, "points");
    const json_t *values = of_result ? json_object_get(read, "options") : read;
    bool has_options = json_is_object(values);
    if (rc == STATUS_OK && of_result && has_options) rc = result_check(path, read);
    const char *begin = of_result && has_options ? find_key(text->data, "options") : NULL;
    if (rc == STATUS_OK && has_options)
        *options = with_places(text->data, begin ? begin : text->data, values);
    json_decref(read);
    if (rc != STATUS_OK) error_context("--config");
    if (rc != STATUS_OK || *options) return rc;
    return fail(STATUS_DATA, "--config: %s: expected %s", path,
                of_result ? "the options of a result; an older program wrote it" : "an object of options");
}

status config_file_failed(const char *path, const json_t *option, status rc)
{
    if (rc != STATUS_OK)
        error_context("%s:%d:%d", path, (int)json_integer_value(json_object_get(option, "line")),
                      (int)json_integer_value(json_object_get(option, "column")));
    return rc;
}

/* Adds the value as "text", or as "texts" if the value is a list. */
static status add_texts(const char *path, const char *name, json_t *option)
{
    const json_t *value = json_object_get(option, "value");
    json_t *texts = json_array(), *element, *text = as_text(value);
    size_t i;
    bool good = text || json_array_size(value) > 0;
    json_array_foreach(value, i, element) good = good && json_array_append_new(texts, as_text(element)) == 0;
    if (text)
        json_object_set_new(option, "text", text);
    else
        json_object_set(option, "texts", texts);
    json_decref(texts);
    if (good) return STATUS_OK;
    return config_file_failed(path, option,
                              fail(STATUS_DATA, "%s: expected a text, a number, true or false", name));
}

status config_file_read(const char *path, const json_t **out)
{
    static json_t *files; /* options by path */
    json_t *options = NULL, *option;
    text_buffer text = {0};
    const char *name;
    *out = json_object_get(files, path);
    if (*out) return STATUS_OK;
    status rc = input_read(path, RESULT_MOST_BYTES, &text);
    if (rc == STATUS_OK && memchr(text.data, '\0', text.length))
        rc = fail(STATUS_DATA, "%s: expected text, got a zero byte", path);
    if (rc != STATUS_OK) error_context("--config");
    if (rc == STATUS_OK) rc = (text_ends_with(path, ".toml") ? read_toml : read_json)(path, &text, &options);
    text_free(&text);
    json_object_foreach(options, name, option) if (rc == STATUS_OK) rc = add_texts(path, name, option);
    if (rc == STATUS_OK && !files) files = json_object();
    if (rc == STATUS_OK) json_object_set(files, path, options);
    json_decref(options); /* `files` keeps a reference */
    if (rc == STATUS_OK) *out = options;
    return rc;
}

status config_file_set(option_binding *bindings, size_t count, const char *name, const json_t *option)
{
    const char *text = json_string_value(json_object_get(option, "text")),
               *first = json_string_value(json_array_get(json_object_get(option, "texts"), 0));
    if (strcmp(name, "config") == 0) return fail(STATUS_USAGE, "--config: expected no option of that name");
    TRY(options_set(bindings, count, name, text ? text : first));
    return text ? STATUS_OK : fail(STATUS_DATA, "%s: expected a text, a number, true or false", name);
}

status run_config_read(run_config *c, const char *path)
{
    const json_t *options;
    json_t *option;
    const char *name;
    TRY(config_file_read(path, &options));
    json_object_foreach((json_t *)options, name, option)
        TRY(config_file_failed(path, option, config_file_set(c->bindings, BINDING_COUNT, name, option)));
    return STATUS_OK;
}
