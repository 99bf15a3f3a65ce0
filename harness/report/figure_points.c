/* The points of a sweep as a table: the values of two options, and the throughput of each series. */
#include "harness/report/figure_points.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the number that an option's text stands for: a number, size, time or rate. For "10Gbit/s,50us"
 * returns the rate. Returns NaN if the text is a word. */
static double number_of(const char *text)
{
    char head[64], *end;
    int64_t value;
    snprintf(head, sizeof head, "%.*s", (int)strcspn(text, ","), text);
    double plain = strtod(head, &end);
    if (end != head && *end == '\0') return plain;
    if (text_parse_rate("", head, &value) == STATUS_OK || text_parse_bytes("", head, &value) == STATUS_OK ||
        text_parse_duration_ns("", head, &value) == STATUS_OK)
        plain = (double)value;
    else
        plain = NAN;
    error_clear();
    return plain;
}

const char *points_value(const json_t *point, const char *axis)
{
    const char *text = json_string_value(json_object_get(json_object_get(point, "values"), axis));
    return text ? text : "";
}

static int by_number(const void *a, const void *b)
{
    double x = number_of(*(const char *const *)a), y = number_of(*(const char *const *)b);
    return (x > y) - (x < y);
}

int axis_place(const axis_values *v, const char *text)
{
    for (int i = 0; i < v->count; i++)
        if (strcmp(v->texts[i], text) == 0) return i;
    return -1;
}

static void add_value(axis_values *v, const char *text)
{
    if (axis_place(v, text) >= 0 || v->count == MOST_VALUES) return;
    v->texts[v->count++] = text;
    v->numeric = v->numeric && !isnan(number_of(text));
}

static void sort_values(axis_values *v)
{
    if (v->numeric) qsort(v->texts, (size_t)v->count, sizeof *v->texts, by_number);
}

axis_values points_axis(const json_t *sweep, const char *name)
{
    axis_values v = {.name = name, .numeric = true};
    size_t i;
    json_t *point;
    json_array_foreach(json_object_get(sweep, "points"), i, point)
    {
        if (points_value(point, name)[0]) add_value(&v, points_value(point, name));
    }
    sort_values(&v);
    return v;
}

axis_values axis_of_column(const json_t *table, size_t column)
{
    axis_values v = {.name = figure_column_text(table, column, "name"), .numeric = true};
    for (size_t r = 0; r < figure_rows(table); r++) add_value(&v, figure_label(table, r, column));
    sort_values(&v);
    return v;
}

const char *points_numeric_axis(const json_t *sweep, const char *first, const char * not )
{
    const char *found = NULL;
    int most = 1;
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(sweep, "vary"), i, name)
    {
        const char *text = json_string_value(name);
        axis_values v = points_axis(sweep, text);
        int weight = strcmp(text, first) == 0 ? MOST_VALUES + 1 : v.count;
        if (!v.numeric || v.count < 2 || weight <= most || (not &&strcmp(text, not ) == 0)) continue;
        found = text;
        most = weight;
    }
    return found;
}

/* Names a point by its values on all axes except `x` and `y`: "ring", "ps servers=4". */
static void series_of(const json_t *sweep, const json_t *point, const char *x, const char *y,
                      char label[LABEL])
{
    int used = 0;
    label[0] = '\0';
    /* Writes first the values of `mode` and `policy`, then the other values with their names. */
    for (int names = 1; names >= 0; names--) {
        size_t i;
        json_t *axis;
        json_array_foreach(json_object_get(sweep, "vary"), i, axis)
        {
            const char *name = json_string_value(axis), *value = points_value(point, name);
            bool scheme = strcmp(name, "mode") == 0 || strcmp(name, "policy") == 0;
            bool fixed = strcmp(name, x) == 0 || (y && strcmp(name, y) == 0);
            if (scheme != names || fixed || !value[0] || used >= LABEL - 80) continue;
            used += snprintf(label + used, (size_t)(LABEL - used), "%s%.32s%s%.32s", used ? " " : "",
                             scheme ? "" : name, scheme ? "" : "=", value);
        }
    }
    if (!used) snprintf(label, LABEL, "samples/s");
}

/* Labels of the series, in the order of the points. */
typedef struct series {
    char label[MOST_SERIES][LABEL];
    int count;
} series;

/* Returns the number of the series `label`, and adds the series if it is new. Returns MOST_SERIES if there
 * are too many. */
static int series_number(series *s, const char *label)
{
    int number = 0;
    while (number < s->count && strcmp(s->label[number], label) != 0) number++;
    if (number == s->count && number < MOST_SERIES) snprintf(s->label[s->count++], LABEL, "%s", label);
    return number;
}

/* Returns the color of a series. The first three series whose labels begin with the name of an engine get the
 * colors of this engine. Any other series gets the color with its number. */
static const char *series_color(const series *s, int number)
{
    static const char *const ps[] = {"ps", "ps2", "replicas"}, *const ring[] = {"ring", "ring2", "outputs"},
                             *const others[] = {"backward", "exposed",  "optimizer", "none",
                                                "outputs",  "replicas", "data",      "forward"};
    int before = 0;
    for (int i = 0; i < number; i++) before += strncmp(s->label[i], s->label[number], 2) == 0;
    if (strncmp(s->label[number], "ps", 2) == 0 && before < 3) return ps[before];
    if (strncmp(s->label[number], "ring", 4) == 0 && before < 3) return ring[before];
    return others[number];
}

json_t *points_table(const json_t *sweep, const char *x, const char *y, int *count)
{
    const figure_column columns[] = {
        {"series", "series", .format = FIGURE_TEXT}, {"x", x ? x : "", .format = FIGURE_TEXT},
        {"y", y ? y : "", .format = FIGURE_TEXT},    {"samples_per_s", "samples/s", .format = CELL_RATE},
        {"low", "95 % from", .format = CELL_RATE},   {"high", "to", .format = CELL_RATE},
        {"color", "", .format = FIGURE_TEXT}};
    json_t *table = figure_table(columns, x ? COUNT_OF(columns) : 0), *point;
    text_buffer summary = {0};
    char label[LABEL];
    size_t i;
    series all = {.count = 0};
    *count = 0;
    if (!x) return table;
    json_array_foreach(json_object_get(sweep, "points"), i, point)
    {
        series_of(sweep, point, x, y, label);
        int number = series_number(&all, label);
        if (number == MOST_SERIES || !points_value(point, x)[0]) continue;
        figure_add(table, "sssfffs", label, points_value(point, x), y ? points_value(point, y) : "",
                   report_number_at(point, "samples_per_s.median"),
                   report_number_at(point, "samples_per_s.low"),
                   report_number_at(point, "samples_per_s.high"), series_color(&all, number));
    }
    text_append(&summary, "Median samples/s of %zu points over %s%s%s.", figure_rows(table), x,
                y ? " and " : "", y ? y : "");
    *count = all.count;
    return figure_summary(table, &summary);
}

json_t *points_grid(const json_t *sweep)
{
    int count;
    const char *x = points_numeric_axis(sweep, "link", NULL),
               *y = x ? points_numeric_axis(sweep, "gpus", x) : NULL;
    return points_table(sweep, y ? x : NULL, y, &count);
}
