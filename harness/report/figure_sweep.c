/* Figures of a sweep's table (harness/sweep): curves over one option, heat maps over two options, and a map
 * of the fastest series. */
#include "harness/report/figure_points.h"
#include "harness/report/significance.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void x_labels(svg *s, const axis_values *x, double left, double pitch, double y)
{
    int every = 1;
    for (int i = 0; i < x->count; i++)
        while (svg_text_width(x->texts[i], SVG_SMALL) > pitch * every - 4 && every < x->count) every++;
    for (int i = 0; i < x->count; i += every)
        svg_text(s, left + pitch * (i + 0.5), y + 16, SVG_MIDDLE, "tick", pitch * every, "%s", x->texts[i]);
    svg_text(s, left + pitch * x->count, y + 33, SVG_END, "tick", pitch * x->count, "%s", x->name);
}

/* Lists the distinct texts of a column with their colors. Returns the number of distinct texts. */
static size_t keys_of(const json_t *table, size_t name, size_t color, svg_key keys[MOST_SERIES])
{
    size_t count = 0;
    for (size_t r = 0; r < figure_rows(table); r++) {
        size_t k = 0;
        while (k < count && strcmp(keys[k].name, figure_label(table, r, name)) != 0) k++;
        if (k == count && count < MOST_SERIES)
            keys[count++] = (svg_key){figure_label(table, r, color), figure_label(table, r, name)};
    }
    return count;
}

/* ---- curves ----------------------------------------------------------------------------------------- */

/* Collects the curves. If there are more curves than a figure can hold, keeps only the points with the
 * largest value of a second numeric option. */
static json_t *collect_curves(const json_t *sweep)
{
    const char *x = points_numeric_axis(sweep, "gpus", NULL),
               *other = x ? points_numeric_axis(sweep, "link", x) : NULL;
    int count;
    json_t *table = points_table(sweep, x, NULL, &count), *point;
    if (!other || count < MOST_SERIES) return table;
    json_decref(table);
    json_t *some = json_copy((json_t *)sweep), *points = json_array();
    axis_values v = points_axis(sweep, other);
    size_t i;
    json_array_foreach(json_object_get(sweep, "points"), i, point)
    {
        if (strcmp(points_value(point, other), v.texts[v.count - 1]) == 0) json_array_append(points, point);
    }
    json_object_set_new(some, "points", points);
    table = points_table(some, x, NULL, &count);
    json_decref(some);
    return table;
}

static void draw_curves(const json_t *table, svg *s)
{
    axis_values x = axis_of_column(table, X);
    svg_key keys[MOST_SERIES];
    size_t count = keys_of(table, SERIES, COLOR, keys);
    double left = 56, top = svg_legend(s, keys, count) + 30, bottom = top + 230,
           pitch = (s->width - left) / x.count;
    svg_axis axis = svg_axis_of(CELL_RATE, 0, fmax(figure_largest(table, RATE), figure_largest(table, HIGH)),
                                5, bottom, top);
    svg_y_axis(s, &axis, left, s->width, "samples/s");
    for (size_t k = 0; k < count; k++) {
        bool begun = false;
        text_append(&s->body, "<path class=\"curve stroke-%s\" d=\"", keys[k].color);
        for (int i = 0; i < x.count; i++)
            for (size_t r = 0; r < figure_rows(table); r++) {
                double rate = figure_number(table, r, RATE);
                if (strcmp(figure_label(table, r, SERIES), keys[k].name) != 0 ||
                    strcmp(figure_label(table, r, X), x.texts[i]) != 0 || isnan(rate))
                    continue;
                text_append(&s->body, "%s%.1f %.1f", begun ? "L" : "M", left + pitch * (i + 0.5),
                            svg_at(&axis, rate));
                begun = true;
            }
        text_append(&s->body, "%s\"/>\n", begun ? "" : "M0 0");
    }
    for (size_t r = 0; r < figure_rows(table); r++) {
        double rate = figure_number(table, r, RATE), low = figure_number(table, r, LOW),
               high = figure_number(table, r, HIGH);
        double at = left + pitch * (axis_place(&x, figure_label(table, r, X)) + 0.5);
        if (isnan(rate)) continue;
        if (!isnan(low)) svg_line(s, at, svg_at(&axis, low), at, svg_at(&axis, high), "interval");
        svg_bar(s, at - 4, svg_at(&axis, rate) - 4, 8, 8, figure_label(table, r, COLOR), rate,
                "%s, %s %s: %s samples/s", figure_label(table, r, SERIES), x.name, figure_label(table, r, X),
                report_value(CELL_RATE, rate).text);
    }
    x_labels(s, &x, left, pitch, bottom);
    s->height = bottom + 40;
}

