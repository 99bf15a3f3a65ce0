/* Writes the report as a self-contained page with the verdict, figures, tables, and the origin of the
 * results. The page loads nothing, and its content security policy allows only the style and the script of
 * the page. */
#include "harness/report/figures.h"
#include "harness/report/page_style.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const report_figure *const run_figures[] = {&figure_step_parts, &figure_timeline,   &figure_throughput,
                                                   &figure_memory,     &figure_loss_steps, &figure_loss_time,
                                                   &figure_buckets,    &figure_staleness};
static const report_figure *const sweep_figures[] = {&figure_sweep_winners, &figure_sweep_losses,
                                                     &figure_sweep_curves, &figure_sweep_heat};

enum { FULL_WIDTH = 1040, HALF_WIDTH = 500, NARROW_WIDTH = 360, MOST_ROWS = 200 };

static const report_figure *figure_of(const json_t *result, size_t number)
{
    if (report_is_sweep(result)) return number < COUNT_OF(sweep_figures) ? sweep_figures[number] : NULL;
    return number < COUNT_OF(run_figures) ? run_figures[number] : NULL;
}

/* ---- figures ---------------------------------------------------------------------------------------- */

/* Returns true if `key` is true in the result, or in any point of a sweep. */
static bool is_any(const json_t *result, const char *key)
{
    return json_is_true(json_object_get(result, key)) ||
           report_count_true(json_object_get(result, "points"), key) > 0;
}

static void append_svg(const report_figure *f, const json_t *result, const json_t *table, bool narrow,
                       const char *id, const char *style, text_buffer *out)
{
    svg s = {.width = narrow    ? NARROW_WIDTH
                      : f->half ? HALF_WIDTH
                                : FULL_WIDTH,
             .narrow = narrow,
             .mark = is_any(result, "simulated")  ? "SIMULATED"
                     : is_any(result, "emulated") ? "EMULATED"
                                                  : NULL};
    text_buffer ways = {0}, description = {0};
    char *rest;
    report_ways(result, narrow || f->half ? "\n" : "; ", &ways);
    text_append(&description, "%s", report_text_at(table, "summary"));
    f->draw(table, &s);
    for (char *line = ways.data ? strtok_r(ways.data, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest)) {
        svg_text(&s, 0, s.height + 12, SVG_START, "tick", s.width, "%s", line);
        s.height += 18;
        text_append(&description, " %s.", line);
    }
    svg_finish(&s, id, f->title, description.data, style, out);
    text_free(&description);
    text_free(&ways);
}

void page_details(const char *style, const char *summary, const char *label, text_buffer *out)
{
    text_append(out,
                "<details%s><summary>%s</summary><div class=\"scroll\" tabindex=\"0\" role=\"region\" "
                "aria-label=\"%s\">",
                style, summary, label);
}

static void append_cell(const json_t *table, size_t row, size_t column, text_buffer *out)
{
    double number = figure_number(table, row, column);
    if (figure_format(table, column) == FIGURE_TEXT) {
        svg_element(out, column == 0 ? "<th scope=\"row\">" : "<td class=\"text\">",
                    figure_label(table, row, column), column == 0 ? "</th>" : "</td>");
        return;
    }
    text_append(out, "<td");
    if (!isnan(number)) text_append(out, " data-v=\"%.17g\"", number);
    text_append(out, ">%s</td>", report_value((cell_format)figure_format(table, column), number).text);
}

