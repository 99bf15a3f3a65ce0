/* Figures of one step of all ranks on one clock, and of the buckets or keys of this step. */
#include "harness/report/figures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Returns the earliest begin of the recorded step on any rank, or NaN if no rank has a timeline. */
static double begin_of(const json_t *job)
{
    return report_smallest(json_object_get(job, "ranks"), "timeline.begin_s");
}

/* Returns true if the figures show the job. A job that does not communicate is shown only if no other job has
 * a timeline. */
static bool shows(const json_t *result, const json_t *job)
{
    size_t i;
    json_t *other;
    if (isnan(begin_of(job))) return false;
    json_array_foreach(json_object_get(result, "jobs"), i, other)
    {
        if (report_communicates(other) && !isnan(begin_of(other))) return report_communicates(job);
    }
    return true;
}

/* ---- the time line ---------------------------------------------------------------------------------- */

enum { JOB, RANK, WHAT, INDEX, BEGIN, END, COLOR };

static void collect_rank(const json_t *rank, const char *job, double zero, json_t *table)
{
    const json_t *timeline = json_object_get(rank, "timeline");
    double number = report_number_at(rank, "rank");
    size_t i;
    json_t *e;
    json_array_foreach(json_object_get(timeline, "parts"), i, e)
    {
        const char *part = report_text_at(e, "part");
        figure_add(table, "sfsfffs", job, number, part, NAN, report_number_at(e, "begin_s") - zero,
                   report_number_at(e, "end_s") - zero,
                   strcmp(part, "exposed_communication") == 0 ? "exposed" : part);
    }
    json_array_foreach(json_object_get(timeline, "messages"), i, e)
    {
        double begin = report_number_at(e, "started_s");
        if (isnan(begin)) begin = report_number_at(e, "launched_s");
        figure_add(table, "sfsfffs", job, number, report_text_at(e, "name"), report_number_at(e, "index"),
                   begin - zero, report_number_at(e, "finished_s") - zero, "message");
    }
}

static json_t *collect_timeline(const json_t *result)
{
    static const figure_column columns[] = {
        {"job", "", .format = FIGURE_TEXT},         {"rank", "rank", .format = CELL_COUNT},
        {"what", "what", .format = FIGURE_TEXT},    {"index", "index", .format = CELL_COUNT},
        {"begin_s", "begins", .format = CELL_TIME}, {"end_s", "ends", .format = CELL_TIME},
        {"color", "", .format = FIGURE_TEXT}};
    json_t *table = figure_table(columns, COUNT_OF(columns)), *job, *rank;
    text_buffer summary = {0};
    size_t i, r;
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        double zero = begin_of(job);
        if (!shows(result, job)) continue;
        short_text name = figure_job_name(job);
        json_array_foreach(json_object_get(job, "ranks"), r, rank)
        {
            collect_rank(rank, name.text, zero, table);
        }
        double end = report_largest(json_object_get(job, "ranks"), "timeline.end_s");
        text_append(&summary, "%s%s: step %.0f, %s", summary.length ? "; " : "", name.text,
                    report_number_at(job, "ranks.0.timeline.step"), report_value(CELL_TIME, end - zero).text);
    }
    text_append(&summary, ". A measured step whose time is near the median's; zero is its start.");
    return figure_summary(table, &summary);
}

enum { LANE = 18, MESSAGE = 6, MESSAGE_ROWS = 3, MARKS_WIDE = 3600, MARKS_NARROW = 1200 };

/* Chooses the row of a message: the first row without a message in flight, or the last row. */
static int message_row(double busy_until[MESSAGE_ROWS], double begin, double end)
{
    int row = 0;
    while (row < MESSAGE_ROWS - 1 && busy_until[row] > begin) row++;
    busy_until[row] = fmax(busy_until[row], end);
    return row;
}

