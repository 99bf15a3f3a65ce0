#include "harness/report/report.h"
#include "harness/reproduce/reproduce.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns the largest relative rounding error of a published number, which is half a unit of its last
 * digit. */
static double rounding(const char *text)
{
    const char *point = strchr(text, '.');
    double value = fabs(strtod(text, NULL));
    return value > 0 ? 0.5 * pow(10, point ? -(double)strspn(point + 1, "0123456789") : 0) / value : 0;
}

double published_uncertainty(const published_table *t, int row, const char *column)
{
    static const double not_stated = 0.01;
    double rounded = rounding(published_text(t, row, column)), spread = published_number(t, row, "spread");
    return spread > 0 ? hypot(rounded, spread) : fmax(rounded, not_stated);
}

void reproduction_null(json_t *cell, double forecast, double uncertainty, const char *source)
{
    if (!(forecast > 0) || strcmp(report_text_at(cell, "obtained"), "predicted") != 0) return;
    json_object_set_new(cell, "null", json_real(forecast));
    json_object_set_new(cell, "uncertainty", json_real(uncertainty));
    json_object_set_new(cell, "source", json_string(source));
}

/* Returns |ln(x / p)| for the figure x at `key` and the published figure p, or NaN if one of the figures is
 * missing. */
static double distance(const json_t *cell, const char *key)
{
    return fabs(log(report_number_at(cell, key) / report_number_at(cell, "published")));
}

static bool has_null(const json_t *cell)
{
    return report_number_at(cell, "null") > 0 && report_number_at(cell, "ours") > 0 &&
           report_number_at(cell, "published") > 0;
}

/* Returns true if the null model misses the published figure by more than twice the uncertainty of the
 * cell. */
static bool is_scored(const json_t *cell)
{
    return has_null(cell) && distance(cell, "null") > 2 * report_number_at(cell, "uncertainty");
}

bool reproduction_selects(const reproduction_cells *selection, const json_t *cell)
{
    const char *source = report_text_at(cell, "source");
    if (selection->only && strcmp(source, selection->only) != 0) return false;
    if (selection->without && strcmp(source, selection->without) == 0) return false;
    return !selection->link || strcmp(report_text_at(cell, "link"), selection->link) == 0;
}

double reproduction_skill_over(const reproduction_report *r, const reproduction_cells *selection, int *cells)
{
    double ours = 0, null = 0;
    *cells = 0;
    size_t i;
    json_t *c;
    json_array_foreach(r->cells, i, c)
    {
        double uncertainty = report_number_at(c, "uncertainty");
        if (!is_scored(c) || !reproduction_selects(selection, c)) continue;
        ours += fmax(0, distance(c, "ours") - uncertainty);
        null += fmax(0, distance(c, "null") - uncertainty);
        (*cells)++;
    }
    return null > 0 ? 1 - ours / null : NAN;
}

/* The skill of fewer cells would depend on chance. */
enum { FEWEST_CELLS = 4 };

void reproduction_skill_of(const reproduction_report *r, reproduction_skill *out)
{
    *out = (reproduction_skill){.worst = NAN, .without = ""};
    out->skill = reproduction_skill_over(r, &(reproduction_cells){0}, &out->scored);
    if (out->scored < FEWEST_CELLS) out->skill = NAN;
    size_t i;
    json_t *c;
    json_array_foreach(r->cells, i, c)
    {
        const char *source = report_text_at(c, "source");
        bool first = true;
        int left;
        if (!has_null(c)) continue;
        if (!is_scored(c)) {
            out->unscored++;
            out->unscored_within += distance(c, "ours") <= 2 * report_number_at(c, "uncertainty");
            continue;
        }
        for (size_t j = 0; j < i; j++)
            first = first && !(is_scored(json_array_get(r->cells, j)) &&
                               strcmp(report_text_at(json_array_get(r->cells, j), "source"), source) == 0);
        if (!first) continue;
        out->sources++;
        double skill = reproduction_skill_over(r, &(reproduction_cells){.without = source}, &left);
        if (left < FEWEST_CELLS || !(isnan(out->worst) || skill < out->worst)) continue;
        out->worst = skill;
        out->without = source;
    }
}
