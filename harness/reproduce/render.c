/* A reproduction as Markdown, CSV and JSON. */
#include "harness/reproduce/reproduce.h"

#include "harness/run/run_result.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const kind_names[] = {[CELL_CALIBRATED] = "calibrated",
                                         [CELL_PREDICTED] = "predicted",
                                         [CELL_DERIVED] = "derived",
                                         [CELL_DIRECTION] = "direction only"};

/* Four figures, whatever the size. */
static const char *figure(char *buffer, size_t size, double value)
{
    if (isnan(value)) return "";
    int digits = fabs(value) >= 1000 ? 0 : fabs(value) >= 100 ? 1 : fabs(value) >= 10 ? 2 : 3;
    snprintf(buffer, size, "%.*f", digits, value);
    return buffer;
}

static const char *deviation(char *buffer, size_t size, const reproduction_cell *c)
{
    double d = reproduction_deviation(c);
    if (isnan(d) || isinf(d)) return "";
    snprintf(buffer, size, "%+.1f %%", 100 * d);
    return buffer;
}

static const char *verdict(const reproduction_cell *c)
{
    if (!reproduction_is_scored(c)) return "";
    return reproduction_hits(c) ? "within" : "MISS";
}

static int baseline_count(const reproduction_report *r)
{
    int count = 0;
    while (count < CELL_BASELINES && r->of->baselines[count]) count++;
    return count;
}

/* ---- Markdown --------------------------------------------------------------------------------- */

static void cell_row(const reproduction_report *r, const reproduction_cell *c, text_buffer *out)
{
    char text[32];
    text_append(out, "| %s | %s, %s ", c->row, c->quantity, c->unit);
    text_append(out, "| %s ", figure(text, sizeof text, c->published));
    text_append(out, "| %s ", figure(text, sizeof text, c->ours));
    text_append(out, "| %s ", kind_names[c->kind]);
    text_append(out, "| %s ", deviation(text, sizeof text, c));
    if (c->tolerance > 0 && c->kind != CELL_CALIBRATED)
        text_append(out, "| %.0f %% | %s ", 100 * c->tolerance, verdict(c));
    else
        text_append(out, "| | ");
    for (int i = 0; i < baseline_count(r); i++)
        text_append(out, "| %s ", figure(text, sizeof text, c->baselines[i]));
    text_append(out, "| %s |\n", c->note);
}

static void cell_table(const reproduction_report *r, text_buffer *out)
{
    text_append(out, "| row | quantity | published | ours | obtained | deviation | limit | verdict ");
    for (int i = 0; i < baseline_count(r); i++) text_append(out, "| %s ", r->of->baselines[i]);
    text_append(out, "| note |\n| --- | --- | ---: | ---: | --- | ---: | ---: | --- ");
    for (int i = 0; i < baseline_count(r); i++) text_append(out, "| ---: ");
    text_append(out, "| --- |\n");
    for (int i = 0; i < r->cell_count; i++) cell_row(r, &r->cells[i], out);
}

/* How far a figure is off on average, over the scored cells that have it. */
static double mean_error(const reproduction_report *r, int baseline)
{
    double sum = 0;
    int count = 0;
    for (int i = 0; i < r->cell_count; i++) {
        const reproduction_cell *c = &r->cells[i];
        double value = baseline < 0 ? c->ours : c->baselines[baseline];
        if (!reproduction_is_scored(c) || isnan(value)) continue;
        sum += fabs(value / c->published - 1);
        count++;
    }
    return count ? sum / count : NAN;
}

static void score(const reproduction_report *r, text_buffer *out)
{
    int scored = 0, hits = 0, claims = 0;
    for (int i = 0; i < r->cell_count; i++) {
        if (!reproduction_is_scored(&r->cells[i])) continue;
        scored++;
        hits += reproduction_hits(&r->cells[i]);
    }
    for (int i = 0; i < r->claim_count; i++) claims += r->claims[i].holds;
    text_append(out, "\nVerdict: %d of %d scored cells within their limits, %d of %d claims hold.\n", hits,
                scored, claims, r->claim_count);
    if (scored > 0) text_append(out, "Mean error of scored cells: %.1f %%", 100 * mean_error(r, -1));
    for (int i = 0; scored > 0 && i < baseline_count(r); i++) {
        double error = mean_error(r, i);
        if (!isnan(error)) text_append(out, "; %s: %.1f %%", r->of->baselines[i], 100 * error);
    }
    text_append(out, scored > 0 ? ".\n" : "");
}

