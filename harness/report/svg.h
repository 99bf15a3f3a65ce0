/* Figures as SVG: bars, lines, labels and axes with round ticks, in the pixels of the figure's own width.
 *
 * Colors are classes (page_style.h), one for each thing in all figures, so that light, dark and printed pages
 * differ only in the style. Each mark has its value in words (data-t, shown by the page's script) and as a
 * number (data-v). */
#ifndef HARNESS_REPORT_SVG_H
#define HARNESS_REPORT_SVG_H

#include "harness/report/report_impl.h"

typedef struct svg {
    text_buffer body;
    text_buffer behind;   /* grid lines */
    double width, height; /* px; whoever draws sets the height */
    bool narrow;          /* for a screen of 400 px */
    const char *mark;     /* "EMULATED", "VIRTUAL", or NULL */
} svg;

typedef enum svg_anchor { SVG_START, SVG_MIDDLE, SVG_END } svg_anchor;

enum { SVG_TEXT = 12, SVG_SMALL = 11 }; /* font sizes, px */

/* Escapes for element content and quoted attributes; control characters are left out. */
void svg_escape(text_buffer *out, const char *text);

/* How wide `text` is at most, px, in the fonts that systems have. */
double svg_text_width(const char *text, int size);

/* `style`: a class of texts: "label", "tick", "strong", "on-CLASS" (on a bar of that color). Cut with an
 * ellipsis where it is wider than `most` px; 0: never. */
void svg_text(svg *s, double x, double y, svg_anchor anchor, const char *style, double most,
              const char *text);

/* A job's name in the middle at x; "ps (sync, 8 servers)" takes several lines of 14 px where one is too
 * narrow. Returns how many. */
int svg_job(svg *s, double x, double y, double most, const char *name);

/* A rectangle of the color `color`. `hover`: what it is, in words; NULL: nothing. `value` is that of the
 * JSON; NaN: none. */
void svg_bar(svg *s, double x, double y, double width, double height, const char *color, double value,
             const char *hover);
void svg_line(svg *s, double x1, double y1, double x2, double y2, const char *style);

/* "12.3 ms", as in the text report. Returns `buffer`. */
char *svg_value(char *buffer, size_t size, cell_format format, double value);

/* From 0 or `low` to at least `high` in round steps. */
typedef struct svg_axis {
    double low, high, step; /* in the JSON's unit */
    double unit;            /* of the labels, in the JSON's: 1e-3 for ms */
    const char *unit_name;
    int decimals;
    double from, to; /* px */
} svg_axis;

/* `ticks`: at most so many steps. */
svg_axis svg_axis_of(cell_format format, double low, double high, int ticks, double from, double to);
double svg_at(const svg_axis *a, double value);

void svg_x_grid(svg *s, const svg_axis *a, double top, double bottom);
/* Grid lines across, labels below `bottom`, and `what` with the unit under them. */
void svg_x_axis(svg *s, const svg_axis *a, double top, double bottom, const char *what);
/* Grid lines, labels left of `left`; `what` with the unit above the axis. */
void svg_y_axis(svg *s, const svg_axis *a, double left, double right, const char *what);

typedef struct svg_key {
    const char *color, *name;
} svg_key;

/* Swatches with names in lines; returns the y under them. */
double svg_legend(svg *s, const svg_key *keys, size_t count, double x, double y, double width);

/* Wraps the body in an element with title and description; `id` is unique in the document. `style`: the style
 * sheet for a file of its own, or NULL. Frees the body. */
void svg_finish(svg *s, const char *id, const char *title, const char *description, const char *style,
                text_buffer *out);

#endif
