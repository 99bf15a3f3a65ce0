#include "harness/compare/why.h"

#include "harness/report/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const lists[] = {"forward", "loss", "backward"};

static double number(const json_t *of, const char *key)
{
    return json_number_value(json_object_get(of, key));
}

static void set(json_t *of, const char *key, double value)
{
    json_object_set_new(of, key, json_integer(llround(value)));
}

/* Returns the sum of a value over a list, or the maximum of activations. */
static double total(const json_t *list, const char *key)
{
    bool most = strcmp(key, "live_bytes") == 0 || strcmp(key, "peak_bytes") == 0;
    double result = 0;
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item) result =
        most ? fmax(result, number(item, key)) : result + number(item, key);
    return result;
}

/* Sets the values of a list in proportion, so that their total is about `wanted`. */
static void scale(json_t *list, const char *key, double wanted)
{
    double now = total(list, key);
    size_t i, count = json_array_size(list);
    json_t *item;
    json_array_foreach(list, i, item)
        set(item, key, now > 0 ? number(item, key) * wanted / now : wanted / (double)count);
}

/* Restores the sums of both passes and of the step, and that a segment's peak is at least the memory before
 * and after it. */
static void add_up(json_t *workload)
{
    json_t *parts = json_object_get(workload, "parts_ns"), *segment, *value;
    double passes[2] = {0}, live = 0, step = 0;
    const char *name;
    size_t i;
    for (int l = 0; l < 3; l++) json_array_foreach(json_object_get(workload, lists[l]), i, segment)
        {
            double after = number(segment, "live_bytes");
            passes[l / 2] += number(segment, "kernel_ns") + number(segment, "idle_ns");
            set(segment, "peak_bytes", fmax(number(segment, "peak_bytes"), fmax(live, after)));
            live = after;
        }
    set(parts, "forward", passes[0]);
    set(parts, "backward", passes[1]);
    json_object_foreach(parts, name, value) step += json_number_value(value);
    set(workload, "step_ns", step);
}

/* ---- paths -------------------------------------------------------------------------------------------- */

/* Returns the value at a path as text. */
static short_text figure(const json_t *workload, const char *list, const char *path, const char *key)
{
    const json_t *value = report_at(workload, path);
    bool time = text_ends_with(key, "_ns") || strncmp(path, "parts_ns", 8) == 0;
    double amount = list                   ? total(json_object_get(workload, list), key)
                    : json_is_array(value) ? (double)json_array_size(value)
                                           : json_number_value(value);
    short_text text = report_value(time                           ? CELL_TIME
                                   : text_ends_with(key, "bytes") ? CELL_BYTES
                                                                  : CELL_COUNT,
                                   time ? 1e-9 * amount : amount);
    if (json_is_string(value)) snprintf(text.text, sizeof text.text, "%s", json_string_value(value));
    return text;
}

static void switch_path(const char *path, const json_t *b, json_t *mixture, text_buffer *words)
{
    char list[32], label[64];
    bool silent = *path == '-';
    path += silent;
    const char *star = strstr(path, ".*."), *dot = strrchr(path, '.'), *key = dot ? dot + 1 : path;
    snprintf(list, sizeof list, "%.*s", (int)((star ? star : dot ? dot : path) - path), path);
    const json_t *from = *list ? json_object_get(b, list) : b;
    json_t *to = *list ? json_object_get(mixture, list) : mixture, *item;
    short_text old = figure(mixture, star ? list : NULL, path, key),
               new = figure(b, star ? list : NULL, path, key);
    snprintf(label, sizeof label, "%s%s%.*s", star ? list : "", star ? " " : "", (int)strcspn(key, "_"), key);
    if (!silent && strcmp(old.text, new.text) != 0)
        text_append(words, "%s%s %s -> %s", words->length > 0 ? ", " : "", label, old.text, new.text);
    size_t i;
    if (!star)
        json_object_set_new(to, key, json_deep_copy(json_object_get(from, key)));
    else if (json_array_size(to) != json_array_size(from))
        scale(to, key, total(from, key));
    else
        json_array_foreach(to, i, item)
            json_object_set(item, key, json_object_get(json_array_get(from, i), key));
}

void why_switch(const char *paths, const json_t *b, json_t *mixture, text_buffer *words)
{
    char copy[512], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", paths);
    for (char *path = strtok_r(copy, " ", &rest); path; path = strtok_r(NULL, " ", &rest))
        switch_path(path, b, mixture, words);
    add_up(mixture);
}

/* ---- recomputation ------------------------------------------------------------------------------------ */

static double at_least_1(const json_t *workload, const char *list, const char *key)
{
    return fmax(1, total(json_object_get(workload, list), key));
}

bool why_recomputes(const json_t *a, const json_t *b)
{
    const double least = 0.05; /* least change that counts */
    double kept = at_least_1(b, "forward", "live_bytes") / at_least_1(a, "forward", "live_bytes"),
           forward = at_least_1(b, "forward", "kernel_ns") / at_least_1(a, "forward", "kernel_ns"),
           backward = at_least_1(b, "backward", "kernel_ns") / at_least_1(a, "backward", "kernel_ns"),
           computed = backward / forward;
    return fmin(kept, computed) < 1 - least && fmax(kept, computed) > 1 + least;
}
