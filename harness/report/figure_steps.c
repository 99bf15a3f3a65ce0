/* Figures of the parts of a step, and of the throughput. */
#include "harness/report/figures.h"

#include <math.h>
#include <stdio.h>

/* ---- the exclusive parts of a step ------------------------------------------------------------- */

enum { STEP = 1, FIRST_PART, END_OF_PARTS = 9 };

/* Hidden communication has no bar. */
static const figure_column step_columns[] = {
    {"job", "", .format = FIGURE_TEXT},
    {"step_s", "step", .format = CELL_TIME},
    {"data_s", "data", CELL_TIME, "data"},
    {"forward_s", "forward", CELL_TIME, "forward"},
    {"backward_s", "backward", CELL_TIME, "backward"},
    {"exposed_communication_s", "exposed communication", CELL_TIME, "exposed"},
    {"waiting_s", "waiting for other ranks", CELL_TIME, "waiting"},
    {"optimizer_s", "optimizer", CELL_TIME, "optimizer"},
    {"other_s", "other", CELL_TIME, "other"},
    {"hidden_while_computing_s", "hidden communication, while computing", .format = CELL_TIME},
    {"hidden_while_waiting_s", "hidden communication, while waiting for other ranks", .format = CELL_TIME}};

static json_t *collect_parts(const json_t *result)
{
    json_t *table = figure_table(step_columns, COUNT_OF(step_columns)), *job;
    text_buffer summary = {0};
    size_t i;
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        double step = report_phase(job, "step_s");
        if (isnan(step)) continue;
        short_text name = figure_job_name(job);
        json_t *row = figure_add(table, "s", name.text);
        for (size_t c = STEP; c < COUNT_OF(step_columns); c++)
            figure_put(row, report_phase(job, step_columns[c].key));
        text_append(&summary, "%s%s %s", summary.length ? ", " : "A step takes ", name.text,
                    report_value(CELL_TIME, step).text);
    }
    text_append(&summary, "; means over ranks (dp: of rank 0) and measured steps.");
    return figure_summary(table, &summary);
}

/* Writes the name and the value of a part on the part's bar. If both do not fit, writes the value if it fits,
 * else nothing. */
static void label_part(svg *s, const figure_column *part, const char *value, double x, double y, double width)
{
    char both[96], style[48];
    snprintf(both, sizeof both, "%s %s", part->name, value);
    snprintf(style, sizeof style, "label on-%s", part->color);
    const char *shown = svg_text_width(both, SVG_TEXT) + 12 <= width ? both : value;
    if (svg_text_width(shown, SVG_TEXT) + 8 <= width)
        svg_text(s, x + width / 2, y, SVG_MIDDLE, style, 0, "%s", shown);
}

