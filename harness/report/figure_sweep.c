/* Figures of a sweep's table (harness/sweep): curves over one option, heat maps over two, and the map of
 * who wins. */
#include "harness/report/figures.h"
#include "harness/report/significance.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_VALUES = 64, MOST_SERIES = 8, LABEL = 128 };

/* ---- axes and series -------------------------------------------------------------------------------- */

/* Returns the number that an option's text stands for: a number, size, time or rate. "10Gbit/s,50us" is
 * the rate. NaN if the text is a word. */
static double number_of(const char *text)
{
    char head[64], *end;
    int64_t value;
    snprintf(head, sizeof head, "%.*s", (int)strcspn(text, ","), text);
    double plain = strtod(head, &end);
    if (end != head && *end == '\0') return plain;
    if (text_parse_rate("", head, &value) == STATUS_OK || text_parse_bytes("", head, &value) == STATUS_OK ||
        text_parse_duration_ns("", head, &value) == STATUS_OK)
        plain = (double)value;
    else
        plain = NAN;
    error_clear();
    return plain;
}

static const char *value_of(const json_t *point, const char *axis)
{
    const char *text = json_string_value(json_object_get(json_object_get(point, "values"), axis));
    return text ? text : "";
}

typedef struct axis_values {
    const char *name, *texts[MOST_VALUES];
    int count;
    bool numeric;
} axis_values;

static int by_number(const void *a, const void *b)
{
    double x = number_of(*(const char *const *)a), y = number_of(*(const char *const *)b);
    return (x > y) - (x < y);
}

static axis_values values_of(const json_t *sweep, const char *name)
{
    axis_values v = {.name = name, .numeric = true};
    size_t i;
    json_t *point;
    json_array_foreach(json_object_get(sweep, "points"), i, point)
    {
        const char *text = value_of(point, name);
        bool seen = !text[0];
        for (int k = 0; k < v.count && !seen; k++) seen = strcmp(v.texts[k], text) == 0;
        if (seen || v.count == MOST_VALUES) continue;
        v.texts[v.count++] = text;
        v.numeric = v.numeric && !isnan(number_of(text));
    }
    if (v.numeric) qsort(v.texts, (size_t)v.count, sizeof *v.texts, by_number);
    return v;
}

static int place_of(const axis_values *v, const char *text)
{
    for (int i = 0; i < v->count; i++)
        if (strcmp(v->texts[i], text) == 0) return i;
    return -1;
}

/* Returns the numeric axis with the most values, except axis `not`. Prefers `first`. Returns NULL if no
 * axis has two values. */
static const char *numeric_axis(const json_t *sweep, const char *first, const char * not )
{
    const char *found = NULL;
    int most = 1;
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(sweep, "vary"), i, name)
    {
        const char *text = json_string_value(name);
        axis_values v = values_of(sweep, text);
        int weight = strcmp(text, first) == 0 ? MOST_VALUES + 1 : v.count;
        if (!v.numeric || v.count < 2 || weight <= most || (not &&strcmp(text, not ) == 0)) continue;
        found = text;
        most = weight;
    }
    return found;
}

/* Names a point by its values, except on two axes: "ring", "ps servers=4". */
static void series_of(const json_t *sweep, const json_t *point, const char *x, const char *y,
                      char label[LABEL])
{
    int used = 0;
    label[0] = '\0';
    for (int names = 1; names >= 0; names--) { /* schemes first */
        size_t i;
        json_t *axis;
        json_array_foreach(json_object_get(sweep, "vary"), i, axis)
        {
            const char *name = json_string_value(axis), *value = value_of(point, name);
            bool scheme = strcmp(name, "mode") == 0 || strcmp(name, "policy") == 0;
            bool fixed = strcmp(name, x) == 0 || (y && strcmp(name, y) == 0);
            if (scheme != names || fixed || !value[0] || used >= LABEL - 80) continue;
            used += snprintf(label + used, (size_t)(LABEL - used), "%s%.32s%s%.32s", used ? " " : "",
                             scheme ? "" : name, scheme ? "" : "=", value);
        }
    }
    if (!used) snprintf(label, LABEL, "samples/s");
}

