/* Writes a published table next to the reproduced one, as text and as Markdown, for `harness reproduce`. */
#include "harness/report/report_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Formats a value with three digits, or "" for NaN. */
static short_text figure(double value)
{
    short_text text = {""};
    if (!isnan(value)) text_three_digits(text.text, sizeof text.text, value);
    return text;
}

/* Formats "280 to 301", or "" without limits. */
static short_text limits(const json_t *cell, const char *to)
{
    double low = report_number_at(cell, "low"), high = report_number_at(cell, "high");
    short_text text = {""};
    if (low < high) snprintf(text.text, sizeof text.text, "%s%s%s", figure(low).text, to, figure(high).text);
    return text;
}

/* Appends "speed, images/s; ring": the quantity, its unit, and the algorithms that all-reduced the job's
 * buckets. */
static void add_quantity(const json_t *cell, text_buffer *out)
{
    const char *algorithms = report_text_at(cell, "algorithms");
    text_append(out, "%s, %s%s%s", report_text_at(cell, "quantity"), report_text_at(cell, "unit"),
                algorithms[0] ? "; " : "", algorithms);
}

static void cell_row(json_t *cell, text_buffer *out)
{
    double published = report_number_at(cell, "published"), deviation = report_number_at(cell, "deviation"),
           limit = report_number_at(cell, "limit");
    const char *name;
    json_t *baseline;
    text_append(out, "| %s | ", report_text_at(cell, "row"));
    add_quantity(cell, out);
    text_append(out, " | ");
    if (!isnan(published)) text_append(out, "%.6g ", published);
    text_append(out, "| %s | %s | %s | ", figure(report_number_at(cell, "ours")).text,
                limits(cell, " to ").text, report_text_at(cell, "obtained"));
    if (isnan(deviation))
        text_append(out, " | ");
    else
        text_append(out, "%+.1f %% | ", 100 * deviation);
    if (isnan(limit))
        text_append(out, "| | ");
    else
        text_append(out, "%.0f %% | %s | ", 100 * limit, report_text_at(cell, "verdict"));
    json_object_foreach(json_object_get(cell, "baselines"), name, baseline)
    {
        text_append(out, "%s | ", figure(report_number_at(baseline, "")).text);
    }
    text_append(out, "%s |\n", report_text_at(cell, "note"));
}

static void cell_table(const json_t *cells, text_buffer *out)
{
    json_t *baselines = json_object_get(json_array_get(cells, 0), "baselines"), *cell;
    const char *name;
    json_t *baseline;
    size_t i;
    text_append(
        out, "| row | quantity | published | ours | low to high | obtained | deviation | limit | verdict ");
    json_object_foreach(baselines, name, baseline) text_append(out, "| %s ", name);
    text_append(out, "| note |\n| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | --- ");
    for (i = 0; i < json_object_size(baselines); i++) text_append(out, "| ---: ");
    text_append(out, "| --- |\n");
    json_array_foreach(cells, i, cell) cell_row(cell, out);
}

/* Writes the cells without their baselines and notes, in 80 columns: a line per row of the published table,
 * and below it a line per cell. */
static void cell_lines(const json_t *cells, text_buffer *out)
{
    const char *row = "";
    size_t i;
    json_t *cell;
    text_append(out, "%-30s%9s%23s%8s\n", "", "published", "ours (range)", "off");
    json_array_foreach(cells, i, cell)
    {
        text_buffer quantity = {0};
        short_text ours = figure(report_number_at(cell, "ours")), range = limits(cell, "-");
        char both[120], off[32] = "";
        double deviation = report_number_at(cell, "deviation");
        const char *verdict = report_text_at(cell, "verdict");
        if (!verdict[0] && strcmp(report_text_at(cell, "obtained"), "direction only") == 0)
            verdict = "direction";
        if (strcmp(row, report_text_at(cell, "row")) != 0)
            text_append(out, "%s\n", report_text_at(cell, "row"));
        row = report_text_at(cell, "row");
        text_append(&quantity, "  ");
        add_quantity(cell, &quantity);
        text_append(out, quantity.length > 29 ? "%s\n%30s" : "%-30s%s", quantity.data, "");
        text_free(&quantity);
        snprintf(both, sizeof both, range.text[0] ? "%s (%s)" : "%s%s", ours.text, range.text);
        if (!isnan(deviation)) snprintf(off, sizeof off, "%+.1f %%", 100 * deviation);
        text_append(out, "%9s%23s%8s %.9s\n", figure(report_number_at(cell, "published")).text, both, off,
                    verdict);
    }
}

