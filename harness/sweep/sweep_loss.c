/* The loss of policies against time. A policy may make more steps per second although each step reduces the
 * loss less. */
#include "harness/report/report.h"
#include "harness/sweep/sweep.h"

#include <math.h>
#include <stdio.h>

enum { ROWS = 12, MOST_COLUMNS = 6 };
static const report_layout layout = {14, 11}; /* MOST_COLUMNS fit in 80 columns of text. */

/* Returns the job of the first run of a point that has a result. The caller releases *result. */
static const json_t *first_job(const sweep *s, int point, json_t **result)
{
    *result = NULL;
    for (int round = 0; round < s->rounds && !*result; round++) *result = sweep_result(s, point, round);
    return report_at(*result, "jobs.0");
}

void sweep_add_losses(const sweep *s, json_t *table)
{
    json_t *until = json_array(), *points = json_array(), *result;
    bool varies_policy = sweep_axis_named(s, "policy") >= 0;
    double end = 0;
    for (int p = 0; p < s->points && varies_policy; p++) {
        if (!sweep_has(s, p)) continue;
        const json_t *job = first_job(s, p, &result);
        if (!json_is_true(json_object_get(result, "simulated")))
            end = fmax(end, report_duration(job)); /* Virtual runs have no loss. */
        json_decref(result);
    }
    for (int i = 0; i < ROWS; i++) json_array_append_new(until, json_real(end * (i + 1) / ROWS));
    for (int p = 0, row = 0; p < s->points && end > 0; p++) {
        if (!sweep_has(s, p)) continue;
        const json_t *job = first_job(s, p, &result);
        json_t *losses = json_array();
        for (int i = 0; i < ROWS; i++)
            json_array_append_new(
                losses, report_json_number(report_loss_between(job, end * i / ROWS, end * (i + 1) / ROWS)));
        json_array_append_new(points,
                              json_pack("{s:i, s:o, s:o, s:o, s:o, s:O?}", "row", row++, "losses", losses,
                                        "loss_last", report_json_number(report_number_at(job, "loss_last")),
                                        "accuracy", report_json_number(report_number_at(job, "accuracy")),
                                        "mean_staleness", report_json_number(report_reads_of(job).mean),
                                        "target", json_object_get(job, "target")));
        json_decref(result);
    }
    json_t *losses = json_pack("{s:o, s:o}", "until_s", until, "points", points);
    json_object_set(table, "loss_over_time", end > 0 ? losses : json_null());
    json_decref(losses);
}

/* ---- as text ----------------------------------------------------------------------------------------- */

static void append_heads(const json_t *table, const json_t *points, text_buffer *out)
{
    size_t a, i;
    json_t *axis, *point;
    json_array_foreach(json_object_get(table, "vary"), a, axis)
    {
        const char *name = json_string_value(axis);
        text_append(out, "%-*s", layout.label_width, name);
        json_array_foreach(points, i, point)
        {
            char path[80];
            snprintf(path, sizeof path, "points.%.0f.values.%s", report_number_at(point, "row"), name);
            const char *value = report_text_at(table, path);
            text_append(out, "%*.*s", layout.column_width, layout.column_width - 1, value[0] ? value : "-");
        }
        text_append(out, "\n");
    }
}

/* Appends a block of the table, with a column for each of `points`. */
static void append_block(const json_t *table, const json_t *points, text_buffer *out)
{
    static const report_row rows[] = {{"last step", CELL_LOSS, .path = "loss_last"},
                                      {"accuracy", CELL_LOSS, .path = "accuracy"},
                                      {"staleness", CELL_LOSS, .path = "mean_staleness"}};
    char label[14], path[40];
    append_heads(table, points, out);
    for (int r = 0; r < ROWS; r++) {
        snprintf(path, sizeof path, "loss_over_time.until_s.%d", r);
        snprintf(label, sizeof label, "%.3f", report_number_at(table, path));
        snprintf(path, sizeof path, "losses.%d", r);
        report_rows(layout, points, &(report_row){label, CELL_LOSS, .path = path}, 1, out);
    }
    report_rows(layout, points, rows, sizeof rows / sizeof rows[0], out);
    report_target_rows(layout, points, CELL_LOSS, "s to loss %g", "s to %g %%", out);
}

void sweep_report_losses(const json_t *table, text_buffer *out)
{
    const json_t *points = report_at(table, "loss_over_time.points");
    size_t count = json_array_size(points);
    if (count == 0) return;
    text_append(out, "\nTraining loss against time in seconds, of each point's first run: the mean over\n"
                     "the steps that ended since the row above\n");
    for (size_t first = 0; first < count; first += MOST_COLUMNS) {
        json_t *shown = json_array();
        for (size_t i = first; i < count && i < first + MOST_COLUMNS; i++)
            json_array_append(shown, json_array_get(points, i));
        append_block(table, shown, out);
        json_decref(shown);
    }
}
