/* Figures of the loss against steps and against time, and of the staleness of parameters that workers
 * read. */
#include "harness/report/figures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- loss ------------------------------------------------------------------------------------------- */

enum { JOB, STEP, TIME, LOSS, COLOR, MOST_POINTS = 60 };

static json_t *loss_table(const char *key, const char *name, const char *step)
{
    const figure_column columns[] = {{key, name, .format = FIGURE_TEXT},
                                     {"step", step, .format = CELL_COUNT},
                                     {"time_s", "training time", .format = CELL_TIME},
                                     {"loss", "loss", .format = CELL_LOSS},
                                     {"color", "", .format = FIGURE_TEXT}};
    return figure_table(columns, COUNT_OF(columns));
}

/* Divides the steps into at most MOST_POINTS groups of equal size, and collects the mean loss of each group.
 * A long run keeps the mean loss of each stretch of consecutive steps instead of the loss of each step
 * (docs/results.md). */
static void collect_losses_of(const json_t *jobs, size_t i, json_t *table)
{
    const json_t *job = json_array_get(jobs, i);
    const report_steps steps = report_steps_of(job), first = report_steps_of(report_at(job, "ranks.0"));
    const json_t *losses = json_object_get(steps.of, "losses"), *times = json_object_get(steps.of, "step_s"),
                 *indices = json_object_get(first.of, "step_index");
    size_t count = json_array_size(losses), stretch = count / MOST_POINTS + 1;
    double time = 0, sum = 0, known = 0;
    for (size_t s = 0; s < count; s++) {
        const json_t *loss = json_array_get(losses, s), *index = json_array_get(indices, s);
        time += json_number_value(json_array_get(times, s));
        sum += json_number_value(loss);
        known += json_is_number(loss);
        if (((s + 1) % stretch != 0 && s + 1 != count) || known == 0) continue;
        figure_add(table, "sfffs", figure_job_name(job).text,
                   json_is_number(index) ? json_number_value(index) : (double)s,
                   s < json_array_size(times) ? time : NAN, sum / known, figure_job_color(jobs, i));
        sum = known = 0;
    }
}

static json_t *collect_losses(const json_t *result)
{
    const json_t *jobs = json_object_get(result, "jobs");
    json_t *table = loss_table("job", "", "step"), *job;
    text_buffer summary = {0};
    size_t i;
    json_array_foreach(jobs, i, job)
    {
        const json_t *losses = json_object_get(report_steps_of(job).of, "losses");
        if (json_array_size(losses) < 2 || isnan(report_largest(losses, ""))) continue;
        collect_losses_of(jobs, i, table);
        text_append(&summary, "%s%s %.4f",
                    summary.length ? ", " : "Loss of the last step: ", figure_job_name(job).text,
                    report_number_at(job, "loss_last"));
    }
    text_append(&summary, ".");
    return figure_summary(table, &summary);
}

typedef struct end_label {
    const char *name, *color;
    double x, y;
} end_label;

/* Draws the names of lines at the ends of the lines. Moves names apart if they would overlap. */
static void draw_end_labels(svg *s, end_label *labels, size_t count)
{
    for (size_t i = 1; i < count; i++)
        for (size_t j = i; j > 0 && labels[j].y < labels[j - 1].y; j--) {
            end_label swap = labels[j];
            labels[j] = labels[j - 1];
            labels[j - 1] = swap;
        }
    for (size_t i = 0; i < count; i++) {
        char style[48];
        for (size_t j = 0; j < i; j++) {
            bool beside = labels[i].x < labels[j].x + svg_text_width(labels[j].name, SVG_TEXT) + 8 &&
                          labels[j].x < labels[i].x + svg_text_width(labels[i].name, SVG_TEXT) + 8;
            if (beside && labels[i].y < labels[j].y + 15) labels[i].y = labels[j].y + 15;
        }
        snprintf(style, sizeof style, "label on-paper ink-%s", labels[i].color);
        svg_text(s, labels[i].x + 8, labels[i].y + 4, SVG_START, style, s->width - labels[i].x - 8, "%s",
                 labels[i].name);
    }
}