static void claim_lines(const json_t *claims, bool markdown, text_buffer *out)
{
    size_t i;
    json_t *one;
    if (json_array_size(claims) > 0)
        text_append(out, markdown ? "\n| claim | holds | |\n| --- | --- | --- |\n" : "\nClaims:\n");
    json_array_foreach(claims, i, one)
    {
        const char *holds = json_is_true(json_object_get(one, "holds")) ? "yes" : "NO";
        if (markdown)
            text_append(out, "| %s | %s | %s |\n", report_text_at(one, "claim"), holds,
                        report_text_at(one, "detail"));
        else
            text_append(out, "%-4s  %s: %s\n", holds, report_text_at(one, "claim"),
                        report_text_at(one, "detail"));
    }
}

/* Returns true if the score includes the cell. It does not include identities, because their figures must be
 * equal. */
static bool is_scored(const json_t *cell)
{
    return *report_text_at(cell, "verdict") && strcmp(report_text_at(cell, "obtained"), "identity") != 0;
}

/* Returns the mean relative error of a baseline over the scored cells, or of the computed figures if
 * `baseline` is NULL. Leaves out cells without this figure. */
static double mean_error(const json_t *cells, const char *baseline)
{
    double sum = 0;
    int count = 0;
    size_t i;
    json_t *cell;
    json_array_foreach(cells, i, cell)
    {
        const json_t *from = baseline ? json_object_get(cell, "baselines") : cell;
        const json_t *value = json_object_get(from, baseline ? baseline : "ours");
        if (!is_scored(cell) || !json_is_number(value)) continue;
        sum += fabs(json_number_value(value) / report_number_at(cell, "published") - 1);
        count++;
    }
    return count ? sum / count : NAN;
}

static void score(const json_t *cells, const json_t *claims, text_buffer *out)
{
    int scored = 0, hits = 0, identical = 0, identities = 0, contained = 0, ranges = 0;
    size_t i;
    const char *name;
    json_t *one;
    json_array_foreach(cells, i, one)
    {
        double published = report_number_at(one, "published"), low = report_number_at(one, "low"),
               high = report_number_at(one, "high");
        bool has_range = low < high && strcmp(report_text_at(one, "obtained"), "predicted") == 0;
        ranges += has_range;
        contained += has_range && low <= published && published <= high;
        scored += is_scored(one);
        identities += strcmp(report_text_at(one, "obtained"), "identity") == 0;
        identical += strcmp(report_text_at(one, "verdict"), "identical") == 0;
        hits += strcmp(report_text_at(one, "verdict"), "within") == 0;
    }
    text_append(out, "\nVerdict: %d of %d scored cells within their limits, %zu of %zu claims hold.\n", hits,
                scored, report_count_true(claims, "holds"), json_array_size(claims));
    if (identities > 0) text_append(out, "%d of %d identities hold.\n", identical, identities);
    if (ranges > 0)
        text_append(out, "Low to high contains what was published in %d of %d predicted cells.\n", contained,
                    ranges);
    if (scored == 0) return;
    text_append(out, "Mean error of scored cells: %.1f %%", 100 * mean_error(cells, NULL));
    json_object_foreach(json_object_get(json_array_get(cells, 0), "baselines"), name, one)
    {
        double error = mean_error(cells, name);
        if (!isnan(error)) text_append(out, "; %s: %.1f %%", name, 100 * error);
    }
    text_append(out, ".\n");
}

