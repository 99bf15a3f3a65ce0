/* Draws figures as SVG: bars, lines, labels, and axes whose ticks are round numbers. Lengths are in
 * pixels.
 *
 * Colors are classes (page_style.h) with one meaning in all figures, so that light, dark and printed pages
 * differ only in the style. Each mark has its value in words (data-t, shown by the page's script) and as a
 * number (data-v). */
#ifndef HARNESS_REPORT_SVG_H
#define HARNESS_REPORT_SVG_H

#include "harness/report/report_impl.h"

typedef struct svg {
    text_buffer body;
    text_buffer behind;   /* grid lines */
    double width, height; /* px; the drawing function sets the height */
    bool narrow;          /* for a screen of 400 px */
    const char *mark;     /* "SIMULATED", "EMULATED", or NULL */
} svg;

typedef enum svg_anchor { SVG_START, SVG_MIDDLE, SVG_END } svg_anchor;

enum { SVG_TEXT = 12, SVG_SMALL = 11 }; /* font sizes, px */

/* Appends `text`, escaped for an element or a quoted attribute. Leaves out control characters. */
void svg_escape(text_buffer *out, const char *text);
/* Appends an element: `begin`, the escaped `text` unless `text` is NULL, and `end`. */
void svg_element(text_buffer *out, const char *begin, const char *text, const char *end);

/* Returns the largest width of `text` in px, over the usual default fonts. */
double svg_text_width(const char *text, int size);

/* Writes a text. `style` is a class of texts: "label", "tick", "strong", or "on-CLASS" on a bar of that
 * color. A text wider than `most` px is cut with an ellipsis, unless `most` is 0. */
void svg_text(svg *s, double x, double y, svg_anchor anchor, const char *style, double most,
              const char *format, ...) __attribute__((format(printf, 7, 8)));

/* Writes a job's name, centered at x. "ps (sync, 8 servers)" takes several lines of 14 px if one line is too
 * narrow. Returns the number of lines. */
int svg_job(svg *s, double x, double y, double most, const char *name);

/* svg_bar() draws a rectangle, and svg_point() draws a circle. `value` is the value in the JSON, or NaN. The
 * text is shown while the mouse is over the bar or point. An empty text is not written. */
void svg_bar(svg *s, double x, double y, double width, double height, const char *color, double value,
             const char *format, ...) __attribute__((format(printf, 8, 9)));
void svg_point(svg *s, double x, double y, const char *color, double value, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
void svg_line(svg *s, double x1, double y1, double x2, double y2, const char *style);

/* An axis whose step is a round number. Both ends are multiples of the step: svg_axis_of() rounds `low` down
 * and `high` up. */
typedef struct svg_axis {
    double low, high, step; /* in the JSON's unit */
    double unit;            /* size of the labels' unit: 1e-3 if the labels are in ms and the JSON is in s */
    const char *unit_name;
    int decimals;
    double from, to; /* px */
} svg_axis;

/* Returns an axis with at most `ticks` steps from `low` to `high`. Rounding the ends may add a step. */
svg_axis svg_axis_of(cell_format format, double low, double high, int ticks, double from, double to);
double svg_at(const svg_axis *a, double value);

void svg_x_grid(svg *s, const svg_axis *a, double top, double bottom);
/* Draws vertical grid lines, labels below `bottom`, and `what` with the unit under the labels. */
void svg_x_axis(svg *s, const svg_axis *a, double top, double bottom, const char *what);
/* Draws horizontal grid lines, labels left of `left`, and `what` with the unit above the axis. */
void svg_y_axis(svg *s, const svg_axis *a, double left, double right, const char *what);

typedef struct svg_key {
    const char *color, *name;
} svg_key;

/* Draws each key as a colored square and a name, in one or more lines at the top of the figure. Returns the y
 * below the legend. */
double svg_legend(svg *s, const svg_key *keys, size_t count);

/* Wraps the body in an element with title and description, and frees the body. `id` is unique in the
 * document. `style` is the style sheet of a separate file, or NULL. */
void svg_finish(svg *s, const char *id, const char *title, const char *description, const char *style,
                text_buffer *out);

#endif