typedef struct series {
    char label[MOST_SERIES][LABEL];
    int count;
} series;

static series series_in(const json_t *sweep, const char *x, const char *y)
{
    series s = {.count = 0};
    char label[LABEL];
    size_t i;
    json_t *point;
    json_array_foreach(json_object_get(sweep, "points"), i, point)
    {
        bool seen = false;
        series_of(sweep, point, x, y, label);
        for (int k = 0; k < s.count && !seen; k++) seen = strcmp(s.label[k], label) == 0;
        if (!seen && s.count < MOST_SERIES) snprintf(s.label[s.count++], LABEL, "%s", label);
    }
    return s;
}

/* Returns the color of a series. Engines have colors of their kind; any other series gets the next free
 * one. */
static const char *series_color(const series *s, int number)
{
    static const char *const ps[] = {"ps", "ps2", "replicas"}, *const ring[] = {"ring", "ring2", "outputs"},
                             *const others[] = {"backward", "exposed",  "optimizer", "none",
                                                "outputs",  "replicas", "data",      "forward"};
    int before = 0;
    for (int i = 0; i < number; i++) before += strncmp(s->label[i], s->label[number], 2) == 0;
    if (strncmp(s->label[number], "ps", 2) == 0 && before < 3) return ps[before];
    if (strncmp(s->label[number], "ring", 4) == 0 && before < 3) return ring[before];
    return others[number];
}

static json_t *collect(const json_t *sweep, const char *x, const char *y)
{
    json_t *table = figure_table(), *point;
    text_buffer summary = {0};
    char label[LABEL];
    size_t i;
    if (!x) return table;
    series all = series_in(sweep, x, y);
    figure_column(table, "series", "series", FIGURE_TEXT, NULL);
    figure_column(table, "x", x, FIGURE_TEXT, NULL);
    figure_column(table, "y", y ? y : "", FIGURE_TEXT, NULL);
    figure_column(table, "samples_per_s", "samples/s", CELL_RATE, NULL);
    figure_column(table, "low", "95 % from", CELL_RATE, NULL);
    figure_column(table, "high", "to", CELL_RATE, NULL);
    figure_column(table, "color", "", FIGURE_TEXT, NULL);
    json_array_foreach(json_object_get(sweep, "points"), i, point)
    {
        int number = 0;
        series_of(sweep, point, x, y, label);
        while (number < all.count && strcmp(all.label[number], label) != 0) number++;
        if (number == all.count || !value_of(point, x)[0]) continue;
        json_t *row = figure_row(table);
        figure_put_text(row, label);
        figure_put_text(row, value_of(point, x));
        figure_put_text(row, y ? value_of(point, y) : "");
        figure_put(row, report_number_at(point, "samples_per_s.median"));
        figure_put(row, report_number_at(point, "samples_per_s.low"));
        figure_put(row, report_number_at(point, "samples_per_s.high"));
        figure_put_text(row, series_color(&all, number));
    }
    text_append(&summary, "Median samples/s of %zu points over %s%s%s.", figure_rows(table), x,
                y ? " and " : "", y ? y : "");
    figure_summary(table, &summary);
    return table;
}

enum { SERIES, X, Y, RATE, LOW, HIGH, COLOR };

/* Lists the texts in a column of a table, in numeric order. */
static axis_values texts_in(const json_t *table, size_t column)
{
    axis_values v = {.name = figure_column_text(table, column, "name"), .numeric = true};
    for (size_t r = 0; r < figure_rows(table); r++) {
        const char *text = figure_label(table, r, column);
        if (place_of(&v, text) >= 0 || v.count == MOST_VALUES) continue;
        v.texts[v.count++] = text;
        v.numeric = v.numeric && !isnan(number_of(text));
    }
    if (v.numeric) qsort(v.texts, (size_t)v.count, sizeof *v.texts, by_number);
    return v;
}

