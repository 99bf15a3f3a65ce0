#include "harness/report/figures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *figure_table(void)
{
    return json_pack("{s:s, s:[], s:[]}", "summary", "", "columns", "rows");
}

void figure_column(json_t *table, const char *key, const char *name, int format, const char *color)
{
    json_array_append_new(json_object_get(table, "columns"),
                          json_pack("{s:s, s:s, s:i, s:s}", "key", key, "name", name, "format", format,
                                    "color", color ? color : ""));
}

json_t *figure_row(json_t *table)
{
    json_t *row = json_array();
    json_array_append_new(json_object_get(table, "rows"), row);
    return row;
}

void figure_put(json_t *row, double value)
{
    json_array_append_new(row, isfinite(value) ? json_real(value) : json_null());
}

void figure_put_text(json_t *row, const char *text)
{
    json_array_append_new(row, json_string(text));
}

void figure_summary(json_t *table, text_buffer *sentence)
{
    json_object_set_new(table, "summary", json_string(sentence->data ? sentence->data : ""));
    text_free(sentence);
}

size_t figure_rows(const json_t *table)
{
    return json_array_size(json_object_get(table, "rows"));
}

size_t figure_columns(const json_t *table)
{
    return json_array_size(json_object_get(table, "columns"));
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

char *figure_job_name(const json_t *job, char *buffer, size_t size)
{
    double servers = strtod(report_text_at(job, "settings.servers"), NULL);
    report_job_name(job, buffer, size);
    size_t length = strlen(buffer);
    if (servers > 1 && length > 0 && buffer[length - 1] == ')' && length + 16 < size)
        snprintf(buffer + length - 1, size - length + 1, ", %.0f servers)", servers);
    return buffer;
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
