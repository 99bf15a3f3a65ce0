/* Figure of the memory at the peak by class. A column is a rank, ranks with equal memory, or a server in a
 * separate process. */
#include "harness/report/figures.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { FIRST_CLASS = 5 }; /* columns: job, ranks, count, peak, bytes above the other ranks, classes */

static const struct {
    const char *key, *name, *color;
} classes[] = {{"parameters", "parameters", "parameters"},
               {"gradients", "gradients", "backward"},
               {"optimizer_state", "optimizer state", "optimizer"},
               {"activations", "activations", "forward"},
               {"outputs_and_loss", "outputs and loss", "outputs"},
               {"replicas", "replicas", "replicas"},
               {"gathered_units", "gathered units", "gathered"},
               {"buckets", "buckets, sums", "exposed"},
               {"workspace", "workspace", "other"},
               {"batch", "batch", "data"}};

enum { CLASS_COUNT = sizeof classes / sizeof classes[0] };

/* Counts the ranks from `first` on with equal memory at the peak. */
static size_t alike(const json_t *ranks, size_t first)
{
    const json_t *peak = report_at(json_array_get(ranks, first), "memory.peak_classes");
    size_t end = first + 1;
    while (end < json_array_size(ranks) &&
           json_equal(peak, report_at(json_array_get(ranks, end), "memory.peak_classes")))
        end++;
    return end - first;
}

static double least_peak(const json_t *ranks)
{
    double least = NAN;
    size_t r;
    json_t *rank;
    json_array_foreach((json_t *)ranks, r, rank) least =
        fmin(least, report_number_at(rank, "memory.total.peak_bytes"));
    return least;
}

static void add_row(json_t *table, const char *job, const char *label, size_t count, const json_t *memory,
                    double least)
{
    json_t *row = figure_row(table);
    double total = report_number_at(memory, "total.peak_bytes");
    figure_put_text(row, job);
    figure_put_text(row, label);
    figure_put(row, (double)count);
    figure_put(row, total);
    figure_put(row, total - least);
    for (int c = 0; c < CLASS_COUNT; c++)
        figure_put(row, report_number_at(json_object_get(memory, "peak_classes"), classes[c].key));
}

/* Collects the ranks, then the servers in separate processes, which are not compared with the ranks. */
static void collect_job(const json_t *job, json_t *table)
{
    const json_t *ranks = json_object_get(job, "ranks");
    json_t *server;
    char name[64], label[48];
    size_t i;
    figure_job_name(job, name, sizeof name);
    for (size_t first = 0, count; first < json_array_size(ranks); first += count) {
        count = alike(ranks, first);
        if (count == 1)
            snprintf(label, sizeof label, "%zu", first);
        else
            snprintf(label, sizeof label, "%zu–%zu", first, first + count - 1);
        add_row(table, name, label, count, json_object_get(json_array_get(ranks, first), "memory"),
                least_peak(ranks));
    }
    json_array_foreach(json_object_get(job, "servers"), i, server)
    {
        snprintf(label, sizeof label, "server %zu", i);
        add_row(table, name, label, 1, json_object_get(server, "memory"), NAN);
    }
}

