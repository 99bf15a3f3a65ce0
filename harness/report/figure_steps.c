/* Figures of the parts of a step, and of the throughput. */
#include "harness/report/figures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the exclusive parts of a step ------------------------------------------------------------- */

/* Columns: job, step, the parts, and two figures without bars. */
enum { FIRST_PART = 2, PART_COUNT = 7, COLUMN_COUNT = 9 };

static const struct {
    const char *key, *name, *color;
} parts[COLUMN_COUNT] = {
    {"data", "data", "data"},
    {"forward", "forward", "forward"},
    {"backward", "backward", "backward"},
    {"exposed_communication", "exposed communication", "exposed"},
    {"waiting", "waiting for other ranks", "waiting"},
    {"optimizer", "optimizer", "optimizer"},
    {"other", "other", "other"},
    {"hidden_while_computing", "hidden communication, while computing", NULL},
    {"hidden_while_waiting", "hidden communication, while waiting for other ranks", NULL}};

static json_t *collect_parts(const json_t *result)
{
    json_t *table = figure_table(), *job;
    text_buffer summary = {0};
    char path[64], name[64], value[32];
    size_t i;
    figure_column(table, "job", "", FIGURE_TEXT, NULL);
    figure_column(table, "step_s", "step", CELL_TIME, NULL);
    for (int p = 0; p < COLUMN_COUNT; p++) {
        snprintf(path, sizeof path, "%s_s", parts[p].key);
        figure_column(table, path, parts[p].name, CELL_TIME, parts[p].color);
    }
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        double step = report_number_at(job, "phases.step_s.mean_s");
        if (isnan(step)) continue;
        json_t *row = figure_row(table);
        figure_put_text(row, figure_job_name(job, name, sizeof name));
        figure_put(row, step);
        for (int p = 0; p < COLUMN_COUNT; p++) {
            snprintf(path, sizeof path, "phases.%s_s.mean_s", parts[p].key);
            figure_put(row, report_number_at(job, path));
        }
        text_append(&summary, "%s%s %s", summary.length ? ", " : "A step takes ", name,
                    svg_value(value, sizeof value, CELL_TIME, step));
    }
    text_append(&summary, "; means over ranks and measured steps.");
    figure_summary(table, &summary);
    return table;
}

/* Writes name and value of a part on its bar, as far as they fit. */
static void label_part(svg *s, const char *name, const char *color, double value, double x, double y,
                       double width)
{
    char figure[32], both[96], style[48];
    svg_value(figure, sizeof figure, CELL_TIME, value);
    snprintf(both, sizeof both, "%s %s", name, figure);
    snprintf(style, sizeof style, "label on-%s", color);
    const char *shown = svg_text_width(both, SVG_TEXT) + 12 <= width ? both : figure;
    if (svg_text_width(shown, SVG_TEXT) + 8 <= width)
        svg_text(s, x + width / 2, y, SVG_MIDDLE, style, 0, shown);
}

