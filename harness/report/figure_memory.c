/* Figure of the peak memory by class. A column shows a rank, several ranks with equal memory, or a server in
 * a separate process. */
#include "harness/report/figures.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 1, PEAK = 3, EXCESS, FIRST_CLASS };

static const figure_column columns[] = {{"job", "", .format = FIGURE_TEXT},
                                        {"ranks", "ranks", .format = FIGURE_TEXT},
                                        {"count", "ranks alike", .format = CELL_COUNT},
                                        {"peak_bytes", "peak", .format = CELL_BYTES},
                                        {"excess_bytes", "above the least", .format = CELL_BYTES},
                                        {"parameters_bytes", "parameters", CELL_BYTES, "parameters"},
                                        {"gradients_bytes", "gradients", CELL_BYTES, "backward"},
                                        {"optimizer_state_bytes", "optimizer state", CELL_BYTES, "optimizer"},
                                        {"activations_bytes", "activations", CELL_BYTES, "forward"},
                                        {"outputs_and_loss_bytes", "outputs and loss", CELL_BYTES, "outputs"},
                                        {"replicas_bytes", "replicas", CELL_BYTES, "replicas"},
                                        {"gathered_units_bytes", "gathered units", CELL_BYTES, "gathered"},
                                        {"buckets_bytes", "buckets, sums", CELL_BYTES, "exposed"},
                                        {"workspace_bytes", "workspace", CELL_BYTES, "other"},
                                        {"batch_bytes", "batch", CELL_BYTES, "data"}};

static void add_row(json_t *table, const json_t *job, const char *label, size_t count, const json_t *member,
                    double least)
{
    double total = report_number_at(member, "memory.total.peak_bytes");
    json_t *row =
        figure_add(table, "ssfff", figure_job_name(job).text, label, (double)count, total, total - least);
    for (size_t c = FIRST_CLASS; c < COUNT_OF(columns); c++) {
        char path[64];
        snprintf(path, sizeof path, "memory.peak_classes.%.*s",
                 (int)(strlen(columns[c].key) - strlen("_bytes")), columns[c].key);
        figure_put(row, report_number_at(member, path));
    }
}

/* Adds rows for the ranks, and then for the servers in separate processes. The memory of a server is not
 * compared with the memory of the ranks. */
static void collect_job(const json_t *job, json_t *table)
{
    const json_t *ranks = json_object_get(job, "ranks");
    json_t *server;
    char label[48];
    size_t i;
    for (size_t first = 0, count; first < json_array_size(ranks); first += count) {
        count = report_alike(ranks, first, "memory.peak_classes");
        int length = snprintf(label, sizeof label, "%zu", first);
        if (count > 1) snprintf(label + length, sizeof label - (size_t)length, "–%zu", first + count - 1);
        add_row(table, job, label, count, json_array_get(ranks, first),
                report_smallest(ranks, "memory.total.peak_bytes"));
    }
    json_array_foreach(json_object_get(job, "servers"), i, server)
    {
        snprintf(label, sizeof label, "server %zu", i);
        add_row(table, job, label, 1, server, NAN);
    }
}

static json_t *collect(const json_t *result)
{
    json_t *table = figure_table(columns, COUNT_OF(columns)), *job;
    text_buffer summary = {0};
    size_t i;
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        double most = report_number_at(job, "memory_imbalance.maximum_bytes"),
               above = report_number_at(job, "memory_imbalance.maximum_minus_minimum_bytes");
        if (isnan(report_number_at(job, "ranks.0.memory.total.peak_bytes"))) continue;
        collect_job(job, table);
        text_append(&summary, "%s%s %s",
                    summary.length ? ", " : "Largest peak of a rank: ", figure_job_name(job).text,
                    report_value(CELL_BYTES, most).text);
        if (above > 0)
            text_append(&summary, " (rank %.0f, %s above the least)",
                        report_number_at(job, "memory_imbalance.rank"), report_value(CELL_BYTES, above).text);
    }
    text_append(&summary, ".");
    return figure_summary(table, &summary);
}

static bool is_server(const char *label)
{
    return strncmp(label, "server", 6) == 0;
}

