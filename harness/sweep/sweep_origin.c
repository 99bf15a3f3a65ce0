/* The origin of a sweep's results: command and options, and the runs' program, host and common options. */
#include "harness/options/run_options.h"
#include "harness/sweep/sweep.h"

#include <stdlib.h>
#include <string.h>

/* ---- options --------------------------------------------------------------------------------------- */

const char **sweep_words_of(const json_t *list)
{
    const char **words = calloc(json_array_size(list) + 1, sizeof *words);
    for (size_t i = 0; words && i < json_array_size(list); i++)
        words[i] = json_is_string(json_array_get(list, i)) ? json_string_value(json_array_get(list, i)) : "";
    return words;
}

json_t *sweep_shared_words(const sweep *s)
{
    json_t *list = json_array();
    for (int i = 0; i < s->word_count; i++) json_array_append_new(list, json_string(s->words[i]));
    return list;
}

/* Parses a list of words, and returns the options of `harness run` by their long names, without output
 * options. Returns NULL if the words are invalid. */
static json_t *options_in(const json_t *list)
{
    run_config *config = calloc(1, sizeof *config);
    const char **words = sweep_words_of(list), **others = sweep_words_of(list);
    int count = 0;
    status rc = config && words && others ? run_config_init(config) : STATUS_SYSTEM;
    if (rc == STATUS_OK)
        rc = options_parse(config->bindings, BINDING_COUNT, (int)json_array_size(list), (char *const *)words,
                           others, &count);
    json_t *options = rc == STATUS_OK ? run_config_given(config, false) : NULL;
    if (rc != STATUS_OK) error_clear();
    free(words);
    free(others);
    free(config);
    return options;
}

bool sweep_is_same(const json_t *a, const json_t *b)
{
    const json_t *words_a = json_object_get(a, "options"), *words_b = json_object_get(b, "options");
    json_t *options_a = options_in(words_a), *options_b = options_in(words_b);
    bool same = json_equal(words_a, words_b) || json_equal(options_a, options_b);
    json_decref(options_a);
    json_decref(options_b);
    return same && json_equal(json_object_get(a, "vary"), json_object_get(b, "vary"));
}

/* ---- the table's description ------------------------------------------------------------------------- */

/* Formats an axis for --vary. */
static json_t *axis_word(const sweep_axis *axis)
{
    text_buffer text = {0};
    const char *separator = ",";
    for (int v = 0; v < axis->count; v++)
        if (strchr(axis->values[v], ',')) separator = ";";
    text_append(&text, "%s=", axis->name);
    for (int v = 0; v < axis->count; v++) text_append(&text, "%s%s", v ? separator : "", axis->values[v]);
    json_t *word = json_string(text.data ? text.data : "");
    text_free(&text);
    return word;
}

void sweep_add_command(const sweep *s, json_t *table)
{
    json_t *words = json_pack("[s]", "sweep"), *axes = json_array(), *rounds = json_sprintf("%d", s->rounds),
           *shared = sweep_shared_words(s), *of_runs = options_in(shared);
    for (int a = 0; a < s->axis_count; a++) {
        json_t *axis = axis_word(&s->axes[a]);
        json_array_append(axes, axis);
        json_array_append_new(words, json_string("--vary"));
        json_array_append_new(words, axis);
    }
    json_array_extend(words, shared);
    json_array_append_new(words, json_string("--repeat"));
    json_array_append(words, rounds);
    json_array_append_new(words, json_string("-o"));
    json_array_append_new(words, json_string(s->folder));
    json_t *options = json_pack("{s:o, s:o}", "vary", axes, "repeat", rounds);
    json_object_update(options, of_runs);
    json_decref(of_runs);
    json_decref(shared);
    /* sweep_add_origin() sets the values that are null here. */
    json_object_update_new(table, json_pack("{s:o, s:o, s:n, s:n, s:n, s:n, s:n, s:b}", "command", words,
                                            "options", options, "started_at", "program", "host", "libraries",
                                            "configuration", "one_origin", true));
}

/* Removes the options of `configuration` whose value differs in `other`. */
static void keep_equal(json_t *configuration, const json_t *other)
{
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(configuration, next, name, value)
    {
        if (!json_equal(value, json_object_get(other, name))) json_object_del(configuration, name);
    }
}

void sweep_add_origin(const json_t *result, json_t *table)
{
    static const char *const same[] = {"program", "host", "libraries"};
    const char *started = json_string_value(json_object_get(result, "started_at")),
               *before = json_string_value(json_object_get(table, "started_at"));
    if (!result) return;
    if (started && (!before || strcmp(started, before) < 0))
        json_object_set(table, "started_at", json_object_get(result, "started_at"));
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        json_t *value = json_object_get(result, same[i]);
        if (!before)
            json_object_set(table, same[i], value);
        else if (!json_equal(value, json_object_get(table, same[i])))
            json_object_set_new(table, "one_origin", json_false());
    }
    if (!before)
        json_object_set_new(table, "configuration", json_deep_copy(json_object_get(result, "configuration")));
    else
        keep_equal(json_object_get(table, "configuration"), json_object_get(result, "configuration"));
}