static void append_table(const report_figure *f, const json_t *table, text_buffer *out)
{
    size_t rows = figure_rows(table), shown = rows < MOST_ROWS ? rows : MOST_ROWS;
    char title[96];
    snprintf(title, sizeof title, "Numbers: %s", f->title);
    page_details("", title, title, out);
    svg_element(out, "<table><caption>", report_text_at(table, "summary"), "");
    if (shown < rows)
        text_append(out, " The first %zu of %zu rows; harness report --csv writes all.", shown, rows);
    text_append(out, "</caption><thead><tr>");
    for (size_t c = 0; c < figure_columns(table); c++) {
        const char *name = figure_column_text(table, c, "name");
        svg_element(out, "<th scope=\"col\">", name[0] ? name : "job", "</th>");
    }
    text_append(out, "</tr></thead><tbody>\n");
    for (size_t r = 0; r < shown; r++) {
        text_append(out, "<tr>");
        for (size_t c = 0; c < figure_columns(table); c++) append_cell(table, r, c, out);
        text_append(out, "</tr>\n");
    }
    text_append(out, "</tbody></table></div></details>");
}

/* Writes sentences in which a number and its unit stay on one line. */
static void append_sentences(const char *text, text_buffer *out)
{
    static const char *const units[] = {"ns", "us", "ms", "s", "B", "KiB", "MiB", "GiB", "TiB", "%"};
    while (*text) {
        char piece[128];
        size_t length = strcspn(text, " ");
        bool number = length > 0 && text[length - 1] >= '0' && text[length - 1] <= '9', unit = false;
        size_t next = text[length] ? strcspn(text + length + 1, " .,;)") : 0;
        for (size_t i = 0; i < COUNT_OF(units) && number; i++)
            unit = unit || (next == strlen(units[i]) && strncmp(text + length + 1, units[i], next) == 0);
        if (length >= sizeof piece) length = sizeof piece - 1;
        snprintf(piece, sizeof piece, "%.*s", (int)length, text);
        svg_escape(out, piece);
        text += length;
        if (*text != ' ') continue;
        text_append(out, unit ? "&nbsp;" : " ");
        text++;
    }
}

static void append_figure(const report_figure *f, const json_t *result, int section, text_buffer *out)
{
    json_t *table = f->collect(result);
    char id[64];
    if (figure_rows(table) > 0) {
        text_append(out, "<figure id=\"s%d-%s\"%s><figcaption><h3>%s</h3>", section, f->name,
                    f->half ? " class=\"half\"" : "", f->title);
        append_sentences(f->reading, out);
        text_append(out, "</figcaption>\n");
        for (int narrow = 0; narrow < 2; narrow++) {
            snprintf(id, sizeof id, "s%d-%s-%s", section, f->name, narrow ? "n" : "w");
            append_svg(f, result, table, narrow, id, NULL, out);
        }
        append_table(f, table, out);
        text_append(out, "</figure>\n");
    }
    json_decref(table);
}

void report_csv_text(const char *text, text_buffer *out)
{
    text_append(out, "\"");
    for (; *text; text++) text_append(out, "%s%c", *text == '"' ? "\"" : "", *text);
    text_append(out, "\"");
}

static void append_csv(const json_t *table, text_buffer *out)
{
    size_t columns = figure_columns(table);
    for (size_t c = 0; c < columns; c++)
        text_append(out, "%s%s", c ? "," : "", figure_column_text(table, c, "key"));
    for (size_t r = 0; r < figure_rows(table); r++) {
        text_append(out, "\n");
        for (size_t c = 0; c < columns; c++) {
            if (c) text_append(out, ",");
            if (figure_format(table, c) == FIGURE_TEXT)
                report_csv_text(figure_label(table, r, c), out);
            else if (!isnan(figure_number(table, r, c)))
                text_append(out, "%.17g", figure_number(table, r, c));
        }
    }
    text_append(out, "\n");
}

const char *report_figure_file(const json_t *result, int number, bool csv, text_buffer *out)
{
    const report_figure *f = figure_of(result, (size_t)number);
    text_buffer style = {0};
    if (!f) return NULL;
    json_t *table = f->collect(result);
    page_figure_style(&style);
    if (figure_rows(table) > 0 && csv)
        append_csv(table, out);
    else if (figure_rows(table) > 0)
        append_svg(f, result, table, false, f->name, style.data ? style.data : "", out);
    text_free(&style);
    json_decref(table);
    return f->name;
}