static void draw_losses(const json_t *table, svg *s, size_t across, cell_format format, const char *what)
{
    enum { MOST_LINES = 8, HOVERS = 40 };
    double left = 52, right = s->width - 118, top = 30, bottom = 240, low = INFINITY,
           high = figure_largest(table, LOSS), from = INFINITY;
    size_t rows = figure_rows(table), count = 0;
    end_label labels[MOST_LINES];
    for (size_t r = 0; r < rows; r++) {
        low = fmin(low, figure_number(table, r, LOSS));
        from = fmin(from, figure_number(table, r, across));
    }
    svg_axis x = svg_axis_of(format, across == TIME ? 0 : from, figure_largest(table, across),
                             s->narrow ? 3 : 5, left, right);
    svg_axis y = svg_axis_of(CELL_LOSS, low, high, 5, bottom, top);
    svg_y_axis(s, &y, left, right, "loss");
    svg_x_axis(s, &x, bottom, bottom, what);
    for (size_t r = 0, end; r < rows && count < MOST_LINES; r = end) {
        const char *name = figure_label(table, r, JOB), *color = figure_label(table, r, COLOR);
        end = figure_end(table, r, 1);
        size_t every = (end - r) / HOVERS + 1;
        text_append(&s->body, "<path class=\"curve stroke-%s\" d=\"", color);
        for (size_t i = r; i < end; i++)
            text_append(&s->body, "%s%.1f %.1f", i == r ? "M" : "L",
                        svg_at(&x, figure_number(table, i, across)),
                        svg_at(&y, figure_number(table, i, LOSS)));
        text_append(&s->body, "\"/>\n");
        for (size_t i = r; i < end; i += every) {
            double loss = figure_number(table, i, LOSS);
            svg_point(s, svg_at(&x, figure_number(table, i, across)), svg_at(&y, loss), color, loss,
                      "%s, step %.0f, %s: loss %.4f", name, figure_number(table, i, STEP),
                      report_value(CELL_TIME, figure_number(table, i, TIME)).text, loss);
        }
        labels[count++] = (end_label){name, color, svg_at(&x, figure_number(table, end - 1, across)),
                                      svg_at(&y, figure_number(table, end - 1, LOSS))};
    }
    draw_end_labels(s, labels, count);
    s->height = bottom + 40;
    if (count > 0 && labels[count - 1].y + 10 > s->height) s->height = labels[count - 1].y + 10;
}

static void draw_against_steps(const json_t *table, svg *s)
{
    draw_losses(table, s, STEP, CELL_COUNT, "step of the run");
}

static void draw_against_time(const json_t *table, svg *s)
{
    draw_losses(table, s, TIME, CELL_TIME, "training time, measured steps");
}

const report_figure figure_loss_steps = {
    .name = "loss-steps",
    .title = "Loss against steps",
    .reading =
        "The loss of the training batches, as a mean over the ranks and, in long runs, over a few steps. "
        "If lines differ here, the runs compute different values; speed has no effect.",
    .half = true,
    .collect = collect_losses,
    .draw = draw_against_steps};
const report_figure figure_loss_time = {.name = "loss-time",
                                        .title = "Loss against time",
                                        .reading = "The same losses against the time of the measured steps.",
                                        .half = true,
                                        .collect = collect_losses,
                                        .draw = draw_against_time};

/* ---- loss in a sweep over policies ------------------------------------------------------------------- */

static const char *const sweep_colors[] = {"backward", "exposed", "optimizer", "outputs",
                                           "replicas", "none",    "data",      "parameters"};

/* Names a point by its values: "async", "sync servers=2". */
static void name_point(const json_t *point, char *name, size_t size)
{
    const char *axis;
    json_t *value;
    size_t used = 0;
    name[0] = '\0';
    json_object_foreach(json_object_get(point, "values"), axis, value)
    {
        bool word = strcmp(axis, "policy") == 0 || strcmp(axis, "mode") == 0;
        if (!json_is_string(value) || used + 80 > size) continue;
        used += (size_t)snprintf(name + used, size - used, "%s%.32s%s%.32s", used ? " " : "",
                                 word ? "" : axis, word ? "" : "=", json_string_value(value));
    }
}

