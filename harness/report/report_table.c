#include "harness/report/report_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const json_t *report_at(const json_t *object, const char *path)
{
    char key[64];
    while (object && *path) {
        size_t length = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, path);
        object =
            json_is_array(object) ? json_array_get(object, (size_t)atoi(key)) : json_object_get(object, key);
        path += length + (path[length] == '.');
    }
    return object;
}

double report_number_at(const json_t *object, const char *path)
{
    const json_t *value = report_at(object, path);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

double report_phase(const json_t *job, const char *key)
{
    char path[64];
    snprintf(path, sizeof path, "phases.%s.mean_s", key);
    return report_number_at(job, path);
}

const char *report_text_at(const json_t *object, const char *path)
{
    const char *text = json_string_value(report_at(object, path));
    return text ? text : "";
}

json_t *report_json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *report_find(const json_t *array, const char *path, const char *text)
{
    for (size_t i = 0; i < json_array_size(array); i++)
        if (strcmp(report_text_at(json_array_get(array, i), path), text) == 0)
            return json_array_get(array, i);
    return NULL;
}

bool report_communicates(const json_t *job)
{
    return strcmp(report_text_at(job, "engine"), "none") != 0;
}

const json_t *report_job(const json_t *result, const char *name)
{
    return report_find(json_object_get(result, "jobs"), "name", name);
}

double report_smallest(const json_t *array, const char *path)
{
    double least = NAN;
    for (size_t i = 0; i < json_array_size(array); i++)
        least = fmin(least, report_number_at(json_array_get(array, i), path)); /* fmin() ignores NaN */
    return least;
}

double report_largest(const json_t *array, const char *path)
{
    double most = NAN;
    for (size_t i = 0; i < json_array_size(array); i++)
        most = fmax(most, report_number_at(json_array_get(array, i), path)); /* fmax() ignores NaN */
    return most;
}

double report_sum(const json_t *array, const char *path)
{
    double sum = 0;
    for (size_t i = 0; i < json_array_size(array); i++)
        sum += report_number_at(json_array_get(array, i), path);
    return sum;
}

size_t report_count_true(const json_t *array, const char *path)
{
    size_t count = 0;
    for (size_t i = 0; i < json_array_size(array); i++)
        count += json_is_true(report_at(json_array_get(array, i), path));
    return count;
}

size_t report_ranks_of_step(const json_t *job, const json_t *ranks)
{
    return json_is_object(json_object_get(job, "dataparallel_memory")) ? 1 : json_array_size(ranks);
}

size_t report_alike(const json_t *array, size_t first, const char *path)
{
    const json_t *value = report_at(json_array_get(array, first), path);
    size_t end = first + 1;
    while (json_equal(value, report_at(json_array_get(array, end), path))) end++;
    return end - first;
}

short_text report_value(cell_format format, double value)
{
    static const struct {
        double scale;
        int decimals;
        const char *unit;
    } formats[] = {
        [CELL_COUNT] = {1, 0, ""},       [CELL_RATIO] = {1, 3, ""}, [CELL_LOSS] = {1, 4, ""},
        [CELL_PERCENT] = {100, 1, " %"}, [CELL_MEAN] = {1, 2, ""},  [CELL_MILLISECONDS] = {1e3, 3, ""},
        [CELL_HUNDREDTHS] = {100, 1, ""}};
    short_text cell = {"-"};
    if (format == CELL_RATE) format = value < 100 ? CELL_MEAN : CELL_COUNT;
    if (isnan(value)) return cell;
    if (format == CELL_TIME)
        text_format_duration(cell.text, sizeof cell.text, 1e9 * value);
    else if (format == CELL_BYTES)
        text_format_bytes(cell.text, sizeof cell.text, value);
    else
        snprintf(cell.text, sizeof cell.text, "%.*f%s", formats[format].decimals,
                 formats[format].scale * value, formats[format].unit);
    if (cell.text[0] == '-' && !strpbrk(cell.text, "123456789")) /* rounded to 0 */
        memmove(cell.text, cell.text + 1, strlen(cell.text));
    return cell;
}

void report_cell(int width, cell_format format, double value, text_buffer *out)
{
    text_append(out, "%*s", width, report_value(format, value).text);
}

void report_rows(report_layout layout, const json_t *columns, const report_row *rows, size_t count,
                 text_buffer *out)
{
    size_t width = json_array_size(columns);
    for (const report_row *row = rows; row < rows + count; row++) {
        double (*value)(const json_t *, const char *) = row->value ? row->value : report_number_at;
        bool any = !row->optional;
        for (size_t i = 0; i < width; i++) any = any || !isnan(value(json_array_get(columns, i), row->path));
        if (!any) continue;
        text_append(out, "%-*s", layout.label_width, row->label);
        for (size_t i = 0; i < width; i++)
            report_cell(layout.column_width, row->format, value(json_array_get(columns, i), row->path), out);
        text_append(out, "\n");
    }
}

short_text report_job_name(const json_t *job)
{
    short_text name;
    const char *engine = report_text_at(job, "engine"), *policy = report_text_at(job, "policy");
    if (strcmp(report_text_at(job, "name"), "all-cores") == 0) policy = "all cores";
    if (strcmp(report_text_at(job, "name"), "isolated") == 0) policy = "isolated";
    size_t end = sizeof name.text - 1;
    int whole = strcmp(engine, policy) == 0
                    ? snprintf(name.text, sizeof name.text, "%s", engine)
                    : snprintf(name.text, sizeof name.text, "%s (%s)", engine, policy);
    if (whole <= (int)end) return name;
    /* The cut must not split a character of UTF-8. */
    while (end > 0 && ((unsigned char)name.text[end - 1] & 0xc0) == 0x80) end--;
    if (end > 0 && (unsigned char)name.text[end - 1] >= 0xc0) end--;
    name.text[end] = '\0';
    return name;
}

void report_heads(report_layout layout, const json_t *jobs, const char *label, text_buffer *out)
{
    bool fits = true;
    size_t i;
    json_t *job;
    for (i = 0; i < json_array_size(jobs); i++)
        fits = fits && (int)strlen(report_job_name(json_array_get(jobs, i)).text) < layout.column_width;
    text_append(out, "%-*s", layout.label_width, label);
    json_array_foreach(jobs, i, job)
    {
        short_text name = report_job_name(job);
        if (!fits) name.text[strcspn(name.text, " ")] = '\0';
        text_append(out, "%*s", layout.column_width, name.text);
    }
    if (!fits) text_append(out, "\n%-*s", layout.label_width, "");
    json_array_foreach(jobs, i, job)
    {
        short_text name = report_job_name(job);
        const char *policy = strchr(name.text, '(');
        int length = policy ? (int)strlen(policy) - 2 : 0; /* without the parentheses */
        if (length >= layout.column_width) length = layout.column_width - 1;
        if (!fits)
            text_append(out, "%*s%.*s", layout.column_width - length, "", length, policy ? policy + 1 : "");
    }
    text_append(out, "\n");
}

void report_target_rows(report_layout layout, const json_t *jobs, cell_format format, const char *loss,
                        const char *accuracy, text_buffer *out)
{
    const char *const rows[][3] = {{"target.loss", loss, "target.loss_s"},
                                   {"target.accuracy", accuracy, "target.accuracy_s"}};
    for (int i = 0; i < 2; i++) {
        double chosen = report_largest(jobs, rows[i][0]);
        char label[64];
        if (isnan(chosen)) continue;
        snprintf(label, (size_t)layout.label_width, rows[i][1], i ? 100 * chosen : chosen);
        report_rows(layout, jobs, &(report_row){label, format, .path = rows[i][2]}, 1, out);
    }
}

/* Returns the largest error of a comparison between the clocks of two ranks, which is the sum of the two
 * largest errors of the ranks' clocks. Returns NaN if all ranks share one clock. */
static double waiting_error(const json_t *job)
{
    double first = NAN, second = 0;
    size_t r;
    json_t *rank;
    json_array_foreach(json_object_get(job, "ranks"), r, rank)
    {
        double error = report_number_at(rank, "clock.waiting_error_s");
        if (isnan(error)) continue;
        second = fmax(second, isnan(first) ? 0 : fmin(first, error));
        first = fmax(first, error);
    }
    return first + second;
}

/* Writes which event ends the waiting that the figures count, and the error of the clocks. Writes nothing if
 * all ranks share one clock. */
static void waiting_note(const json_t *job, const char *name, text_buffer *out)
{
    double calls = report_number_at(job, "ranks.0.merged_calls"), error = waiting_error(job);
    if (isnan(error)) return;
    text_append(out, "Waiting of %s: until ", name);
    if (calls > 0)
        text_append(out, "the last rank began a call (%.0f calls)", calls);
    else
        text_append(out, "a message was sent");
    text_append(out, ", on clocks within %s.\n", report_value(CELL_TIME, error).text);
}

void report_notes(const json_t *job, text_buffer *out)
{
    const json_t *ranks = json_object_get(job, "ranks");
    short_text name = report_job_name(job);
    double kept = report_number_at(job, "step_time.kept"), count = report_number_at(job, "step_time.count");
    if (json_is_false(json_object_get(job, "synchronous")))
        text_append(out, "samples/s of %s: of the time in which all its ranks train.\n", name.text);
    if (kept < count)
        text_append(out, "Median, p95 and spread of %s: of %.0f of its %.0f steps.\n", name.text, kept,
                    count);
    if (report_count_true(ranks, "clock.aligned") > 0)
        text_append(
            out, "Times of %s: the ranks' clocks are aligned to rank 0's by exchanged messages, within %s.\n",
            name.text, report_value(CELL_TIME, report_largest(ranks, "clock.error_s")).text);
    waiting_note(job, name.text, out);
    if (report_ranks_of_step(job, ranks) < json_array_size(ranks))
        text_append(out, "Parts of a step of %s: on rank 0.\n", name.text);
}