/* ---- the verdict ------------------------------------------------------------------------------------ */

static double rate_of(const json_t *job)
{
    return report_number_at(job, "throughput.samples_per_s");
}

/* Finds the fastest and the slowest of the jobs that exchange gradients. Returns the number of these jobs. */
static int find_extremes(const json_t *result, const json_t **fast, const json_t **slow)
{
    int count = 0;
    size_t i;
    json_t *job;
    *fast = *slow = NULL;
    json_array_foreach(json_object_get(result, "jobs"), i, job)
    {
        if (!report_communicates(job) || isnan(rate_of(job))) continue;
        count++;
        if (!*fast || rate_of(job) > rate_of(*fast)) *fast = job;
        if (!*slow || rate_of(job) < rate_of(*slow)) *slow = job;
    }
    return count;
}

static void append_best(const json_t *sweep, text_buffer *out)
{
    const json_t *best = json_object_get(sweep, "best");
    if (!json_is_object(best)) {
        text_append(out, "The sweep has no results yet.");
        return;
    }
    const json_t *point =
        json_array_get(json_object_get(sweep, "points"), (size_t)report_number_at(best, "row"));
    const char *space = "", *name;
    json_t *value;
    json_object_foreach(json_object_get(point, "values"), name, value)
    {
        if (!json_is_string(value)) continue;
        text_append(out, "%s%s=%s", space, name, json_string_value(value));
        space = " ";
    }
    text_append(out, " is fastest: %s samples/s",
                report_value(CELL_RATE, report_number_at(point, "samples_per_s.median")).text);
    if (!isnan(report_number_at(best, "factor")))
        text_append(out, ", %.2f times the next", report_number_at(best, "factor"));
    const char *verdict = report_text_at(best, "verdict");
    if (strcmp(verdict, "not shown") == 0)
        text_append(out, " (not shown)");
    else if (verdict[0] && strcmp(verdict, "shown") != 0 && strcmp(verdict, "virtual") != 0)
        text_append(out, " (not shown: %s)", verdict);
    text_append(out, ".");
}

/* Writes the headline. If the run compares ps and ring, the headline agrees with the verdict. */
static void append_headline(const json_t *result, text_buffer *out)
{
    const json_t *fast, *slow, *verdict = json_object_get(result, "verdict");
    if (find_extremes(result, &fast, &slow) > 2) verdict = NULL; /* a verdict compares two jobs */
    if (!fast) fast = slow = json_array_get(json_object_get(result, "jobs"), 0);
    short_text first = figure_job_name(fast), second = figure_job_name(slow);
    double factor =
        json_is_object(verdict) ? report_number_at(verdict, "factor") : rate_of(fast) / rate_of(slow);
    const char *where = json_is_true(json_object_get(result, "simulated"))  ? " in virtual time"
                        : json_is_true(json_object_get(result, "emulated")) ? " over the emulated link"
                                                                            : "";
    if (fast == slow)
        text_append(out, "%s trains %s samples/s%s.", first.text, report_value(CELL_RATE, rate_of(fast)).text,
                    where);
    else if (json_is_object(verdict) && report_verdict_is_open(verdict))
        text_append(out, "No difference between %s and %s is shown%s.", first.text, second.text, where);
    else
        text_append(out, "%s trains %.2f times as fast as %s%s.", first.text, factor, second.text, where);
}

/* Writes the verdict of the text report or, if more than two jobs exchange gradients, the summaries of the
 * figures of throughput and memory. */