static void x_labels(svg *s, const axis_values *x, double left, double pitch, double y)
{
    int every = 1;
    for (int i = 0; i < x->count; i++)
        while (svg_text_width(x->texts[i], SVG_SMALL) > pitch * every - 4 && every < x->count) every++;
    for (int i = 0; i < x->count; i += every)
        svg_text(s, left + pitch * (i + 0.5), y + 16, SVG_MIDDLE, "tick", pitch * every, x->texts[i]);
    svg_text(s, left + pitch * x->count, y + 33, SVG_END, "tick", pitch * x->count, x->name);
}

/* ---- curves ----------------------------------------------------------------------------------------- */

/* Collects the curves. If there are more lines than a figure can hold, keeps the lines at the largest
 * value of another option. */
static json_t *collect_curves(const json_t *sweep)
{
    const char *x = numeric_axis(sweep, "gpus", NULL), *other = x ? numeric_axis(sweep, "link", x) : NULL;
    if (!other || series_in(sweep, x, NULL).count < MOST_SERIES) return collect(sweep, x, NULL);
    json_t *some = json_copy((json_t *)sweep), *points = json_array(), *point;
    axis_values v = values_of(sweep, other);
    size_t i;
    json_array_foreach(json_object_get(sweep, "points"), i, point)
    {
        if (strcmp(value_of(point, other), v.texts[v.count - 1]) == 0) json_array_append(points, point);
    }
    json_object_set_new(some, "points", points);
    json_t *table = collect(some, x, NULL);
    json_decref(some);
    return table;
}