/* Returns the largest number of message rows that a rank of the job needs. */
static int message_rows(const json_t *table, size_t first, size_t last)
{
    int most = 1;
    for (size_t i = first, end; i < last; i = end) {
        double busy_until[MESSAGE_ROWS] = {0};
        end = figure_end(table, i, 2);
        for (size_t m = i; m < end; m++) {
            if (strcmp(figure_label(table, m, COLOR), "message") != 0) continue;
            int row = message_row(busy_until, figure_number(table, m, BEGIN), figure_number(table, m, END));
            if (row + 1 > most) most = row + 1;
        }
    }
    return most;
}

/* ---- time axes -------------------------------------------------------------------------------------- */

static double last_end(const json_t *table, size_t first, size_t end, size_t column)
{
    double last = 0;
    for (; first < end; first++) last = fmax(last, figure_number(table, first, column));
    return last;
}

/* Returns true if all jobs share a time axis, and false if one job would be too short to be seen on a shared
 * axis. */
static bool share_an_axis(const json_t *table, size_t column)
{
    enum { MOST_APART = 5 };
    double most = 0, least = INFINITY;
    for (size_t r = 0, end; r < figure_rows(table); r = end) {
        end = figure_end(table, r, 1);
        double last = last_end(table, r, end, column);
        most = fmax(most, last);
        least = fmin(least, last);
    }
    return most <= MOST_APART * least;
}

static void draw_job_name(svg *s, const char *name, bool shared, double y)
{
    svg_text(s, 0, y, SVG_START, "strong", shared ? s->width : s->width - 130, "%s", name);
    if (!shared) svg_text(s, s->width, y, SVG_END, "tick", 0, "on its own time axis");
}

static void draw_rank(const json_t *table, size_t first, size_t end, const svg_axis *a, double y, svg *s)
{
    double busy_until[MESSAGE_ROWS] = {0};
    for (size_t i = first; i < end; i++) {
        double begin = figure_number(table, i, BEGIN), until = figure_number(table, i, END);
        double from = svg_at(a, fmax(begin, 0)), to = svg_at(a, fmin(until, a->high));
        const char *what = figure_label(table, i, WHAT), *color = figure_label(table, i, COLOR);
        char index[32] = "", text[256];
        bool message = strcmp(color, "message") == 0;
        if (to - from < (message ? 0 : 0.35)) continue;
        if (!isnan(figure_number(table, i, INDEX)))
            snprintf(index, sizeof index, " %.0f", figure_number(table, i, INDEX));
        snprintf(text, sizeof text, "%s, rank %.0f: %s%s, %s, from %s on", figure_label(table, i, JOB),
                 figure_number(table, i, RANK),
                 strcmp(color, "exposed") == 0 ? "exposed communication" : what, index,
                 report_value(CELL_TIME, until - begin).text, report_value(CELL_TIME, begin).text);
        if (message) {
            int row = message_row(busy_until, begin, until);
            svg_bar(s, from, y + LANE + 2 + row * (MESSAGE + 1), fmax(to - from - 0.4, 0.5), MESSAGE, color,
                    until - begin, "%s", text);
        } else {
            svg_bar(s, from, y, to - from, LANE, color, until - begin, "%s", text);
        }
    }
}

/* Draws the legend of the parts that occur, in the order of a step. Returns the y below the legend. */
static double draw_keys(const json_t *table, svg *s)
{
    static const svg_key all[] = {{"data", "data"},
                                  {"forward", "forward"},
                                  {"backward", "backward"},
                                  {"exposed", "exposed communication"},
                                  {"waiting", "waiting for other ranks"},
                                  {"optimizer", "optimizer"},
                                  {"other", "other"},
                                  {"message", "bucket or message in flight"}};
    svg_key used[sizeof all / sizeof all[0]];
    size_t count = 0;
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
        bool there = false;
        for (size_t i = 0; i < figure_rows(table) && !there; i++)
            there = strcmp(figure_label(table, i, COLOR), all[k].color) == 0;
        if (there) used[count++] = all[k];
    }
    return svg_legend(s, used, count);
}

