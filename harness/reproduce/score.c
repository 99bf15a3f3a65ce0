#include "common/base/least.h"
#include "harness/report/report.h"
#include "harness/reproduce/reproduce.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Efficiencies that are at most this far from the published one are near. */
static const double near_points = 5;

static const char *link_of(int nodes)
{
    return nodes > 1 ? "network" : "NVLink";
}

void reproduction_place(json_t *cell, int gpus, int nodes)
{
    json_object_set_new(cell, "gpus", json_integer(gpus));
    json_object_set_new(cell, "link", json_string(link_of(nodes)));
}

static bool has_efficiency(const json_t *cell)
{
    return json_object_get(cell, "gpus") && report_number_at(cell, "null") > 0 &&
           report_number_at(cell, "ours") > 0;
}

/* Returns the efficiency of the figure at `key`: its samples/s, divided by the samples/s of one GPU times the
 * number of GPUs. */
static double efficiency(const json_t *cell, const char *key)
{
    return report_number_at(cell, key) / report_number_at(cell, "null");
}

static double quantile(const double *sorted, int count, double at)
{
    double place = at * (count - 1);
    int below = (int)place, above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
}

void reproduction_error(const reproduction_report *r, const char *without, int nodes, double *low,
                        double *high)
{
    enum { MOST = 1024 };
    const reproduction_cells others = {.without = without, .link = link_of(nodes)};
    double ratios[MOST];
    int count = 0;
    size_t i;
    json_t *c;
    json_array_foreach(r->cells, i,
                       c) if (has_efficiency(c) && reproduction_selects(&others, c) && count < MOST)
        ratios[count++] = report_number_at(c, "ours") / report_number_at(c, "published");
    *low = *high = 1;
    if (count == 0) return;
    qsort(ratios, (size_t)count, sizeof *ratios, ascending_doubles);
    *low = quantile(ratios, count, 0.025);
    *high = quantile(ratios, count, 0.975);
}

static double loss(const json_t *cell, double predicted)
{
    double distance = fabs(log(predicted / efficiency(cell, "published")));
    return fmax(0, distance - report_number_at(cell, "uncertainty"));
}

/* The rule of thumb: n GPUs take 1 + a log2 n times as long as one. */
static double rule(const json_t *cell, double a)
{
    return 1 / (1 + a * log2(report_number_at(cell, "gpus")));
}

static double rule_loss(const reproduction_report *r, const char *without, double a)
{
    const reproduction_cells others = {.without = without};
    double sum = 0;
    size_t i;
    json_t *c;
    json_array_foreach(r->cells, i, c) if (has_efficiency(c) && reproduction_selects(&others, c)) sum +=
        loss(c, rule(c, a));
    return sum;
}

/* Returns the `a` with the least loss over the cells of the other sources. */
static double fit_rule(const reproduction_report *r, const char *source)
{
    enum { STEPS = 500 };
    double best = 0, least = INFINITY;
    for (int i = 0; i <= STEPS; i++) {
        double a = 1e-3 * i, sum = rule_loss(r, source, a);
        if (sum < least) best = a;
        least = fmin(least, sum);
    }
    return best;
}

static bool is_first_of_source(const reproduction_report *r, size_t cell)
{
    const char *source = report_text_at(json_array_get(r->cells, cell), "source");
    for (size_t i = 0; i < cell; i++) {
        const json_t *c = json_array_get(r->cells, i);
        if (has_efficiency(c) && strcmp(report_text_at(c, "source"), source) == 0) return false;
    }
    return has_efficiency(json_array_get(r->cells, cell));
}

static json_t *score_of(const reproduction_report *r, const char *name, reproduction_cells selection)
{
    double ours = 0, rules = 0, points = 0, width = 0;
    int cells = 0, within = 0, contained = 0, unused;
    size_t i;
    json_t *c;
    json_array_foreach(r->cells, i, c)
    {
        if (!has_efficiency(c) || !reproduction_selects(&selection, c)) continue;
        double published = efficiency(c, "published"), low = efficiency(c, "low"),
               high = efficiency(c, "high"), error = 100 * fabs(efficiency(c, "ours") - published);
        ours += loss(c, efficiency(c, "ours"));
        rules += loss(c, rule(c, report_number_at(c, "rule")));
        points += error;
        within += error <= near_points;
        contained += low <= published && published <= high;
        width += 100 * (high - low);
        cells++;
    }
    double skill = reproduction_skill_over(r, &selection, &unused);
    bool ranges = width > 0; /* false without draws */
    return json_pack("{s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "cells_of", name, "cells", cells, "skill",
                     report_json_number(skill), "against_rule",
                     report_json_number(rules > 0 ? 1 - ours / rules : NAN), "error_points",
                     report_json_number(points / cells), "near", report_json_number((double)within / cells),
                     "in_range", report_json_number(ranges ? (double)contained / cells : NAN), "range_points",
                     report_json_number(ranges ? width / cells : NAN));
}

/* Gives the cells of each source the rule that is fitted to the others. */
static void set_rules(const reproduction_report *r)
{
    size_t i, j;
    json_t *first, *c;
    json_array_foreach(r->cells, i, first)
    {
        const char *source = report_text_at(first, "source");
        if (!is_first_of_source(r, i)) continue;
        double a = fit_rule(r, source);
        json_array_foreach(r->cells, j, c) if (strcmp(report_text_at(c, "source"), source) == 0)
            json_object_set_new(c, "rule", json_real(a));
    }
}

json_t *reproduction_score(const reproduction_report *r)
{
    static const char *const links[] = {"NVLink", "network"};
    json_t *rows = json_array(), *without = json_array(), *c;
    size_t i;
    set_rules(r);
    json_array_append_new(rows, score_of(r, "all", (reproduction_cells){0}));
    for (int l = 0; l < 2; l++)
        json_array_append_new(rows, score_of(r, links[l], (reproduction_cells){.link = links[l]}));
    json_array_foreach(r->cells, i, c)
    {
        const char *source = report_text_at(c, "source");
        char name[96];
        if (!is_first_of_source(r, i)) continue;
        snprintf(name, sizeof name, "without %s", source);
        json_array_append_new(rows, score_of(r, source, (reproduction_cells){.only = source}));
        json_array_append_new(without, score_of(r, name, (reproduction_cells){.without = source}));
    }
    json_array_extend(rows, without);
    json_decref(without);
    return rows;
}
