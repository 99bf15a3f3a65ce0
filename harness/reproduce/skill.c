#include "harness/reproduce/reproduce.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the relative rounding of a published number: half a unit of its last digit. */
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

void reproduction_null(reproduction_cell *c, double forecast, double uncertainty, const char *source)
{
    c->null = forecast;
    c->uncertainty = uncertainty;
    snprintf(c->source, sizeof c->source, "%s", source);
}

static double distance(double forecast, const reproduction_cell *c)
{
    return fabs(log(forecast / c->published));
}

static bool has_null(const reproduction_cell *c)
{
    return c->kind == CELL_PREDICTED && c->null > 0 && c->ours > 0 && c->published > 0;
}

/* Returns true if the null model misses the cell by more than twice its uncertainty. */
static bool is_scored(const reproduction_cell *c)
{
    return has_null(c) && distance(c->null, c) > 2 * c->uncertainty;
}

/* Returns the skill over the scored cells, except the cells of source `without` (may be NULL), and their
 * number. */
static double pooled(const reproduction_report *r, const char *without, int *cells)
{
    double ours = 0, null = 0;
    *cells = 0;
    for (int i = 0; i < r->cell_count; i++) {
        const reproduction_cell *c = &r->cells[i];
        if (!is_scored(c) || (without && strcmp(c->source, without) == 0)) continue;
        ours += fmax(0, distance(c->ours, c) - c->uncertainty);
        null += fmax(0, distance(c->null, c) - c->uncertainty);
        (*cells)++;
    }
    return null > 0 ? 1 - ours / null : NAN;
}

/* The skill of fewer cells would depend on chance. */
enum { FEWEST_CELLS = 4 };

void reproduction_skill_of(const reproduction_report *r, reproduction_skill *out)
{
    *out = (reproduction_skill){.worst = NAN, .without = ""};
    out->skill = pooled(r, NULL, &out->scored);
    if (out->scored < FEWEST_CELLS) out->skill = NAN;
    for (int i = 0; i < r->cell_count; i++) {
        const reproduction_cell *c = &r->cells[i];
        bool first = true;
        int left;
        if (!has_null(c)) continue;
        if (!is_scored(c)) {
            out->unscored++;
            out->unscored_within += distance(c->ours, c) <= 2 * c->uncertainty;
            continue;
        }
        for (int j = 0; j < i; j++)
            first = first && !(is_scored(&r->cells[j]) && strcmp(r->cells[j].source, c->source) == 0);
        if (!first) continue;
        out->sources++;
        double skill = pooled(r, c->source, &left);
        if (left < FEWEST_CELLS || !(isnan(out->worst) || skill < out->worst)) continue;
        out->worst = skill;
        out->without = c->source;
    }
}