const report_figure figure_sweep_curves = {
    .name = "sweep-curves",
    .title = "Throughput over one option",
    .reading = "Medians over the rounds; vertical lines are their 95 % intervals.",
    .collect = collect_curves,
    .draw = draw_curves};

/* ---- heat maps -------------------------------------------------------------------------------------- */

/* Grid of a map. Columns are the values of x, and rows the values of y, with the first value at the
 * bottom. */
typedef struct grid {
    axis_values x, y;
    double left, top, width, height; /* corner of the grid, and size of a cell */
} grid;

static void draw_frame(svg *s, const grid *g, bool first)
{
    for (int j = 0; j < g->y.count; j++)
        svg_text(s, g->left - 8, g->top + g->height * (g->y.count - j - 0.5) + 4, SVG_END, "tick",
                 g->left - 10, "%s", g->y.texts[j]);
    x_labels(s, &g->x, g->left, g->width, g->top + g->height * g->y.count);
    if (first)
        svg_text(s, 0, g->top - 8, SVG_START, "tick", g->left + g->width * g->x.count, "%s", g->y.name);
}

static void draw_heat(const json_t *table, svg *s)
{
    axis_values names = axis_of_column(table, SERIES);
    int columns = s->narrow ? 1 : names.count < 3 ? names.count : 3;
    double panel = s->width / columns, from = 0, most = figure_largest(table, RATE), least = most;
    double bottom = 0;
    for (size_t r = 0; r < figure_rows(table); r++) least = fmin(least, figure_number(table, r, RATE));
    for (int k = 0; k < names.count; k++) {
        grid g = {.x = axis_of_column(table, X),
                  .y = axis_of_column(table, Y),
                  .left = panel * (k % columns) + 56,
                  .height = 30};
        if (k > 0 && k % columns == 0) from = bottom + 16;
        g.top = from + 44;
        g.width = (panel - 64) / g.x.count;
        svg_text(s, panel * (k % columns), from + 14, SVG_START, "strong", panel - 8, "%s", names.texts[k]);
        for (size_t r = 0; r < figure_rows(table); r++) {
            double rate = figure_number(table, r, RATE);
            char shade[24], style[48];
            if (strcmp(figure_label(table, r, SERIES), names.texts[k]) != 0 || isnan(rate)) continue;
            const char *x = figure_label(table, r, X), *y = figure_label(table, r, Y);
            double left = g.left + g.width * axis_place(&g.x, x),
                   top = g.top + g.height * (g.y.count - 1 - axis_place(&g.y, y));
            short_text value = report_value(CELL_RATE, rate);
            snprintf(shade, sizeof shade, "heat%d",
                     most > least ? (int)fmin(6, 7 * log(rate / least) / log(most / least)) : 3);
            snprintf(style, sizeof style, "tick on-%s", shade);
            svg_bar(s, left + 1, top + 1, g.width - 2, g.height - 2, shade, rate,
                    "%s, %s %s, %s %s: %s samples/s", names.texts[k], g.x.name, x, g.y.name, y, value.text);
            if (svg_text_width(value.text, SVG_SMALL) < g.width - 4)
                svg_text(s, left + g.width / 2, top + g.height / 2 + 4, SVG_MIDDLE, style, 0, "%s",
                         value.text);
        }
        draw_frame(s, &g, k % columns == 0);
        bottom = g.top + g.height * g.y.count + 40;
    }
    s->height = bottom;
}

const report_figure figure_sweep_heat = {
    .name = "sweep-heat",
    .title = "Throughput over two options",
    .reading = "Median samples/s over the rounds; darker cells are faster. All maps have one scale.",
    .collect = points_grid,
    .draw = draw_heat};

/* ---- who wins --------------------------------------------------------------------------------------- */

enum { WIN_X, WIN_Y, WINNER, FACTOR, NEXT, WIN_COLOR };

/* Finds the rows of a cell with the highest and the second highest rate. Returns false if the cell has fewer
 * than two rates. */
static bool find_best(const json_t *points, const char *x, const char *y, size_t *best, size_t *next)
{
    const size_t none = figure_rows(points);
    *best = *next = none;
    for (size_t r = 0; r < none; r++) {
        double rate = figure_number(points, r, RATE);
        if (strcmp(figure_label(points, r, X), x) != 0 || strcmp(figure_label(points, r, Y), y) != 0 ||
            isnan(rate))
            continue;
        if (*best == none || rate > figure_number(points, *best, RATE)) {
            *next = *best;
            *best = r;
        } else if (*next == none || rate > figure_number(points, *next, RATE)) {
            *next = r;
        }
    }
    return *next != none;
}

