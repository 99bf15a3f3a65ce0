/* The loss of policies against time. A policy may make more steps per second although each step reduces the
 * loss less. */
#include "harness/report/report.h"
#include "harness/sweep/sweep.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 12, LABEL = 14, COLUMN = 11, MOST_COLUMNS = (80 - LABEL) / COLUMN };

static status no_memory(void)
{
    return fail(STATUS_SYSTEM, "no memory for the losses of the sweep");
}

/* Returns the job of the first run of a point that has a result. The caller releases *result. */
static const json_t *first_job(const sweep *s, int point, json_t **result)
{
    *result = NULL;
    for (int round = 0; round < s->rounds && !*result; round++) *result = sweep_result(s, point, round);
    return report_at(*result, "jobs.0");
}

status sweep_add_losses(const sweep *s, json_t *table)
{
    json_t *until = json_array(), *points = json_array(), *result;
    double end = 0;
    bool varies_policy = false;
    for (int i = 0; i < s->axis_count; i++)
        varies_policy = varies_policy || strcmp(s->axes[i].name, "policy") == 0;
    if (json_object_set_new(table, "loss_over_time", json_null()) != 0) return no_memory();
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
                                        "mean_staleness", report_json_number(report_mean_staleness(job)),
                                        "target", json_object_get(job, "target")));
        json_decref(result);
    }
    json_t *losses = json_pack("{s:o, s:o}", "until_s", until, "points", points);
    if (!losses) return no_memory();
    if (end > 0) return json_object_set_new(table, "loss_over_time", losses) == 0 ? STATUS_OK : no_memory();
    json_decref(losses);
    return STATUS_OK;
}

/* ---- as text ----------------------------------------------------------------------------------------- */

static void append_heads(const json_t *table, const json_t *points, size_t first, size_t end,
                         text_buffer *out)
{
    size_t a;
    json_t *axis;
    json_array_foreach(json_object_get(table, "vary"), a, axis)
    {
        const char *name = json_string_value(axis);
        text_append(out, "%-*s", LABEL, name);
        for (size_t i = first; i < end; i++) {
            size_t row = (size_t)report_number_at(json_array_get(points, i), "row");
            const json_t *values =
                json_object_get(json_array_get(json_object_get(table, "points"), row), "values");
            const char *value = report_text_at(values, name);
            text_append(out, "%*.*s", COLUMN, COLUMN - 1, value[0] ? value : "-");
        }
        text_append(out, "\n");
    }
}

/* Appends the number at `path` of each point. */
static void append_row(const json_t *points, size_t first, size_t end, const char *path, text_buffer *out)
{
    for (size_t i = first; i < end; i++)
        report_cell(COLUMN, CELL_LOSS, report_number_at(json_array_get(points, i), path), out);
    text_append(out, "\n");
}

static void append_block(const json_t *table, const json_t *losses, size_t first, size_t end,
                         text_buffer *out)
{
    static const char *const rows[][2] = {
        {"last step", "loss_last"}, {"accuracy", "accuracy"}, {"staleness", "mean_staleness"}};
    static const char *const targets[][3] = {{"target.loss", "s to loss %g", "target.loss_s"},
                                             {"target.accuracy", "s to %g %%", "target.accuracy_s"}};
    const json_t *points = json_object_get(losses, "points");
    append_heads(table, points, first, end, out);
    for (int r = 0; r < ROWS; r++) {
        char path[24];
        snprintf(path, sizeof path, "until_s.%d", r);
        text_append(out, "%-*.3f", LABEL, report_number_at(losses, path));
        snprintf(path, sizeof path, "losses.%d", r);
        append_row(points, first, end, path, out);
    }
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        text_append(out, "%-*s", LABEL, rows[r][0]);
        append_row(points, first, end, rows[r][1], out);
    }
    /* Appends the training time until --target-loss and --target-accuracy were reached, if these options were
     * given. */
    for (int r = 0; r < 2; r++) {
        double chosen = NAN;
        char label[LABEL];
        for (size_t i = first; i < end; i++)
            chosen = fmax(chosen, report_number_at(json_array_get(points, i), targets[r][0]));
        if (isnan(chosen)) continue;
        snprintf(label, sizeof label, targets[r][1], r ? 100 * chosen : chosen);
        text_append(out, "%-*s", LABEL, label);
        append_row(points, first, end, targets[r][2], out);
    }
}

void sweep_report_losses(const json_t *table, text_buffer *out)
{
    const json_t *losses = json_object_get(table, "loss_over_time");
    size_t count = json_array_size(json_object_get(losses, "points"));
    if (count == 0) return;
    text_append(out, "\nTraining loss against time in seconds, of each point's first run: the mean over\n"
                     "the steps that ended since the row above\n");
    for (size_t first = 0; first < count; first += MOST_COLUMNS)
        append_block(table, losses, first, first + MOST_COLUMNS < count ? first + MOST_COLUMNS : count, out);
}
