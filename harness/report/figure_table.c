#include "harness/report/figures.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

json_t *figure_table(const figure_column *columns, size_t count)
{
    json_t *list = json_array();
    for (size_t c = 0; c < count; c++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:i, s:s}", "key", columns[c].key, "name",
                                              columns[c].name, "format", columns[c].format, "color",
                                              columns[c].color ? columns[c].color : ""));
    return json_pack("{s:s, s:o, s:[]}", "summary", "", "columns", list, "rows");
}

json_t *figure_put(json_t *row, double value)
{
    json_array_append_new(row, report_json_number(value));
    return row;
}

json_t *figure_add(json_t *table, const char *kinds, ...)
{
    json_t *row = json_array();
    va_list cells;
    va_start(cells, kinds);
    for (; *kinds; kinds++)
        if (*kinds == 's')
            json_array_append_new(row, json_string(va_arg(cells, const char *)));
        else
            figure_put(row, va_arg(cells, double));
    va_end(cells);
    json_array_append_new(json_object_get(table, "rows"), row);
    return row;
}

json_t *figure_summary(json_t *table, text_buffer *sentence)
{
    json_object_set_new(table, "summary", json_string(sentence->data ? sentence->data : ""));
    text_free(sentence);
    return table;
}

size_t figure_rows(const json_t *table)
{
    return json_array_size(json_object_get(table, "rows"));
}

size_t figure_columns(const json_t *table)
{
    size_t count = json_array_size(json_object_get(table, "columns"));
    return count - (strcmp(figure_column_text(table, count - 1, "key"), "color") == 0);
}

static const json_t *cell(const json_t *table, size_t row, size_t column)
{
    return json_array_get(json_array_get(json_object_get(table, "rows"), row), column);
}

double figure_number(const json_t *table, size_t row, size_t column)
{
    const json_t *value = cell(table, row, column);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

const char *figure_label(const json_t *table, size_t row, size_t column)
{
    const char *text = json_string_value(cell(table, row, column));
    return text ? text : "";
}

const char *figure_column_text(const json_t *table, size_t column, const char *what)
{
    return report_text_at(json_array_get(json_object_get(table, "columns"), column), what);
}

int figure_format(const json_t *table, size_t column)
{
    return (int)report_number_at(json_array_get(json_object_get(table, "columns"), column), "format");
}

double figure_largest(const json_t *table, size_t column)
{
    double most = NAN;
    for (size_t r = 0; r < figure_rows(table); r++) most = fmax(most, figure_number(table, r, column));
    return most;
}

size_t figure_end(const json_t *table, size_t first, size_t columns)
{
    for (size_t end = first + 1; end < figure_rows(table); end++)
        for (size_t c = 0; c < columns; c++)
            if (!json_equal(cell(table, end, c), cell(table, first, c))) return end;
    return figure_rows(table);
}

double figure_legend(const json_t *table, svg *s)
{
    enum { MOST_KEYS = 16 };
    svg_key keys[MOST_KEYS];
    size_t used = 0;
    for (size_t c = 0; c < figure_columns(table) && used < MOST_KEYS; c++) {
        const char *color = figure_column_text(table, c, "color");
        if (color[0] && figure_largest(table, c) > 0)
            keys[used++] = (svg_key){color, figure_column_text(table, c, "name")};
    }
    return svg_legend(s, keys, used);
}

short_text figure_job_name(const json_t *job)
{
    double servers = strtod(report_text_at(job, "settings.servers"), NULL);
    short_text name = report_job_name(job);
    size_t length = strlen(name.text);
    if (servers > 1 && length > 0 && name.text[length - 1] == ')' && length + 16 < sizeof name.text)
        snprintf(name.text + length - 1, sizeof name.text - length + 1, ", %.0f servers)", servers);
    return name;
}

const char *figure_job_color(const json_t *jobs, size_t i)
{
    static const char *const colors[][2] = {{"ps", "ps2"}, {"ring", "ring2"}, {"none", "none2"}};
    const char *engine = report_text_at(json_array_get(jobs, i), "engine");
    int before = 0;
    for (size_t j = 0; j < i; j++)
        before += strcmp(report_text_at(json_array_get(jobs, j), "engine"), engine) == 0;
    for (int e = 0; e < 3; e++)
        if (strcmp(engine, colors[e][0]) == 0) return colors[e][before % 2];
    return "none";
}