static json_t *collect_winners(const json_t *sweep)
{
    json_t *points = points_grid(sweep);
    text_buffer summary = {0};
    axis_values x = axis_of_column(points, X), y = axis_of_column(points, Y),
                names = axis_of_column(points, SERIES);
    const figure_column columns[] = {{"x", x.name, .format = FIGURE_TEXT},
                                     {"y", y.name, .format = FIGURE_TEXT},
                                     {"fastest", "fastest", .format = FIGURE_TEXT},
                                     {"factor", "times as fast as the next", .format = CELL_RATIO},
                                     {"next", "the next", .format = FIGURE_TEXT},
                                     {"color", "", .format = FIGURE_TEXT}};
    json_t *table = figure_table(columns, COUNT_OF(columns));
    for (int j = 0; names.count > 1 && j < y.count; j++)
        for (int i = 0; i < x.count; i++) {
            size_t best, next;
            if (!find_best(points, x.texts[i], y.texts[j], &best, &next)) continue;
            figure_add(table, "sssfss", x.texts[i], y.texts[j], figure_label(points, best, SERIES),
                       figure_number(points, best, RATE) / figure_number(points, next, RATE),
                       figure_label(points, next, SERIES), figure_label(points, best, COLOR));
        }
    for (int k = 0; k < names.count; k++) {
        int wins = 0;
        for (size_t r = 0; r < figure_rows(table); r++)
            wins += strcmp(figure_label(table, r, WINNER), names.texts[k]) == 0;
        text_append(&summary, "%s%s: %d of %zu", k ? ", " : "Fastest, in how many cells: ", names.texts[k],
                    wins, figure_rows(table));
    }
    text_append(&summary, ".");
    const json_t *all = json_object_get(sweep, "points");
    double rounds = report_number_at(sweep, "rounds");
    /* Virtual runs have no spread. */
    if (report_count_true(all, "simulated") < json_array_size(all) && rounds < SIGNIFICANCE_LEAST_ROUNDS)
        text_append(&summary,
                    " %s decide the colors; %d runs or more of each point show which differences are real.",
                    rounds > 1 ? "Medians of few runs" : "Single runs", SIGNIFICANCE_LEAST_ROUNDS);
    json_decref(points);
    return figure_summary(table, &summary);
}

/* Returns the row of the table for a cell, or the number of rows if the cell has no row. */
static size_t row_of(const json_t *table, const grid *g, int i, int j)
{
    size_t r = 0;
    while (r < figure_rows(table) && (axis_place(&g->x, figure_label(table, r, WIN_X)) != i ||
                                      axis_place(&g->y, figure_label(table, r, WIN_Y)) != j))
        r++;
    return r;
}

/* Returns the logarithm of the factor in a cell. The logarithm is negative if `winner` is not the fastest
 * series in this cell, and NaN if the cell has no row. */
static double factor_at(const json_t *table, const grid *g, const char *winner, int i, int j)
{
    size_t r = row_of(table, g, i, j);
    double size = log(figure_number(table, r, FACTOR));
    return strcmp(figure_label(table, r, WINNER), winner) == 0 ? size : -size;
}

/* Label with the factor of a contour line, written at the right end of the line. */
typedef struct line_label {
    double x, y, factor;
    const char *color;
} line_label;

typedef struct line_labels {
    line_label at[MOST_SERIES * 6];
    int count;
} line_labels;

/* Adds a label at (x, y). If there is already a label with this factor and color, moves the label to (x, y)
 * unless the label is farther to the right. */
static void note_line_end(line_labels *l, double factor, const char *color, double x, double y)
{
    int i = 0;
    while (i < l->count && (l->at[i].factor != factor || l->at[i].color != color)) i++;
    if (i == (int)COUNT_OF(l->at) || (i < l->count && x < l->at[i].x)) return;
    if (i == l->count) l->count++;
    l->at[i] = (line_label){x, y, factor, color};
}

static void draw_line_labels(const json_t *table, const grid *g, const line_labels *l, svg *s)
{
    for (int i = 0; i < l->count; i++) {
        char style[64];
        double x = l->at[i].x, y = l->at[i].y;
        bool apart = true;
        for (int j = 0; j < i; j++) apart = apart && (fabs(y - l->at[j].y) > 12 || fabs(x - l->at[j].x) > 36);
        if (!apart) continue;
        size_t row = row_of(table, g, (int)((x + 8 - g->left) / g->width),
                            g->y.count - 1 - (int)((y - g->top) / g->height));
        const char *color = row < figure_rows(table) ? figure_label(table, row, WIN_COLOR) : "none";
        snprintf(style, sizeof style, "tick halo stroke-%s on-%s", color, color);
        svg_text(s, x + 5, y + 4, SVG_START, style, 0, "%g×", l->at[i].factor);
    }
}