/* Writes how much better the model is than a null model. All figures are in the JSON. */
static void skill(const json_t *s, text_buffer *out)
{
    if (!json_is_object(s)) return;
    double value = report_number_at(s, "value"), worst = report_number_at(s, "worst_without_one_source");
    text_append(out, "Skill over the null model (more GPUs cost nothing, schemes are equal): ");
    if (isnan(value))
        text_append(out, "no verdict");
    else
        text_append(out, "S = %.2f", value);
    text_append(out, " on %.0f scored cells of %.0f source%s", report_number_at(s, "scored_cells"),
                report_number_at(s, "sources"), report_number_at(s, "sources") == 1 ? "" : "s");
    if (!isnan(worst)) text_append(out, "; at worst %.2f, without %s", worst, report_text_at(s, "without"));
    text_append(out, ".\n");
    if (report_number_at(s, "unscored_cells") > 0)
        text_append(out,
                    "Not scored, because the null model is right within 2 u: %.0f cells. Our model is within "
                    "2 u in %.0f of them.\n",
                    report_number_at(s, "unscored_cells"), report_number_at(s, "unscored_within"));
    text_append(out, "Calibrated, and given to the null model: %s. Constants: %s.\n",
                report_text_at(s, "calibration"), report_text_at(s, "constants"));
}

/* Writes how near predicted efficiencies are, a line for each selection of cells. */
static void efficiency_score(const json_t *rows, text_buffer *out)
{
    size_t i;
    json_t *row;
    if (!json_is_array(rows)) return;
    text_append(out, "\nPredicted efficiencies\n %-39s%5s%6s%6s%6s%5s%5s%6s\n", "", "cells", "S", "rule",
                "error", "near", "in", "width");
    json_array_foreach(rows, i, row)
    {
        double width = report_number_at(row, "range_points");
        text_append(out, " %-39s%5.0f%6.2f%6.2f%6.1f%4.0f%%", report_text_at(row, "cells_of"),
                    report_number_at(row, "cells"), report_number_at(row, "skill"),
                    report_number_at(row, "against_rule"), report_number_at(row, "error_points"),
                    100 * report_number_at(row, "near"));
        if (isnan(width))
            text_append(out, "    -     -\n");
        else
            text_append(out, "%4.0f%%%6.1f\n", 100 * report_number_at(row, "in_range"), width);
    }
    text_append(out,
                "rule: skill over the rule that n GPUs take 1 + a log2 n times as long, with a from the "
                "other sources. error: mean, in points of efficiency. near: within 5 points. in: between "
                "low and high, whose mean distance is width, in points.\n");
}

void report_reproduction(const json_t *result, bool markdown, text_buffer *out)
{
    const json_t *cells = json_object_get(result, "cells"), *claims = json_object_get(result, "claims");
    size_t i;
    json_t *one;
    text_append(out, "%s%s\n\n%s %s. %s\nPublished: %s\n\n", markdown ? "# " : "",
                report_text_at(result, "title"),
                json_is_true(json_object_get(result, "simulated")) ? "SIMULATED by profile" : "MEASURED on",
                report_text_at(result, "profiles"), report_text_at(result, "how"),
                report_text_at(result, "published"));
    if (markdown)
        cell_table(cells, out);
    else
        cell_lines(cells, out);
    claim_lines(claims, markdown, out);
    score(cells, claims, out);
    const json_t *ranges = json_object_get(result, "ranges");
    if (json_is_object(ranges))
        text_append(out, "Of %.0f constants with a range, %.0f ranges are guesses (harness profiles NAME).\n",
                    report_number_at(ranges, "constants"), report_number_at(ranges, "guesses"));
    skill(json_object_get(result, "skill"), out);
    efficiency_score(json_object_get(result, "score"), out);
    json_array_foreach(json_object_get(result, "notes"), i, one)
        text_append(out, "\n%s\n", json_string_value(one));
}