static void draw_column(const json_t *table, size_t row, const svg_axis *a, double center, double width,
                        double pitch, svg *s)
{
    double sum = 0, total = figure_number(table, row, PEAK), excess = figure_number(table, row, EXCESS);
    const char *job = figure_label(table, row, 0), *ranks = figure_label(table, row, RANKS);
    char text[64];
    for (size_t c = FIRST_CLASS; c < COUNT_OF(columns); c++) {
        double bytes = figure_number(table, row, c);
        if (!(bytes > 0)) continue;
        double y = svg_at(a, sum + bytes);
        svg_bar(s, center - width / 2, y, width, svg_at(a, sum) - y, columns[c].color, bytes,
                "%s, %s%s: %s, %s", job, is_server(ranks) ? "" : "rank ", ranks, columns[c].name,
                report_value(CELL_BYTES, bytes).text);
        sum += bytes;
    }
    double top = svg_at(a, sum);
    snprintf(text, sizeof text, "%.*f", total / a->unit < 10 ? 2 : 1, total / a->unit);
    if (svg_text_width(text, SVG_SMALL) <= pitch - 2)
        svg_text(s, center, top - 6, SVG_MIDDLE, "tick", 0, "%s", text);
    if (!(excess > 0.005 * total)) return;
    /* Marks how much more memory the rank has than the rank with the least memory. */
    double least = svg_at(a, total - excess), right = center + width / 2 + 3;
    svg_line(s, right, top, right, least, "excess");
    svg_line(s, center - width / 2, least, right + 3, least, "excess");
    svg_line(s, right - 3, top, right + 3, top, "excess");
    snprintf(text, sizeof text, "+%s", report_value(CELL_BYTES, excess).text);
    if (svg_text_width(text, SVG_SMALL) <= pitch - 2)
        svg_text(s, center, top - 20, SVG_MIDDLE, "excess-label", 0, "%s", text);
}

/* Returns the first row of the next column. Rows from `first` on whose peaks are within 1 % of the peak of
 * `first` share a column. */
static size_t end_of_column(const json_t *table, size_t first, size_t end)
{
    double peak = figure_number(table, first, PEAK);
    size_t next = first + 1;
    while (next < end && fabs(figure_number(table, next, PEAK) - peak) < 0.01 * peak &&
           is_server(figure_label(table, next, RANKS)) == is_server(figure_label(table, first, RANKS)))
        next++;
    return next;
}

/* Counts the columns of all jobs if each job has at most `allowed` columns. */
static size_t columns_shown(const json_t *table, size_t allowed, size_t *jobs)
{
    size_t shown = *jobs = 0;
    for (size_t r = 0, end; r < figure_rows(table); r = end, (*jobs)++) {
        end = figure_end(table, r, 1);
        for (size_t i = r, n = 0; i < end && n < allowed; n++, shown++) i = end_of_column(table, i, end);
    }
    return shown;
}

/* Names the ranks of the rows [first, end), such as "1–7". The label of a row may already be a range. Servers
 * are named "server 0–1", or "s0–1" if the long name is wider than `most` px. */
static char *ranks_of(const json_t *table, size_t first, size_t end, double most, char *buffer, size_t size)
{
    const char *begin = figure_label(table, first, RANKS), *last = figure_label(table, end - 1, RANKS),
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
    size_t jobs, allowed = 1, most = s->narrow ? 6 : 8;
    while (allowed < figure_rows(table) && columns_shown(table, allowed + 1, &jobs) <= most) allowed++;
    size_t shown = columns_shown(table, allowed, &jobs);
    double left = 52, top = figure_legend(table, s) + 40, bottom = top + 216, gap = s->narrow ? 8 : 14;
    double pitch = (s->width - left - gap * (double)jobs) / fmax((double)shown, 1),
           width = fmin(pitch * 0.62, 56), x = left + gap / 2;
    svg_axis axis = svg_axis_of(CELL_BYTES, 0, figure_largest(table, PEAK) * 1.02, 5, bottom, top);
    svg_y_axis(s, &axis, left, s->width, "");
    int most_lines = 1;
    for (size_t r = 0, end; r < figure_rows(table); r = end) {
        double begin = x;
        end = figure_end(table, r, 1);
        for (size_t i = r, n = 0, next; i < end && n < allowed; i = next, n++) {
            char ranks[64];
            next = end_of_column(table, i, end);
            draw_column(table, i, &axis, x + pitch / 2, width, pitch, s);
            svg_text(s, x + pitch / 2, bottom + 16, SVG_MIDDLE, "tick", pitch - 2, "%s",
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