/* Draws the contour line at which `winner` is `factor` times as fast as the second fastest series. Computes
 * the line from the factors at the centers of cells by marching squares (Lorensen and Cline, 1987, in two
 * dimensions). */
static void draw_contour(const json_t *table, const grid *g, const svg_key *winner, double factor,
                         line_labels *labels, svg *s)
{
    double level = log(factor);
    for (int j = 0; j + 1 < g->y.count; j++)
        for (int i = 0; i + 1 < g->x.count; i++) {
            static const double from[4][2] = {{0, 0}, {1, 0}, {1, 1}, {0, 1}};
            double corner[4], at[4][2];
            for (int c = 0; c < 4; c++)
                corner[c] = factor_at(table, g, winner->name, i + (int)from[c][0], j + (int)from[c][1]);
            int found = 0;
            if (isnan(corner[0] + corner[1] + corner[2] + corner[3])) continue;
            for (int e = 0; e < 4; e++) {
                int next = (e + 1) % 4;
                if ((corner[e] < level) == (corner[next] < level)) continue;
                double share = (level - corner[e]) / (corner[next] - corner[e]);
                double u = from[e][0] + share * (from[next][0] - from[e][0]),
                       v = from[e][1] + share * (from[next][1] - from[e][1]);
                at[found][0] = g->left + g->width * (i + 0.5 + u);
                at[found++][1] = g->top + g->height * (g->y.count - 0.5 - j - v);
            }
            for (int e = 0; e + 1 < found; e += 2) {
                int last = at[e][0] > at[e + 1][0] ? e : e + 1;
                svg_line(s, at[e][0], at[e][1], at[e + 1][0], at[e + 1][1], "contour");
                note_line_end(labels, factor, winner->color, at[last][0], at[last][1]);
            }
        }
}

/* Draws the cell of a row of the table or, if `number` is true, the number in this cell. */
static void draw_cell(const json_t *table, const grid *g, size_t row, bool number, svg *s)
{
    const char *x = figure_label(table, row, WIN_X), *y = figure_label(table, row, WIN_Y),
               *color = figure_label(table, row, WIN_COLOR);
    double left = g->left + g->width * axis_place(&g->x, x),
           top = g->top + g->height * (g->y.count - 1 - axis_place(&g->y, y)),
           factor = figure_number(table, row, FACTOR);
    char value[32], style[64];
    snprintf(value, sizeof value, "%.2f×", factor);
    snprintf(style, sizeof style, "strong halo stroke-%s on-%s", color, color);
    if (!number)
        svg_bar(s, left + 0.5, top + 0.5, g->width - 1, g->height - 1, color, factor,
                "%s %s, %s %s: %s is %.2f times as fast as %s", g->x.name, x, g->y.name, y,
                figure_label(table, row, WINNER), factor, figure_label(table, row, NEXT));
    else if (svg_text_width(value, SVG_TEXT) < g->width / 2)
        svg_text(s, left + 8, top + 18, SVG_START, style, 0, "%s", value);
}

static void draw_winners(const json_t *table, svg *s)
{
    static const double factors[] = {1.1, 1.5, 2, 3, 5, 10};
    svg_key keys[MOST_SERIES];
    size_t count = keys_of(table, WINNER, WIN_COLOR, keys);
    grid g = {.x = axis_of_column(table, WIN_X), .y = axis_of_column(table, WIN_Y), .left = 56, .height = 56};
    line_labels labels = {.count = 0};
    g.top = svg_legend(s, keys, count) + 26;
    g.width = (s->width - g.left) / g.x.count;
    for (int numbers = 0; numbers < 2; numbers++) { /* cells, then lines, then numbers */
        for (size_t r = 0; r < figure_rows(table); r++) draw_cell(table, &g, r, numbers, s);
        for (size_t f = 0; !numbers && f < COUNT_OF(factors); f++)
            for (size_t k = 0; k < count; k++) draw_contour(table, &g, &keys[k], factors[f], &labels, s);
    }
    draw_line_labels(table, &g, &labels, s);
    draw_frame(s, &g, true);
    s->height = g.top + g.height * g.y.count + 40;
}

const report_figure figure_sweep_winners = {.name = "sweep-winners",
                                            .title = "Who wins",
                                            .reading =
                                                "The color is the fastest scheme, the number how many times "
                                                "as fast it is as the next one; lines connect equal "
                                                "factors of one scheme.",
                                            .collect = collect_winners,
                                            .draw = draw_winners};