static void draw_curves(const json_t *table, svg *s)
{
    axis_values x = texts_in(table, X);
    svg_key keys[MOST_SERIES];
    size_t count = 0;
    for (size_t r = 0; r < figure_rows(table); r++) {
        bool seen = false;
        for (size_t k = 0; k < count && !seen; k++)
            seen = strcmp(keys[k].name, figure_label(table, r, SERIES)) == 0;
        if (!seen && count < MOST_SERIES)
            keys[count++] = (svg_key){figure_label(table, r, COLOR), figure_label(table, r, SERIES)};
    }
    double left = 56, top = svg_legend(s, keys, count, 0, 12, s->width) + 30, bottom = top + 230,
           pitch = (s->width - left) / x.count;
    svg_axis axis = svg_axis_of(CELL_RATE, 0, fmax(figure_largest(table, RATE), figure_largest(table, HIGH)),
                                5, bottom, top);
    svg_y_axis(s, &axis, left, s->width, "samples/s");
    for (size_t k = 0; k < count; k++) {
        bool begun = false;
        text_append(&s->body, "<path class=\"curve stroke-%s\" d=\"", keys[k].color);
        for (int i = 0; i < x.count; i++)
            for (size_t r = 0; r < figure_rows(table); r++) {
                if (strcmp(figure_label(table, r, SERIES), keys[k].name) != 0 ||
                    place_of(&x, figure_label(table, r, X)) != i)
                    continue;
                if (isnan(figure_number(table, r, RATE))) continue;
                text_append(&s->body, "%s%.1f %.1f", begun ? "L" : "M", left + pitch * (i + 0.5),
                            svg_at(&axis, figure_number(table, r, RATE)));
                begun = true;
            }
        text_append(&s->body, "%s\"/>\n", begun ? "" : "M0 0");
    }
    for (size_t r = 0; r < figure_rows(table); r++) {
        double rate = figure_number(table, r, RATE), low = figure_number(table, r, LOW),
               high = figure_number(table, r, HIGH);
        double at = left + pitch * (place_of(&x, figure_label(table, r, X)) + 0.5);
        char hover[320], value[32];
        if (isnan(rate)) continue;
        if (!isnan(low)) svg_line(s, at, svg_at(&axis, low), at, svg_at(&axis, high), "interval");
        snprintf(hover, sizeof hover, "%s, %s %s: %s samples/s", figure_label(table, r, SERIES), x.name,
                 figure_label(table, r, X), svg_value(value, sizeof value, CELL_RATE, rate));
        svg_bar(s, at - 4, svg_at(&axis, rate) - 4, 8, 8, figure_label(table, r, COLOR), rate, hover);
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

static json_t *collect_grid(const json_t *sweep)
{
    const char *x = numeric_axis(sweep, "link", NULL), *y = x ? numeric_axis(sweep, "gpus", x) : NULL;
    return collect(sweep, y ? x : NULL, y);
}

/* Grid of a map: columns of x, and rows of y with the first y at the bottom. */
typedef struct grid {
    axis_values x, y;
    double left, top, width, height; /* place of the grid; size of a cell */
} grid;

static void draw_frame(svg *s, const grid *g, bool first)
{
    for (int j = 0; j < g->y.count; j++)
        svg_text(s, g->left - 8, g->top + g->height * (g->y.count - j - 0.5) + 4, SVG_END, "tick",
                 g->left - 10, g->y.texts[j]);
    x_labels(s, &g->x, g->left, g->width, g->top + g->height * g->y.count);
    if (first) svg_text(s, 0, g->top - 8, SVG_START, "tick", g->left + g->width * g->x.count, g->y.name);
}

static void draw_heat(const json_t *table, svg *s)
{
    axis_values names = texts_in(table, SERIES);
    int columns = s->narrow ? 1 : names.count < 3 ? names.count : 3;
    double panel = s->width / columns, y = 0, most = figure_largest(table, RATE), least = most;
    double bottom = 0;
    for (size_t r = 0; r < figure_rows(table); r++) least = fmin(least, figure_number(table, r, RATE));
    for (int k = 0; k < names.count; k++) {
        grid g = {.x = texts_in(table, X),
                  .y = texts_in(table, Y),
                  .left = panel * (k % columns) + 56,
                  .height = 30};
        if (k > 0 && k % columns == 0) y = bottom + 16;
        g.top = y + 44;
        g.width = (panel - 64) / g.x.count;
        svg_text(s, panel * (k % columns), y + 14, SVG_START, "strong", panel - 8, names.texts[k]);
        for (size_t r = 0; r < figure_rows(table); r++) {
            double rate = figure_number(table, r, RATE);
            char hover[320], value[32], shade[24], style[48];
            if (strcmp(figure_label(table, r, SERIES), names.texts[k]) != 0 || isnan(rate)) continue;
            int i = place_of(&g.x, figure_label(table, r, X)), j = place_of(&g.y, figure_label(table, r, Y));
            double left = g.left + g.width * i, top = g.top + g.height * (g.y.count - 1 - j);
            snprintf(shade, sizeof shade, "heat%d",
                     most > least ? (int)fmin(6, 7 * log(rate / least) / log(most / least)) : 3);
            snprintf(style, sizeof style, "tick on-%s", shade);
            snprintf(hover, sizeof hover, "%s, %s %s, %s %s: %s samples/s", names.texts[k], g.x.name,
                     figure_label(table, r, X), g.y.name, figure_label(table, r, Y),
                     svg_value(value, sizeof value, CELL_RATE, rate));
            svg_bar(s, left + 1, top + 1, g.width - 2, g.height - 2, shade, rate, hover);
            if (svg_text_width(value, SVG_SMALL) < g.width - 4)
                svg_text(s, left + g.width / 2, top + g.height / 2 + 4, SVG_MIDDLE, style, 0, value);
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
    .collect = collect_grid,
    .draw = draw_heat};

/* ---- who wins --------------------------------------------------------------------------------------- */

enum { WIN_X, WIN_Y, WINNER, FACTOR, NEXT, WIN_COLOR };

/* Returns true if a point was measured. In virtual time a run has no spread. */
static bool is_measured(const json_t *sweep)
{
    size_t i;
    json_t *point;
    json_array_foreach(json_object_get(sweep, "points"), i, point)
    {
        if (!json_is_true(json_object_get(point, "simulated"))) return true;
    }
    return false;
}

static void append_spread(const json_t *sweep, text_buffer *out)
{
    double rounds = report_number_at(sweep, "rounds");
    if (!is_measured(sweep) || !(rounds < SIGNIFICANCE_LEAST_ROUNDS)) return;
    text_append(out, " %s decide the colors; %d runs or more of each point show which differences are real.",
                rounds > 1 ? "Medians of few runs" : "Single runs", SIGNIFICANCE_LEAST_ROUNDS);
}

static json_t *collect_winners(const json_t *sweep)
{
    json_t *points = collect_grid(sweep), *table = figure_table();
    text_buffer summary = {0};
    axis_values x = texts_in(points, X), y = texts_in(points, Y), names = texts_in(points, SERIES);
    figure_column(table, "x", x.name, FIGURE_TEXT, NULL);
    figure_column(table, "y", y.name, FIGURE_TEXT, NULL);
    figure_column(table, "fastest", "fastest", FIGURE_TEXT, NULL);
    figure_column(table, "factor", "times as fast as the next", CELL_RATIO, NULL);
    figure_column(table, "next", "the next", FIGURE_TEXT, NULL);
    figure_column(table, "color", "", FIGURE_TEXT, NULL);
    for (int j = 0; names.count > 1 && j < y.count; j++)
        for (int i = 0; i < x.count; i++) {
            size_t best = 0, next = 0;
            double most = NAN, second = NAN;
            for (size_t r = 0; r < figure_rows(points); r++) {
                double rate = figure_number(points, r, RATE);
                if (place_of(&x, figure_label(points, r, X)) != i ||
                    place_of(&y, figure_label(points, r, Y)) != j || isnan(rate))
                    continue;
                if (isnan(most) || rate > most) {
                    second = most;
                    next = best;
                    most = rate;
                    best = r;
                } else if (isnan(second) || rate > second) {
                    second = rate;
                    next = r;
                }
            }
            if (isnan(second)) continue;
            json_t *row = figure_row(table);
            figure_put_text(row, x.texts[i]);
            figure_put_text(row, y.texts[j]);
            figure_put_text(row, figure_label(points, best, SERIES));
            figure_put(row, most / second);
            figure_put_text(row, figure_label(points, next, SERIES));
            figure_put_text(row, figure_label(points, best, COLOR));
        }
    for (int k = 0; k < names.count; k++) {
        int wins = 0;
        for (size_t r = 0; r < figure_rows(table); r++)
            wins += strcmp(figure_label(table, r, WINNER), names.texts[k]) == 0;
        text_append(&summary, "%s%s: %d of %zu", k ? ", " : "Fastest, in how many cells: ", names.texts[k],
                    wins, figure_rows(table));
    }
    text_append(&summary, ".");
    append_spread(sweep, &summary);
    figure_summary(table, &summary);
    json_decref(points);
    return table;
}

/* Returns the logarithm of the factor at the center of a cell, negative if `winner` does not win. NaN if
 * there is no cell. */
static double factor_at(const json_t *table, const grid *g, const char *winner, int i, int j)
{
    for (size_t r = 0; r < figure_rows(table); r++) {
        if (place_of(&g->x, figure_label(table, r, WIN_X)) != i ||
            place_of(&g->y, figure_label(table, r, WIN_Y)) != j)
            continue;
        double size = log(figure_number(table, r, FACTOR));
        return strcmp(figure_label(table, r, WINNER), winner) == 0 ? size : -size;
    }
    return NAN;
}

/* Returns the point at which the line from a to b crosses `level`, as a share of the line, or NaN. */
static double crossing(double a, double b, double level)
{
    return (a < level) != (b < level) ? (level - a) / (b - a) : NAN;
}

/* Factors of the lines, written at their right ends. */
typedef struct line_labels {
    struct {
        double x, y, factor;
        const char *color;
    } at[MOST_SERIES * 6];
    int count;
} line_labels;

static void note_line_end(line_labels *l, double factor, const char *color, double x, double y)
{
    int i = 0;
    while (i < l->count && (l->at[i].factor != factor || l->at[i].color != color)) i++;
    if (i == (int)(sizeof l->at / sizeof l->at[0])) return;
    if (i == l->count)
        l->count++;
    else if (x < l->at[i].x)
        return;
    l->at[i].x = x;
    l->at[i].y = y;
    l->at[i].factor = factor;
    l->at[i].color = color;
}

static const char *color_at(const json_t *table, const grid *g, double x, double y)
{
    int i = (int)((x - g->left) / g->width), j = g->y.count - 1 - (int)((y - g->top) / g->height);
    for (size_t r = 0; r < figure_rows(table); r++)
        if (place_of(&g->x, figure_label(table, r, WIN_X)) == i &&
            place_of(&g->y, figure_label(table, r, WIN_Y)) == j)
            return figure_label(table, r, WIN_COLOR);
    return "none";
}

static void draw_line_labels(const json_t *table, const grid *g, const line_labels *l, svg *s)
{
    for (int i = 0; i < l->count; i++) {
        char text[24], style[64];
        bool apart = true;
        for (int j = 0; j < i; j++)
            apart = apart && (fabs(l->at[i].y - l->at[j].y) > 12 || fabs(l->at[i].x - l->at[j].x) > 36);
        snprintf(text, sizeof text, "%g×", l->at[i].factor);
        const char *color = color_at(table, g, l->at[i].x + 8, l->at[i].y);
        snprintf(style, sizeof style, "tick halo stroke-%s on-%s", color, color);
        if (apart) svg_text(s, l->at[i].x + 5, l->at[i].y + 4, SVG_START, style, 0, text);
    }
}

/* Draws the contour line at which `winner` is `factor` times as fast as the next best. Computes the line
 * from the factors at the centers of cells by marching squares (Lorensen and Cline, 1987, in two
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
                double share = crossing(corner[e], corner[next], level);
                if (isnan(share)) continue;
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

static void draw_cell(const json_t *table, const grid *g, size_t row, bool number, svg *s)
{
    const char *x = figure_label(table, row, WIN_X), *y = figure_label(table, row, WIN_Y),
               *color = figure_label(table, row, WIN_COLOR);
    double left = g->left + g->width * place_of(&g->x, x),
           top = g->top + g->height * (g->y.count - 1 - place_of(&g->y, y)),
           factor = figure_number(table, row, FACTOR);
    char hover[400], value[32], style[64];
    if (!number) {
        snprintf(hover, sizeof hover, "%s %s, %s %s: %s is %.2f times as fast as %s", g->x.name, x, g->y.name,
                 y, figure_label(table, row, WINNER), factor, figure_label(table, row, NEXT));
        svg_bar(s, left + 0.5, top + 0.5, g->width - 1, g->height - 1, color, factor, hover);
        return;
    }
    snprintf(value, sizeof value, "%.2f×", factor);
    snprintf(style, sizeof style, "strong halo stroke-%s on-%s", color, color);
    if (svg_text_width(value, SVG_TEXT) < g->width / 2)
        svg_text(s, left + 8, top + 18, SVG_START, style, 0, value);
}

static void draw_winners(const json_t *table, svg *s)
{
    static const double factors[] = {1.1, 1.5, 2, 3, 5, 10};
    svg_key keys[MOST_SERIES];
    size_t count = 0;
    for (size_t r = 0; r < figure_rows(table); r++) {
        bool seen = false;
        for (size_t k = 0; k < count && !seen; k++)
            seen = strcmp(keys[k].name, figure_label(table, r, WINNER)) == 0;
        if (!seen && count < MOST_SERIES)
            keys[count++] = (svg_key){figure_label(table, r, WIN_COLOR), figure_label(table, r, WINNER)};
    }
    grid g = {.x = texts_in(table, WIN_X), .y = texts_in(table, WIN_Y), .left = 56, .height = 56};
    line_labels labels = {.count = 0};
    g.top = svg_legend(s, keys, count, 0, 12, s->width) + 26;
    g.width = (s->width - g.left) / g.x.count;
    for (int numbers = 0; numbers < 2; numbers++) { /* cells, then lines, then numbers */
        for (size_t r = 0; r < figure_rows(table); r++) draw_cell(table, &g, r, numbers, s);
        for (size_t f = 0; !numbers && f < sizeof factors / sizeof factors[0]; f++)
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