static void append_lead(const json_t *result, text_buffer *out)
{
    static const report_figure *const shown[] = {&figure_throughput, &figure_memory};
    const json_t *fast, *slow;
    text_buffer text = {0};
    char *rest;
    bool several = find_extremes(result, &fast, &slow) > 2;
    if (!several) report_sentences(result, &text);
    for (size_t i = 0; several && i < COUNT_OF(shown); i++) {
        json_t *table = shown[i]->collect(result);
        text_append(&text, "%s\n", report_text_at(table, "summary"));
        json_decref(table);
    }
    for (char *at = text.data ? strtok_r(text.data, "\n", &rest) : NULL; at;
         at = strtok_r(NULL, "\n", &rest)) {
        char *rest_of_line = strstr(at, " -v: all tables."); /* the page shows all tables */
        if (rest_of_line) *rest_of_line = '\0';
        text_append(out, "<p class=\"lead\">");
        append_sentences(at, out);
        text_append(out, "</p>\n");
    }
    text_free(&text);
}

static void append_notices(const json_t *result, text_buffer *out)
{
    static const char *const notices[][2] = {
        {"simulated", "SIMULATED: times are modeled, not measured; memory is exact."},
        {"emulated", "EMULATED: the ranks' network is paced; all times and rates are emulated."},
        {"oversubscribed",
         "More ranks than devices: the run shows the cost of the implementation, not of the "
         "scheme on separate devices."},
        {"stopped_early", "Stopped before its last step."}};
    for (size_t i = 0; i < COUNT_OF(notices); i++)
        if (is_any(result, notices[i][0])) text_append(out, "<p class=\"notice\">%s</p>\n", notices[i][1]);
}

/* ---- the page --------------------------------------------------------------------------------------- */

/* Writes a heading that keeps "ring (ddp)" on one line. */
static void append_heading(const json_t *result, const char *text, text_buffer *out)
{
    for (const char *at; !report_is_sweep(result) && (at = strstr(text, " (")); text = at + 1) {
        char head[512];
        snprintf(head, sizeof head, "%.*s", (int)(at - text), text);
        svg_escape(out, head);
        text_append(out, "&nbsp;");
    }
    svg_escape(out, text);
}

static void append_section(const json_t *result, int section, text_buffer *out)
{
    text_buffer text = {0};
    if (report_is_sweep(result))
        append_best(result, &text);
    else
        append_headline(result, &text);
    text_append(out,
                section == 1 ? "<section>\n<p class=\"eyebrow\">psring report</p><h1>" : "<section>\n<h2>");
    append_heading(result, text.data ? text.data : "", out);
    text_append(out, section == 1 ? "</h1>\n" : "</h2>\n");
    text_free(&text);
    if (!report_is_sweep(result)) {
        append_lead(result, out);
        report_workload(json_object_get(result, "workload"), &text);
        report_all_reduce(result, &text);
        svg_element(out, "<p class=\"workload\"><bdi>", text.data, "</bdi></p>\n");
        text_free(&text);
    }
    append_notices(result, out);
    text_append(out, "<div class=\"figures\">\n");
    for (size_t i = 0; figure_of(result, i); i++) append_figure(figure_of(result, i), result, section, out);
    text_append(out, "</div>\n");
    if (json_is_array(json_object_get(result, "command"))) page_provenance(result, out);
    text_append(out, "</section>\n");
}

void report_page(const json_t *results, text_buffer *out)
{
    size_t i;
    json_t *result;
    text_append(out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                     "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                     "'sha256-" PAGE_STYLE_DIGEST "'; script-src 'sha256-" PAGE_SCRIPT_DIGEST
                     "'; base-uri 'none'; form-action 'none'\">\n"
                     "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                     "<meta name=\"color-scheme\" content=\"light dark\">\n<title>psring report: ");
    const json_t *first = json_array_get(results, 0);
    svg_element(out, "", report_is_sweep(first) ? "sweep" : report_text_at(first, "workload.model"),
                "</title>\n");
    text_append(out, "<style>");
    page_figure_style(out);
    text_append(out, "%s</style>\n</head>\n<body>\n<main>\n", page_style);
    json_array_foreach((json_t *)results, i, result) append_section(result, (int)i + 1, out);
    text_append(
        out,
        "</main>\n<div id=\"tip\" role=\"status\" hidden></div>\n<script>%s</script>\n</body>\n</html>\n",
        page_script);
}