void reproduction_markdown(const reproduction_report *r, text_buffer *out)
{
    text_append(out, "# %s\n\n%s %s. %s\nPublished: %s\n\n", r->of->title,
                r->of->measured ? "MEASURED on" : "SIMULATED by profile", r->profiles, r->of->how,
                r->of->source);
    cell_table(r, out);
    if (r->claim_count > 0) text_append(out, "\n| claim | holds | |\n| --- | --- | --- |\n");
    for (int i = 0; i < r->claim_count; i++)
        text_append(out, "| %s | %s | %s |\n", r->claims[i].text, r->claims[i].holds ? "yes" : "NO",
                    r->claims[i].detail);
    score(r, out);
    for (int i = 0; i < r->note_count; i++) text_append(out, "\n%s\n", r->notes[i]);
}

/* ---- CSV -------------------------------------------------------------------------------------- */

static void csv_number(double value, text_buffer *out)
{
    if (isnan(value))
        text_append(out, ",");
    else
        text_append(out, ",%.6g", value);
}

/* No text of a report has a quote in it. */
void reproduction_csv(const reproduction_report *r, text_buffer *out)
{
    text_append(out, "table,row,quantity,unit,obtained,published,ours,deviation,limit,verdict");
    for (int i = 0; i < baseline_count(r); i++) text_append(out, ",\"%s\"", r->of->baselines[i]);
    text_append(out, ",profiles\n");
    for (int i = 0; i < r->cell_count; i++) {
        const reproduction_cell *c = &r->cells[i];
        text_append(out, "%s,\"%s\",\"%s\",%s,%s", r->of->name, c->row, c->quantity, c->unit,
                    kind_names[c->kind]);
        csv_number(c->published, out);
        csv_number(c->ours, out);
        csv_number(reproduction_deviation(c), out);
        csv_number(c->tolerance > 0 ? c->tolerance : NAN, out);
        text_append(out, ",%s", verdict(c));
        for (int b = 0; b < baseline_count(r); b++) csv_number(c->baselines[b], out);
        text_append(out, ",\"%s\"\n", r->profiles);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------- */

static json_t *number_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *cell_to_json(const reproduction_report *r, const reproduction_cell *c)
{
    json_t *baselines = json_object();
    for (int i = 0; baselines && i < baseline_count(r); i++)
        json_object_set_new(baselines, r->of->baselines[i], number_or_null(c->baselines[i]));
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:s, s:o, s:s, s:o}", "row", c->row, "quantity",
                     c->quantity, "unit", c->unit, "obtained", kind_names[c->kind], "published",
                     number_or_null(c->published), "ours", number_or_null(c->ours), "deviation",
                     number_or_null(reproduction_deviation(c)), "limit",
                     c->tolerance > 0 ? json_real(c->tolerance) : json_null(), "verdict", verdict(c),
                     "baselines", baselines, "note", c->note, "command", c->command[0] ? json_string(c->command) : json_null());
}

json_t *reproduction_json(const reproduction_report *r)
{
    json_t *cells = json_array(), *claims = json_array(), *notes = json_array();
    for (int i = 0; i < r->cell_count; i++) json_array_append_new(cells, cell_to_json(r, &r->cells[i]));
    for (int i = 0; i < r->claim_count; i++)
        json_array_append_new(claims, json_pack("{s:s, s:b, s:s}", "claim", r->claims[i].text, "holds",
                                                (int)r->claims[i].holds, "detail", r->claims[i].detail));
    for (int i = 0; i < r->note_count; i++) json_array_append_new(notes, json_string(r->notes[i]));
    return json_pack("{s:i, s:s, s:s, s:s, s:s, s:b, s:o, s:o, s:o}", "schema_version", RESULT_SCHEMA_VERSION,
                     "table", r->of->name, "published", r->of->source, "profiles", r->profiles, "how",
                     r->of->how, "simulated", (int)!r->of->measured, "cells", cells, "claims", claims,
                     "notes", notes);
}