static void draw_parts(const json_t *table, svg *s)
{
    double left = s->narrow ? 0 : 176, row_height = s->narrow ? 50 : 44, bar = s->narrow ? 26 : 30;
    double top = 12, end = s->width - (s->narrow ? 16 : 84);
    svg_key keys[PART_COUNT];
    size_t used = 0;
    for (int p = 0; p < PART_COUNT; p++)
        if (figure_largest(table, FIRST_PART + (size_t)p) > 0)
            keys[used++] = (svg_key){parts[p].color, parts[p].name};
    top = svg_legend(s, keys, used, 0, top, s->width) + 4;
    svg_axis axis = svg_axis_of(CELL_TIME, 0, figure_largest(table, 1), s->narrow ? 4 : 8, left, end);
    double bottom = top + row_height * (double)figure_rows(table) + 4;
    svg_x_axis(s, &axis, top, bottom, "time of a step");
    for (size_t r = 0; r < figure_rows(table); r++) {
        double y = top + row_height * (double)r + (s->narrow ? 20 : 8), sum = 0;
        const char *name = figure_label(table, r, 0);
        char total[32], hover[160], value[32];
        svg_value(total, sizeof total, CELL_TIME, figure_number(table, r, 1));
        if (s->narrow)
            svg_text(s, 0, y - 5, SVG_START, "strong", s->width - 90, name);
        else
            svg_text(s, left - 12, y + bar / 2 + 4, SVG_END, "strong", left - 16, name);
        for (int p = 0; p < PART_COUNT; p++) {
            double part = figure_number(table, r, FIRST_PART + (size_t)p);
            if (!(part > 0)) continue;
            double x = svg_at(&axis, sum), width = svg_at(&axis, sum + part) - x;
            snprintf(hover, sizeof hover, "%s: %s, %s", name, parts[p].name,
                     svg_value(value, sizeof value, CELL_TIME, part));
            svg_bar(s, x, y, width, bar, parts[p].color, part, hover);
            label_part(s, parts[p].name, parts[p].color, part, x, y + bar / 2 + 4, width);
            sum += part;
        }
        if (s->narrow)
            svg_text(s, s->width, y - 5, SVG_END, "strong", 0, total);
        else
            svg_text(s, svg_at(&axis, sum) + 8, y + bar / 2 + 4, SVG_START, "strong", 0, total);
    }
    s->height = bottom + 36;
}

const report_figure figure_step_parts = {
    .name = "step-parts",
    .title = "Where the time of a step goes",
    .reading = "Every instant of a step counts once. Hidden communication, which computation does not wait "
               "for, has no length here; its time is in the table.",
    .collect = collect_parts,
    .draw = draw_parts};

/* ---- throughput ----------------------------------------------------------------------------------- */

enum { RATE = 1, PER_RANK, IDEAL, SHARE, LOW, HIGH, COLOR };

/* Returns a figure over the runs of --repeat, the median or a limit of its interval. NaN if the run was
 * not repeated. */
static double of_runs(const json_t *result, const json_t *job, const char *path)
{
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)report_at(result, "repetitions.jobs"), i, row)
    {
        if (strcmp(report_text_at(row, "name"), report_text_at(job, "name")) == 0)
            return report_number_at(row, path);
    }
    return NAN;
}

static double rate_of(const json_t *result, const json_t *job)
{
    double median = of_runs(result, job, "samples_per_s.median");
    return isnan(median) ? report_number_at(job, "throughput.samples_per_s") : median;
}

static json_t *collect_throughput(const json_t *result)
{
    const json_t *jobs = json_object_get(result, "jobs");
    json_t *table = figure_table(), *job;
    text_buffer summary = {0};
    char name[64], value[32];
    size_t i;
    double single = NAN;
    figure_column(table, "job", "", FIGURE_TEXT, NULL);
    figure_column(table, "samples_per_s", "samples/s", CELL_RATE, NULL);
    figure_column(table, "samples_per_s_per_rank", "per rank", CELL_RATE, NULL);
    figure_column(table, "ideal_samples_per_s", "ideal", CELL_RATE, NULL);
    figure_column(table, "share_of_ideal", "share of ideal", CELL_PERCENT, NULL);
    figure_column(table, "low_samples_per_s", "95 % from", CELL_RATE, NULL);
    figure_column(table, "high_samples_per_s", "to", CELL_RATE, NULL);
    figure_column(table, "color", "", FIGURE_TEXT, NULL);
    json_array_foreach(jobs, i, job)
    {
        if (strcmp(report_text_at(job, "name"), "none") == 0) single = rate_of(result, job);
    }
    json_array_foreach(jobs, i, job)
    {
        double rate = rate_of(result, job), world = report_number_at(job, "world_size");
        double ideal = world > 1 ? single * world : NAN;
        if (isnan(rate)) continue;
        json_t *row = figure_row(table);
        figure_put_text(row, figure_job_name(job, name, sizeof name));
        figure_put(row, rate);
        figure_put(row, rate / world);
        figure_put(row, ideal);
        figure_put(row, rate / ideal);
        figure_put(row, of_runs(result, job, "samples_per_s.low"));
        figure_put(row, of_runs(result, job, "samples_per_s.high"));
        figure_put_text(row, figure_job_color(jobs, i));
        text_append(&summary, "%s%s %s", summary.length ? ", " : "Samples per second: ", name,
                    svg_value(value, sizeof value, CELL_RATE, rate));
        if (!isnan(ideal)) text_append(&summary, " (%.0f %% of ideal)", 100 * rate / ideal);
    }
    text_append(&summary, ".%s",
                isnan(single) ? "" : " Ideal is one rank without communication, times the ranks.");
    figure_summary(table, &summary);
    return table;
}