static json_t *collect(const json_t *result)
{
    json_t *table = figure_table(), *job;
    text_buffer summary = {0};
    char key[64], name[64], value[32], excess[32];
    size_t i;
    figure_column(table, "job", "", FIGURE_TEXT, NULL);
    figure_column(table, "ranks", "ranks", FIGURE_TEXT, NULL);
    figure_column(table, "count", "ranks alike", CELL_COUNT, NULL);
    figure_column(table, "peak_bytes", "peak", CELL_BYTES, NULL);
    figure_column(table, "excess_bytes", "above the least", CELL_BYTES, NULL);
    for (int c = 0; c < CLASS_COUNT; c++) {
        snprintf(key, sizeof key, "%s_bytes", classes[c].key);
        figure_column(table, key, classes[c].name, CELL_BYTES, classes[c].color);
    }
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        double most = report_number_at(job, "memory_imbalance.maximum_bytes"),
               above = report_number_at(job, "memory_imbalance.maximum_minus_minimum_bytes");
        if (isnan(report_number_at(job, "ranks.0.memory.total.peak_bytes"))) continue;
        collect_job(job, table);
        text_append(&summary, "%s%s %s", summary.length ? ", " : "Largest peak of a rank: ",
                    figure_job_name(job, name, sizeof name),
                    svg_value(value, sizeof value, CELL_BYTES, most));
        if (above > 0)
            text_append(&summary, " (rank %.0f, %s above the least)",
                        report_number_at(job, "memory_imbalance.rank"),
                        svg_value(excess, sizeof excess, CELL_BYTES, above));
    }
    text_append(&summary, ".");
    figure_summary(table, &summary);
    return table;
}

static bool is_server(const char *label)
{
    return strncmp(label, "server", 6) == 0;
}

static void draw_column(const json_t *table, size_t row, const svg_axis *a, double center, double width,
                        double pitch, svg *s)
{
    double sum = 0, total = figure_number(table, row, 3), excess = figure_number(table, row, 4);
    const char *job = figure_label(table, row, 0), *ranks = figure_label(table, row, 1);
    char hover[200], value[32];
    for (size_t c = 0; c < CLASS_COUNT; c++) {
        double bytes = figure_number(table, row, FIRST_CLASS + c);
        if (!(bytes > 0)) continue;
        double y = svg_at(a, sum + bytes), height = svg_at(a, sum) - y;
        snprintf(hover, sizeof hover, "%s, %s%s: %s, %s", job, is_server(ranks) ? "" : "rank ", ranks,
                 classes[c].name, svg_value(value, sizeof value, CELL_BYTES, bytes));
        svg_bar(s, center - width / 2, y, width, height, classes[c].color, bytes, hover);
        sum += bytes;
    }
    double top = svg_at(a, sum);
    snprintf(value, sizeof value, "%.*f", total / a->unit < 10 ? 2 : 1, total / a->unit);
    if (svg_text_width(value, SVG_SMALL) <= pitch - 2)
        svg_text(s, center, top - 6, SVG_MIDDLE, "tick", 0, value);
    if (!(excess > 0.005 * total)) return;
    /* Marks the bytes that a rank holds more than the rank with the least. */
    double least = svg_at(a, total - excess), right = center + width / 2 + 3;
    svg_line(s, right, top, right, least, "excess");
    svg_line(s, center - width / 2, least, right + 3, least, "excess");
    svg_line(s, right - 3, top, right + 3, top, "excess");
    char more[40];
    svg_value(value, sizeof value, CELL_BYTES, excess);
    snprintf(more, sizeof more, "+%s", value);
    if (svg_text_width(more, SVG_SMALL) <= pitch - 2)
        svg_text(s, center, top - 20, SVG_MIDDLE, "excess-label", 0, more);
}

static size_t end_of_job(const json_t *table, size_t first)
{
    size_t end = first;
    while (end < figure_rows(table) &&
           strcmp(figure_label(table, end, 0), figure_label(table, first, 0)) == 0)
        end++;
    return end;
}

/* Returns the first row of the next column. Rows from `first` on whose peaks are within 1 % share a
 * column. */
static size_t end_of_column(const json_t *table, size_t first, size_t end)
{
    double peak = figure_number(table, first, 3);
    size_t next = first + 1;
    while (next < end && fabs(figure_number(table, next, 3) - peak) < 0.01 * peak &&
           is_server(figure_label(table, next, 1)) == is_server(figure_label(table, first, 1)))
        next++;
    return next;
}

static size_t columns_of(const json_t *table, size_t first, size_t end)
{
    size_t count = 0;
    for (; first < end; count++) first = end_of_column(table, first, end);
    return count;
}