static void draw_parts(const json_t *table, svg *s)
{
    double left = s->narrow ? 0 : 176, row_height = s->narrow ? 50 : 44, bar = s->narrow ? 26 : 30;
    double top = figure_legend(table, s) + 4, bottom = top + row_height * (double)figure_rows(table) + 4;
    svg_axis axis = svg_axis_of(CELL_TIME, 0, figure_largest(table, STEP), s->narrow ? 4 : 8, left,
                                s->width - (s->narrow ? 16 : 84));
    svg_x_axis(s, &axis, top, bottom, "time of a step");
    for (size_t r = 0; r < figure_rows(table); r++) {
        double y = top + row_height * (double)r + (s->narrow ? 20 : 8), sum = 0;
        const char *name = figure_label(table, r, 0);
        short_text total = report_value(CELL_TIME, figure_number(table, r, STEP));
        if (s->narrow)
            svg_text(s, 0, y - 5, SVG_START, "strong", s->width - 90, "%s", name);
        else
            svg_text(s, left - 12, y + bar / 2 + 4, SVG_END, "strong", left - 16, "%s", name);
        for (size_t c = FIRST_PART; c < END_OF_PARTS; c++) {
            double part = figure_number(table, r, c);
            if (!(part > 0)) continue;
            double x = svg_at(&axis, sum), width = svg_at(&axis, sum + part) - x;
            short_text value = report_value(CELL_TIME, part);
            svg_bar(s, x, y, width, bar, step_columns[c].color, part, "%s: %s, %s", name,
                    step_columns[c].name, value.text);
            label_part(s, &step_columns[c], value.text, x, y + bar / 2 + 4, width);
            sum += part;
        }
        if (s->narrow)
            svg_text(s, s->width, y - 5, SVG_END, "strong", 0, "%s", total.text);
        else
            svg_text(s, svg_at(&axis, sum) + 8, y + bar / 2 + 4, SVG_START, "strong", 0, "%s", total.text);
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

/* Returns the number at `path` of the job's statistics over the runs of --repeat: a median, or a limit of the
 * median's interval. Returns NaN if the run was not repeated. */
static double of_runs(const json_t *result, const json_t *job, const char *path)
{
    const json_t *jobs = report_at(result, "repetitions.jobs");
    return report_number_at(report_find(jobs, "name", report_text_at(job, "name")), path);
}

static double rate_of(const json_t *result, const json_t *job)
{
    double median = of_runs(result, job, "samples_per_s.median");
    return isnan(median) ? report_number_at(job, "throughput.samples_per_s") : median;
}

static json_t *collect_throughput(const json_t *result)
{
    static const figure_column columns[] = {{"job", "", .format = FIGURE_TEXT},
                                            {"samples_per_s", "samples/s", .format = CELL_RATE},
                                            {"samples_per_s_per_rank", "per rank", .format = CELL_RATE},
                                            {"ideal_samples_per_s", "ideal", .format = CELL_RATE},
                                            {"share_of_ideal", "share of ideal", .format = CELL_PERCENT},
                                            {"low_samples_per_s", "95 % from", .format = CELL_RATE},
                                            {"high_samples_per_s", "to", .format = CELL_RATE},
                                            {"color", "", .format = FIGURE_TEXT}};
    const json_t *jobs = json_object_get(result, "jobs");
    json_t *table = figure_table(columns, COUNT_OF(columns)), *job;
    text_buffer summary = {0};
    size_t i;
    double single = rate_of(result, report_job(result, "none"));
    json_array_foreach(jobs, i, job)
    {
        double rate = rate_of(result, job), world = report_number_at(job, "world_size");
        double ideal = world > 1 ? single * world : NAN;
        if (isnan(rate)) continue;
        short_text name = figure_job_name(job);
        figure_add(table, "sffffffs", name.text, rate, rate / world, ideal, rate / ideal,
                   of_runs(result, job, "samples_per_s.low"), of_runs(result, job, "samples_per_s.high"),
                   figure_job_color(jobs, i));
        text_append(&summary, "%s%s %s", summary.length ? ", " : "Samples per second: ", name.text,
                    report_value(CELL_RATE, rate).text);
        if (!isnan(ideal)) text_append(&summary, " (%.0f %% of ideal)", 100 * rate / ideal);
    }
    text_append(&summary, ".%s",
                isnan(single) ? "" : " Ideal is one rank without communication, times the ranks.");
    return figure_summary(table, &summary);
}

/* Draws the column of a job around `center`. Returns the number of lines of the job's name. */
static int draw_rate(const json_t *table, size_t r, const svg_axis *axis, double center, double width,
                     double pitch, svg *s)
{
    double rate = figure_number(table, r, RATE), share = figure_number(table, r, SHARE),
           low = figure_number(table, r, LOW), bottom = axis->from, y = svg_at(axis, rate);
    const char *name = figure_label(table, r, 0), *color = figure_label(table, r, COLOR);
    bool inside = bottom - y > 44;
    char style[48], text[32];
    short_text value = report_value(CELL_RATE, rate);
    svg_bar(s, center - width / 2, y, width, bottom - y, color, rate, "%s: %s samples/s", name, value.text);
    if (!isnan(low))
        svg_line(s, center + width / 2 - 8, svg_at(axis, low), center + width / 2 - 8,
                 svg_at(axis, figure_number(table, r, HIGH)), "interval");
    int lines = svg_job(s, center, bottom + 17, pitch - 4, name);
    snprintf(style, sizeof style, inside ? "strong on-%s" : "strong", color);
    svg_text(s, center, inside ? y + 17 : y - 6, SVG_MIDDLE, style, pitch, "%s", value.text);
    if (isnan(share)) return lines;
    double at = svg_at(axis, figure_number(table, r, IDEAL));
    svg_line(s, center - width / 2 - 7, at, center + width / 2 + 7, at, "ideal");
    snprintf(text, sizeof text, "%.0f %% of ideal", 100 * share);
    double needed = svg_text_width(text, SVG_SMALL);
    snprintf(style, sizeof style, "tick on-%s", color);
    if (inside && needed <= width)
        svg_text(s, center, y + 33, SVG_MIDDLE, style, 0, "%s", text);
    else
        svg_text(s, center, bottom + 18 + 14 * lines, SVG_MIDDLE, "tick", pitch,
                 needed > pitch ? "%.0f %%" : "%.0f %% of ideal", 100 * share);
    return lines;
}

static void draw_throughput(const json_t *table, svg *s)
{
    double left = 52, right = s->width, rows = (double)figure_rows(table);
    double pitch = (right - left) / fmax(rows, 1);
    double most =
        fmax(fmax(figure_largest(table, RATE), figure_largest(table, HIGH)), figure_largest(table, IDEAL));
    svg_axis axis = svg_axis_of(CELL_RATE, 0, most * 1.04, 5, 254, 34);
    svg_y_axis(s, &axis, left, right, "samples/s");
    int most_lines = 1;
    for (size_t r = 0; r < figure_rows(table); r++) {
        int lines =
            draw_rate(table, r, &axis, left + pitch * ((double)r + 0.5), fmin(pitch * 0.6, 84), pitch, s);
        if (lines > most_lines) most_lines = lines;
    }
    if (!isnan(figure_largest(table, IDEAL))) {
        svg_line(s, right - 150, 8, right - 128, 8, "ideal");
        svg_text(s, right - 122, 12, SVG_START, "tick", 0, "ideal: ranks × none");
    }
    s->height = axis.from + 24 + 14 * most_lines;
}

const report_figure figure_throughput = {
    .name = "throughput",
    .title = "Throughput, and scaling against ideal",
    .reading = "Ideal is the throughput of one rank without communication, times the number of ranks. "
               "Repeated runs show the median with its 95 % interval.",
    .half = true,
    .collect = collect_throughput,
    .draw = draw_throughput};