/* Draws the rows [first, last) of a job. Returns the y below the rows. */
static double draw_job(const json_t *table, size_t first, size_t last, const svg_axis *axis, double left,
                       int most, double y, svg *s)
{
    double row_height = LANE + message_rows(table, first, last) * (MESSAGE + 1) + 10;
    int ranks = 0;
    for (size_t i = first, end; i < last; i = end) {
        end = figure_end(table, i, 2);
        if (++ranks > most) continue;
        double rank = figure_number(table, i, RANK);
        if (s->narrow) {
            svg_text(s, 0, y + 9, SVG_START, "tick halo", 0, "rank %.0f", rank);
            y += 14;
        } else {
            svg_text(s, left - 10, y + LANE - 5, SVG_END, "tick", 0, "rank %.0f", rank);
        }
        draw_rank(table, i, end, axis, y, s);
        y += row_height;
    }
    if (ranks > most) {
        svg_text(s, left, y + 7, SVG_START, "tick", 0, "%d further ranks are in the table", ranks - most);
        y += 16;
    }
    return y;
}

static void draw_timeline(const json_t *table, svg *s)
{
    double left = s->narrow ? 0 : 62, y = draw_keys(table, s) + 8;
    size_t marks = 1; /* Largest number of marks of a rank. */
    for (size_t i = 0, end; i < figure_rows(table); i = end) {
        end = figure_end(table, i, 2);
        if (end - i > marks) marks = end - i;
    }
    int most = (s->narrow ? MARKS_NARROW : MARKS_WIDE) / 2 / (int)marks, limit = s->narrow ? 4 : 8;
    bool shared = share_an_axis(table, END);
    most = most < 1 ? 1 : most > limit ? limit : most;
    for (size_t r = 0, end; r < figure_rows(table); r = end) {
        end = figure_end(table, r, 1);
        double high = shared ? figure_largest(table, END) : last_end(table, r, end, END);
        svg_axis axis = svg_axis_of(CELL_TIME, 0, high, s->narrow ? 4 : 10, left, s->width - 16);
        draw_job_name(s, figure_label(table, r, JOB), shared, y + 12);
        double top = y + 20;
        y = draw_job(table, r, end, &axis, left, most, y + 22, s);
        if (shared && end < figure_rows(table)) {
            svg_x_grid(s, &axis, top, y);
            y += 6;
        } else {
            svg_x_axis(s, &axis, top, y, "time since the step began");
            y += 48;
        }
    }
    s->height = y - 12;
}

const report_figure figure_timeline = {
    .name = "timeline",
    .title = "One step of all ranks, on one clock",
    .reading = "Each rank has a row for the work of its compute thread, and rows below for its transfers in "
               "flight: buckets of the ring, keys of the parameter server.",
    .collect = collect_timeline,
    .draw = draw_timeline};

/* ---- buckets ---------------------------------------------------------------------------------------- */

enum { BUCKET_JOB, BUCKET_NAME, READY, LAUNCHED, STARTED, FINISHED, TAKEN };

static json_t *collect_buckets(const json_t *result)
{
    static const figure_column columns[] = {{"job", "", .format = FIGURE_TEXT},
                                            {"bucket", "bucket or key", .format = FIGURE_TEXT},
                                            {"ready_s", "ready", .format = CELL_TIME},
                                            {"launched_s", "launched", .format = CELL_TIME},
                                            {"started_s", "starts to move", .format = CELL_TIME},
                                            {"finished_s", "finished", .format = CELL_TIME},
                                            {"taken_s", "taken", .format = CELL_TIME}};
    json_t *table = figure_table(columns, COUNT_OF(columns)), *job, *m;
    text_buffer summary = {0};
    size_t i, n;
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        double zero = begin_of(job);
        size_t before = figure_rows(table);
        if (!shows(result, job)) continue;
        short_text name = figure_job_name(job);
        json_array_foreach(report_at(job, "ranks.0.timeline.messages"), n, m)
        {
            /* Messages of the previous step are left out. */
            if (!(report_number_at(m, "ready_s") >= zero)) continue;
            const char *kind = report_text_at(m, "name");
            char bucket[64];
            snprintf(bucket, sizeof bucket, "%s %.0f", strstr(kind, "key") ? "key" : kind,
                     report_number_at(m, "index"));
            json_t *row = figure_add(table, "ss", name.text, bucket);
            for (size_t c = READY; c < COUNT_OF(columns); c++)
                figure_put(row, report_number_at(m, columns[c].key) - zero);
        }
        if (figure_rows(table) > before)
            text_append(&summary, "%s%s: %zu in a step",
                        summary.length ? ", " : "Buckets or keys of rank 0: ", name.text,
                        figure_rows(table) - before);
    }
    text_append(&summary, ".");
    return figure_summary(table, &summary);
}

