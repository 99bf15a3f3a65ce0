/* How a sweep was obtained: its command, and of its runs the program, the host and the options that all points
 * share. */
#include "harness/sweep/sweep.h"

#include <stdlib.h>
#include <string.h>

/* The values of an axis as --vary takes them. */
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
    json_t *words = json_array();
    char rounds[16];
    snprintf(rounds, sizeof rounds, "%d", s->rounds);
    json_array_append_new(words, json_string("sweep"));
    for (int a = 0; a < s->axis_count; a++) {
        json_array_append_new(words, json_string("--vary"));
        json_array_append_new(words, axis_word(&s->axes[a]));
    }
    for (int i = 0; i < s->word_count; i++) json_array_append_new(words, json_string(s->words[i]));
    json_array_append_new(words, json_string("--repeat"));
    json_array_append_new(words, json_string(rounds));
    if (s->folder) {
        json_array_append_new(words, json_string("-o"));
        json_array_append_new(words, json_string(s->folder));
    }
    json_object_set_new(table, "command", words);
    static const char *const later[] = {"started_at", "program", "host", "libraries", "configuration"};
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        json_object_set_new(table, later[i], json_null()); /* until a run is found */
    json_object_set_new(table, "one_origin", json_true());
}

/* The options of `configuration` that have the value of `other`. */
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