/* Counts the columns of all jobs if each job has at most `allowed`. */
static size_t columns_shown(const json_t *table, size_t allowed, size_t *jobs)
{
    size_t shown = *jobs = 0;
    for (size_t r = 0, end; r < figure_rows(table); r = end, (*jobs)++) {
        end = end_of_job(table, r);
        size_t columns = columns_of(table, r, end);
        shown += columns < allowed ? columns : allowed;
    }
    return shown;
}

/* Names the ranks of the rows [first, end), "1–7", from labels that may be ranges, too. Servers are
 * "server 0–1", or "s0–1" if that is wider than `most` px. */
static char *ranks_of(const json_t *table, size_t first, size_t end, double most, char *buffer, size_t size)
{
    const char *begin = figure_label(table, first, 1), *last = figure_label(table, end - 1, 1),
               *dash = strstr(last, "–"), *inner = strstr(begin, "–");
    const char *number = dash ? dash + strlen("–") : last + strcspn(last, "0123456789");
    if (end - first == 1)
        snprintf(buffer, size, "%s", begin);
    else
        snprintf(buffer, size, "%.*s–%s", (int)(inner ? inner - begin : (ptrdiff_t)strlen(begin)), begin,
                 number);
    size_t word = strlen("server ");
    if (is_server(buffer) && svg_text_width(buffer, SVG_SMALL) > most)
        memmove(buffer + 1, buffer + word, strlen(buffer + word) + 1);
    return buffer;
}

static void draw(const json_t *table, svg *s)
{
    svg_key keys[CLASS_COUNT];
    size_t used = 0, jobs, allowed = 1, most = s->narrow ? 6 : 8;
    while (allowed < figure_rows(table) && columns_shown(table, allowed + 1, &jobs) <= most) allowed++;
    size_t shown = columns_shown(table, allowed, &jobs);
    for (size_t c = 0; c < CLASS_COUNT; c++)
        if (figure_largest(table, FIRST_CLASS + c) > 0)
            keys[used++] = (svg_key){classes[c].color, classes[c].name};
    double left = 52, top = svg_legend(s, keys, used, 0, 12, s->width) + 40, bottom = top + 216,
           gap = s->narrow ? 8 : 14;
    double pitch = (s->width - left - gap * (double)jobs) / fmax((double)shown, 1),
           width = fmin(pitch * 0.62, 56), x = left + gap / 2;
    svg_axis axis = svg_axis_of(CELL_BYTES, 0, figure_largest(table, 3) * 1.02, 5, bottom, top);
    svg_y_axis(s, &axis, left, s->width, "");
    int most_lines = 1;
    for (size_t r = 0, end; r < figure_rows(table); r = end) {
        double begin = x;
        end = end_of_job(table, r);
        for (size_t i = r, n = 0, next; i < end && n < allowed; i = next, n++) {
            char ranks[64];
            next = end_of_column(table, i, end);
            draw_column(table, i, &axis, x + pitch / 2, width, pitch, s);
            svg_text(s, x + pitch / 2, bottom + 16, SVG_MIDDLE, "tick", pitch - 2,
                     ranks_of(table, i, next, pitch - 2, ranks, sizeof ranks));
            x += pitch;
        }
        int lines = svg_job(s, (begin + x) / 2, bottom + 34, x - begin + gap - 4, figure_label(table, r, 0));
        if (lines > most_lines) most_lines = lines;
        x += gap;
    }
    svg_text(s, left - 8, bottom + 16, SVG_END, "tick", 0, "rank");
    s->height = bottom + 26 + 14 * most_lines;
}

const report_figure figure_memory = {
    .name = "memory",
    .title = "Memory of each rank at its peak",
    .reading = "Logical bytes of the ledger by class. The bracket marks what a rank holds above the rank "
               "that holds least: the reducer's excess. Ranks within 1 % share a column; servers in separate "
               "processes have columns, too.",
    .half = true,
    .collect = collect,
    .draw = draw};