enum { BUCKET_ROWS = 16 };

static const svg_key bucket_keys[] = {
    {"waiting", "ready, not yet moving"}, {"message", "in flight"}, {"other", "done, not yet taken"}};

static void draw_bucket(const json_t *table, size_t r, const svg_axis *axis, double left, double y, svg *s)
{
    const char *name = figure_label(table, r, BUCKET_NAME);
    double at[] = {figure_number(table, r, READY), figure_number(table, r, STARTED),
                   figure_number(table, r, FINISHED), figure_number(table, r, TAKEN)};
    svg_text(s, left - 10, y + 10, SVG_END, "tick", left - 12, "%s", name);
    for (int k = 0; k < 3; k++) {
        double from = svg_at(axis, fmax(at[k], axis->low)), to = svg_at(axis, at[k + 1]),
               took = at[k + 1] - at[k];
        bool done = k == 2; /* a thin bar */
        if (!(to > from)) continue;
        svg_bar(s, from, y + (done ? 4 : 0), to - from, done ? 4 : 12, bucket_keys[k].color, took,
                "%s, %s: %s, %s", figure_label(table, r, BUCKET_JOB), name, bucket_keys[k].name,
                report_value(CELL_TIME, took).text);
    }
}

static void draw_buckets(const json_t *table, svg *s)
{
    double left = 76, y = svg_legend(s, bucket_keys, 3) + 8;
    bool shared = share_an_axis(table, FINISHED);
    for (size_t r = 0, end; r < figure_rows(table); r = end) {
        end = figure_end(table, r, 1);
        size_t from = shared ? 0 : r, to = shared ? figure_rows(table) : end, shown = 0;
        double low = INFINITY,
               high = fmax(last_end(table, from, to, FINISHED), last_end(table, from, to, TAKEN));
        for (size_t i = from; i < to; i++) low = fmin(low, figure_number(table, i, READY));
        svg_axis axis = svg_axis_of(CELL_TIME, fmax(low, 0), high, s->narrow ? 4 : 5, left, s->width - 16);
        draw_job_name(s, figure_label(table, r, BUCKET_JOB), shared, y + 14);
        double top = y + 22;
        y += 24;
        for (; r + shown < end && shown < BUCKET_ROWS; shown++, y += 16)
            draw_bucket(table, r + shown, &axis, left, y, s);
        if (r + shown < end) {
            svg_text(s, left, y + 11, SVG_START, "tick", 0, "and %zu more, in the table", end - r - shown);
            y += 18;
        }
        if (shared && end < figure_rows(table)) {
            svg_x_grid(s, &axis, top, y);
        } else {
            svg_x_axis(s, &axis, top, y + 4, "time since the step began");
            y += 46;
        }
    }
    s->height = y - 4;
}

const report_figure figure_buckets = {
    .name = "buckets",
    .title = "The life of a bucket",
    .reading = "The buckets or keys of rank 0 in the same step: from the last gradient of a bucket, over its "
               "transfer, to the end of the wait for the transfer.",
    .half = true,
    .collect = collect_buckets,
    .draw = draw_buckets};