static json_t *collect_sweep_losses(const json_t *sweep)
{
    const json_t *losses = json_object_get(sweep, "loss_over_time"),
                 *until = json_object_get(losses, "until_s");
    json_t *table = loss_table("point", "point", "row"), *of_point;
    text_buffer summary = {0};
    size_t i, shown = 0;
    json_array_foreach(json_object_get(losses, "points"), i, of_point)
    {
        char name[192], path[64];
        snprintf(path, sizeof path, "points.%.0f", report_number_at(of_point, "row"));
        name_point(report_at(sweep, path), name, sizeof name);
        size_t before = figure_rows(table);
        for (size_t t = 0; t < json_array_size(until) && shown < 8; t++) {
            const json_t *loss = json_array_get(json_object_get(of_point, "losses"), t);
            if (!json_is_number(loss)) continue;
            figure_add(table, "sfffs", name, (double)t + 1, json_number_value(json_array_get(until, t)),
                       json_number_value(loss), sweep_colors[shown]);
        }
        shown += figure_rows(table) > before;
    }
    text_append(&summary,
                "Training loss of %zu points against time: the mean over the steps that ended since the "
                "point before.",
                shown);
    return figure_summary(table, &summary);
}

const report_figure figure_sweep_losses = {.name = "sweep-losses",
                                           .title = "Loss against time",
                                           .reading =
                                               "The losses of the first run of each point. A policy may make "
                                               "more steps per second and reduce the loss less per step.",
                                           .collect = collect_sweep_losses,
                                           .draw = draw_against_time};

/* ---- staleness -------------------------------------------------------------------------------------- */

enum { LATE = 1, READS, PORTION, STALE_COLOR };

static json_t *collect_staleness(const json_t *result)
{
    const json_t *jobs = json_object_get(result, "jobs");
    static const figure_column columns[] = {{"job", "", .format = FIGURE_TEXT},
                                            {"updates_late", "updates late", .format = CELL_COUNT},
                                            {"reads", "reads", .format = CELL_COUNT},
                                            {"share", "share", .format = CELL_PERCENT},
                                            {"color", "", .format = FIGURE_TEXT}};
    json_t *table = figure_table(columns, COUNT_OF(columns)), *job;
    text_buffer summary = {0};
    size_t i;
    json_array_foreach(jobs, i, job)
    {
        const report_reads s = report_reads_of(job);
        double late = 0;
        if (!(s.largest > 0)) continue;
        for (int b = 0; b < s.used; b++) late += b * s.bins[b];
        short_text name = figure_job_name(job);
        for (int b = 0; b < s.used; b++)
            figure_add(table, "sfffs", name.text, (double)b, s.bins[b], s.bins[b] / s.reads,
                       figure_job_color(jobs, i));
        text_append(&summary, "%sReads of %s are %.2f updates late on average, at most %d.",
                    summary.length ? " " : "", name.text, late / s.reads, s.used - 1);
    }
    return figure_summary(table, &summary);
}

static void draw_staleness(const json_t *table, svg *s)
{
    double left = 52, right = s->width, y = 0;
    for (size_t r = 0, end; r < figure_rows(table); r = end) {
        const char *name = figure_label(table, r, 0), *color = figure_label(table, r, STALE_COLOR);
        end = figure_end(table, r, 1);
        double top = y + 56, bottom = top + 150, pitch = (right - left) / (double)(end - r), most = 0,
               width = fmin(pitch * 0.8, 48);
        for (size_t i = r; i < end; i++) most = fmax(most, figure_number(table, i, PORTION));
        svg_text(s, 0, y + 14, SVG_START, "strong", s->width - 100, "%s", name);
        svg_axis axis = svg_axis_of(CELL_PERCENT, 0, most, 4, bottom, top);
        svg_y_axis(s, &axis, left, right, "reads");
        size_t every = (size_t)ceil(24 / pitch);
        for (size_t i = r; i < end; i++) {
            double center = left + pitch * ((double)(i - r) + 0.5),
                   portion = figure_number(table, i, PORTION), late = figure_number(table, i, LATE);
            svg_bar(s, center - width / 2, svg_at(&axis, portion), width, bottom - svg_at(&axis, portion),
                    color, portion, "%s: %.0f reads (%.1f %%) %.0f updates late", name,
                    figure_number(table, i, READS), 100 * portion, late);
            if ((i - r) % every == 0) svg_text(s, center, bottom + 16, SVG_MIDDLE, "tick", 0, "%.0f", late);
        }
        svg_text(s, right, bottom + 32, SVG_END, "tick", 0, "updates late");
        y = bottom + 44;
    }
    s->height = y;
}

const report_figure figure_staleness = {
    .name = "staleness",
    .title = "How stale reads were",
    .reading = "How many updates a worker's parameters were behind the server's when it used them.",
    .half = true,
    .collect = collect_staleness,
    .draw = draw_staleness};
