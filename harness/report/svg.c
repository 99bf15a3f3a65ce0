#include "harness/report/svg.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- texts -------------------------------------------------------------------------------------- */

/* Returns the number of bytes of the UTF-8 character at `text`, or 0 if the character is incomplete. */
static int character(const char *text)
{
    unsigned char first = (unsigned char)*text;
    int bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : first >= 0x80 ? 0 : 1;
    for (int i = 1; i < bytes; i++)
        if (((unsigned char)text[i] & 0xc0) != 0x80) return 0;
    return bytes;
}

void svg_escape(text_buffer *out, const char *text)
{
    static const struct {
        char character;
        const char *entity;
    } entities[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
    for (int bytes; *text; text += bytes ? bytes : 1) {
        const char *entity = NULL;
        bytes = character(text);
        for (size_t i = 0; i < sizeof entities / sizeof entities[0]; i++)
            if (*text == entities[i].character) entity = entities[i].entity;
        if (entity)
            text_append(out, "%s", entity);
        else if (bytes > 0 && ((unsigned char)*text < ' ' || *text == 127))
            text_append(out, " ");
        else
            text_append(out, "%.*s", bytes, text);
    }
}

void svg_element(text_buffer *out, const char *begin, const char *text, const char *end)
{
    text_append(out, "%s", begin);
    if (text) svg_escape(out, text);
    text_append(out, "%s", end);
}

static bool continues(char c) /* true within a UTF-8 character */
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* Assumes DejaVu Sans, the widest of the fonts that systems have by default. */
double svg_text_width(const char *text, int size)
{
    double em = 0;
    for (; *text; text++) {
        if (continues(*text)) continue;
        if ((unsigned char)*text >= 0xc0)
            em += 1.05; /* not ASCII, for example Cyrillic or Chinese */
        else if (strchr(" ijltfr.,:;'|()-I", *text))
            em += 0.42;
        else if (strchr("mwMWGOQ%@+", *text))
            em += 0.97;
        else
            em += 0.67;
    }
    return em * size;
}

/* Copies the longest prefix of `text` that fits together with an ellipsis. */
static void cut(const char *text, double most, int size, char *out, size_t bytes)
{
    size_t length = strlen(text);
    if (length >= bytes) length = bytes - 1;
    while (length > 0 && continues(text[length])) length--;
    snprintf(out, bytes, "%.*s", (int)length, text);
    if (most <= 0 || svg_text_width(out, size) <= most) return;
    while (length > 0 && svg_text_width(out, size) > most - size) {
        do length--;
        while (length > 0 && continues(out[length]));
        out[length] = '\0';
    }
    snprintf(out + length, bytes - length, "…");
}

void svg_text(svg *s, double x, double y, svg_anchor anchor, const char *style, double most,
              const char *format, ...)
{
    static const char *const anchors[] = {"start", "middle", "end"};
    char text[256], shown[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    cut(text, most, strncmp(style, "tick", 4) == 0 ? SVG_SMALL : SVG_TEXT, shown, sizeof shown - 4);
    text_append(&s->body, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", style, x, y,
                anchors[anchor]);
    svg_element(&s->body, "", shown, "</text>\n");
}

int svg_job(svg *s, double x, double y, double most, const char *name)
{
    enum { MOST_LINES = 4 };
    const char *rest = strstr(name, " (");
    char line[64];
    int lines = 1;
    if (!rest || svg_text_width(name, SVG_TEXT) <= most) {
        svg_text(s, x, y, SVG_MIDDLE, "label", most, "%s", name);
        return lines;
    }
    svg_text(s, x, y, SVG_MIDDLE, "label", most, "%.*s", (int)(rest - name), name);
    for (rest++; *rest && lines < MOST_LINES; lines++) {
        size_t end = strcspn(rest, " ");
        for (size_t next = end; rest[end]; end = next) { /* as many words as fit */
            next = end + 1 + strcspn(rest + end + 1, " ");
            snprintf(line, sizeof line, "%.*s", (int)next, rest);
            if (next >= sizeof line || svg_text_width(line, SVG_SMALL) > most) break;
        }
        if (lines + 1 == MOST_LINES) end = strlen(rest);
        svg_text(s, x, y + 14 * lines, SVG_MIDDLE, "tick", most, "%.*s", (int)end, rest);
        rest += end + (rest[end] == ' ');
    }
    return lines;
}

/* ---- marks -------------------------------------------------------------------------------------- */

/* Writes the value and the text of a mark, and the end of the mark's element. */
static void append_value(svg *s, double value, const char *format, va_list arguments)
{
    char hover[512];
    vsnprintf(hover, sizeof hover, format, arguments);
    if (!isnan(value)) text_append(&s->body, " data-v=\"%.9g\"", value);
    if (hover[0]) svg_element(&s->body, " data-t=\"", hover, "\"");
    text_append(&s->body, "/>\n");
}

void svg_bar(svg *s, double x, double y, double width, double height, const char *color, double value,
             const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    text_append(&s->body, "<rect class=\"%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"", color, x,
                y, fmax(width, 0), fmax(height, 0));
    append_value(s, value, format, arguments);
    va_end(arguments);
}

void svg_point(svg *s, double x, double y, const char *color, double value, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    text_append(&s->body, "<circle class=\"point %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"5\"", color, x, y);
    append_value(s, value, format, arguments);
    va_end(arguments);
}

void svg_line(svg *s, double x1, double y1, double x2, double y2, const char *style)
{
    text_append(strcmp(style, "grid") == 0 ? &s->behind : &s->body,
                "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", style, x1, y1, x2,
                y2);
}

/* ---- axes --------------------------------------------------------------------------------------- */

typedef struct unit {
    double size;
    const char *name;
} unit;

static unit unit_of(cell_format format, double high)
{
    static const unit times[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}, {1e-9, "ns"}},
                      sizes[] = {{1073741824, "GiB"}, {1048576, "MiB"}, {1024, "KiB"}, {1, "B"}};
    if (format == CELL_RATE && high >= 1e5)
        return high >= 1e6 ? (unit){1e6, "millions"} : (unit){1e3, "thousands"};
    if (format == CELL_PERCENT) return (unit){0.01, "%"};
    if (format != CELL_TIME && format != CELL_BYTES) return (unit){1, ""};
    const unit *u = format == CELL_TIME ? times : sizes;
    int i = 0;
    while (i < 3 && high < u[i].size) i++;
    return u[i];
}

svg_axis svg_axis_of(cell_format format, double low, double high, int ticks, double from, double to)
{
    if (!(high > low)) high = low + 1;
    unit u = unit_of(format, fmax(fabs(high), fabs(low)));
    double raw = (high - low) / u.size / ticks, power = pow(10, floor(log10(raw))), step = power;
    static const double round_steps[] = {1, 2, 5, 10};
    for (int i = 0; i < 4 && step < raw * (1 - 1e-9); i++) step = power * round_steps[i];
    if (format == CELL_COUNT && step < 1) step = 1;
    svg_axis a = {.step = step * u.size, .unit = u.size, .unit_name = u.name, .from = from, .to = to};
    a.low = floor(low / a.step + 1e-9) * a.step;
    a.high = ceil(high / a.step - 1e-9) * a.step;
    a.decimals = step < 1 ? (int)ceil(-log10(step) - 1e-9) : 0;
    return a;
}

double svg_at(const svg_axis *a, double value)
{
    return a->from + (value - a->low) / (a->high - a->low) * (a->to - a->from);
}

static void tick(svg *s, const svg_axis *a, double value, double x, double y, svg_anchor anchor)
{
    double shown = value / a->unit;
    svg_text(s, x, y, anchor, "tick", 0, "%.*f", a->decimals, fabs(shown) < 1e-12 ? 0 : shown);
}

static void axis_title(svg *s, const svg_axis *a, const char *what, double x, double y, svg_anchor anchor)
{
    bool both = what[0] && a->unit_name[0];
    svg_text(s, x, y, anchor, "tick", 0, "%s%s%s", what, both ? ", " : "", a->unit_name);
}

void svg_x_grid(svg *s, const svg_axis *a, double top, double bottom)
{
    for (double v = a->low; v <= a->high + a->step / 2; v += a->step)
        svg_line(s, svg_at(a, v), top, svg_at(a, v), bottom, "grid");
}

void svg_x_axis(svg *s, const svg_axis *a, double top, double bottom, const char *what)
{
    svg_x_grid(s, a, top, bottom);
    for (double v = a->low; v <= a->high + a->step / 2; v += a->step)
        tick(s, a, v, svg_at(a, v), bottom + 15, SVG_MIDDLE);
    axis_title(s, a, what, a->to, bottom + 31, SVG_END);
}

void svg_y_axis(svg *s, const svg_axis *a, double left, double right, const char *what)
{
    for (double v = a->low; v <= a->high + a->step / 2; v += a->step) {
        double y = svg_at(a, v);
        svg_line(s, left, y, right, y, fabs(v) < a->step / 1e6 ? "base" : "grid");
        tick(s, a, v, left - 8, y + 4, SVG_END);
    }
    axis_title(s, a, what, 0, a->to - 14, SVG_START);
}

double svg_legend(svg *s, const svg_key *keys, size_t count)
{
    double at = 0, y = 12;
    for (size_t i = 0; i < count; i++) {
        double needed = 16 + svg_text_width(keys[i].name, SVG_TEXT) + 14;
        if (at > 0 && at + needed > s->width) {
            at = 0;
            y += 18;
        }
        bool thin = strcmp(keys[i].color, "message") == 0; /* Messages are drawn as thin bars. */
        svg_bar(s, at, thin ? y - 6 : y - 9, 10, thin ? 5 : 10, keys[i].color, NAN, "%s", "");
        svg_text(s, at + 16, y, SVG_START, "label", s->width - 16, "%s", keys[i].name);
        at += needed;
    }
    return count ? y + 14 : y;
}

/* ---- the element -------------------------------------------------------------------------------- */

void svg_finish(svg *s, const char *id, const char *title, const char *description, const char *style,
                text_buffer *out)
{
    double mark = s->mark ? svg_text_width(s->mark, SVG_SMALL) + 16 : 0, head = s->mark ? 24 : 0, side = 0;
    if (style) {
        head = 44;
        side = 16;
    }
    double width = s->width + 2 * side, height = s->height + head + side;
    text_append(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"%s\" role=\"img\" aria-labelledby=\"%s-t %s-d\" "
        "viewBox=\"%.0f %.0f %.0f %.0f\" width=\"%.0f\" height=\"%.0f\">\n<title id=\"%s-t\">",
        s->narrow ? "narrow" : "wide", id, id, -side, -head, width, height, width, height, id);
    svg_element(out, "", title, "</title>\n");
    text_append(out, "<desc id=\"%s-d\">", id);
    svg_element(out, "", description, "</desc>\n");
    if (style)
        text_append(out,
                    "<style>%s</style>\n<rect class=\"paper\" x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" "
                    "height=\"%.0f\"/>\n",
                    style, -side, -head, width, height);
    /* Diagonal lines mark idle time. */
    text_append(out,
                "<defs><pattern id=\"%s-idle\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
                "patternTransform=\"rotate(45)\"><rect class=\"idle-ground\" width=\"5\" height=\"5\"/><rect "
                "class=\"idle-line\" width=\"2\" height=\"5\"/></pattern></defs>\n",
                id);
    if (style) svg_element(out, "<text class=\"heading\" x=\"0\" y=\"-18\">", title, "</text>\n");
    if (s->mark)
        text_append(out,
                    "<g class=\"mark\"><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"18\" "
                    "rx=\"9\"/><text x=\"%.1f\" "
                    "y=\"%.1f\" text-anchor=\"middle\">%s</text></g>\n",
                    s->width - mark - 1, style ? -32.0 : -head + 1, mark, s->width - mark / 2 - 1,
                    style ? -19.0 : -head + 14, s->mark);
    /* Bars of waiting refer to the pattern of their own element, because another element may not be
     * displayed. */
    text_append(out, "<g fill=\"url(#%s-idle)\">\n%s%s</g>\n</svg>\n", id,
                s->behind.data ? s->behind.data : "", s->body.data ? s->body.data : "");
    out->out_of_memory = out->out_of_memory || s->body.out_of_memory || s->behind.out_of_memory;
    text_free(&s->body);
    text_free(&s->behind);
}