static void draw_throughput(const json_t *table, svg *s)
{
    double left = 52, right = s->width, top = 34, bottom = 254, rows = (double)figure_rows(table);
    double pitch = (right - left) / fmax(rows, 1), width = fmin(pitch * 0.6, 84);
    double most =
        fmax(fmax(figure_largest(table, RATE), figure_largest(table, HIGH)), figure_largest(table, IDEAL));
    svg_axis axis = svg_axis_of(CELL_RATE, 0, most * 1.04, 5, bottom, top);
    svg_y_axis(s, &axis, left, right, "samples/s");
    int most_lines = 1;
    for (size_t r = 0; r < figure_rows(table); r++) {
        double rate = figure_number(table, r, RATE), ideal = figure_number(table, r, IDEAL),
               share = figure_number(table, r, SHARE);
        double center = left + pitch * ((double)r + 0.5), y = svg_at(&axis, rate);
        char text[128], value[32];
        const char *name = figure_label(table, r, 0), *color = figure_label(table, r, COLOR);
        svg_value(value, sizeof value, CELL_RATE, rate);
        snprintf(text, sizeof text, "%s: %s samples/s", name, value);
        svg_bar(s, center - width / 2, y, width, bottom - y, color, rate, text);
        double low = figure_number(table, r, LOW), high = figure_number(table, r, HIGH);
        if (!isnan(low))
            svg_line(s, center + width / 2 - 8, svg_at(&axis, low), center + width / 2 - 8,
                     svg_at(&axis, high), "interval");
        bool inside = bottom - y > 44;
        int lines = svg_job(s, center, bottom + 17, pitch - 4, name);
        char style[48];
        snprintf(style, sizeof style, inside ? "strong on-%s" : "strong", color);
        svg_text(s, center, inside ? y + 17 : y - 6, SVG_MIDDLE, style, pitch, value);
        if (!isnan(share)) {
            double at = svg_at(&axis, ideal);
            svg_line(s, center - width / 2 - 7, at, center + width / 2 + 7, at, "ideal");
            snprintf(text, sizeof text, "%.0f %% of ideal", 100 * share);
            snprintf(style, sizeof style, "tick on-%s", color);
            if (inside && svg_text_width(text, SVG_SMALL) <= width)
                svg_text(s, center, y + 33, SVG_MIDDLE, style, 0, text);
            else {
                if (svg_text_width(text, SVG_SMALL) > pitch)
                    snprintf(text, sizeof text, "%.0f %%", 100 * share);
                svg_text(s, center, bottom + 18 + 14 * lines, SVG_MIDDLE, "tick", pitch, text);
            }
        }
        if (lines > most_lines) most_lines = lines;
    }
    if (!isnan(figure_largest(table, IDEAL))) {
        svg_line(s, right - 150, 8, right - 128, 8, "ideal");
        svg_text(s, right - 122, 12, SVG_START, "tick", 0, "ideal: ranks × none");
    }
    s->height = bottom + 24 + 14 * most_lines;
}

const report_figure figure_throughput = {
    .name = "throughput",
    .title = "Throughput, and scaling against ideal",
    .reading = "Ideal is the throughput of one rank without communication, times the number of ranks. "
               "Repeated runs show the median with its 95 % interval.",
    .half = true,
    .collect = collect_throughput,
    .draw = draw_throughput};
