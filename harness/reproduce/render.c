/* Renders a reproduction as CSV and JSON. */
#include "harness/reproduce/reproduce.h"

#include "common/sim/profile.h"
#include "harness/report/report.h"
#include "harness/run/run_result.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const kind_names[] = {[CELL_CALIBRATED] = "calibrated",
                                         [CELL_PREDICTED] = "predicted",
                                         [CELL_DERIVED] = "derived",
                                         [CELL_DIRECTION] = "direction only",
                                         [CELL_IDENTITY] = "identity"};

static const char *verdict(const reproduction_cell *c)
{
    if (c->kind == CELL_IDENTITY) return reproduction_hits(c) ? "identical" : "DIFFERS";
    if (!reproduction_is_scored(c)) return "";
    return reproduction_hits(c) ? "within" : "MISS";
}

static int baseline_count(const reproduction_report *r)
{
    int count = 0;
    while (count < CELL_BASELINES && r->of->baselines[count]) count++;
    return count;
}

/* ---- CSV -------------------------------------------------------------------------------------- */

static void csv_number(double value, text_buffer *out)
{
    if (isnan(value))
        text_append(out, ",");
    else
        text_append(out, ",%.6g", value);
}

/* Writes texts without escapes, because none contains a quote. */
void reproduction_csv(const reproduction_report *r, text_buffer *out)
{
    text_append(out, "table,row,quantity,unit,obtained,published,ours,low,high,deviation,limit,verdict");
    for (int i = 0; i < baseline_count(r); i++) text_append(out, ",\"%s\"", r->of->baselines[i]);
    text_append(out, ",profiles\n");
    for (int i = 0; i < r->cell_count; i++) {
        const reproduction_cell *c = &r->cells[i];
        text_append(out, "%s,\"%s\",\"%s\",%s,%s", r->of->name, c->row, c->quantity, c->unit,
                    kind_names[c->kind]);
        csv_number(c->published, out);
        csv_number(c->ours, out);
        csv_number(c->low, out);
        csv_number(c->high, out);
        csv_number(reproduction_deviation(c), out);
        csv_number(c->tolerance > 0 ? c->tolerance : NAN, out);
        text_append(out, ",%s", verdict(c));
        for (int b = 0; b < baseline_count(r); b++) csv_number(c->baselines[b], out);
        text_append(out, ",\"%s\"\n", r->profiles);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------- */

static json_t *cell_to_json(const reproduction_report *r, const reproduction_cell *c)
{
    json_t *baselines = json_object();
    for (int i = 0; baselines && i < baseline_count(r); i++)
        json_object_set_new(baselines, r->of->baselines[i], report_json_number(c->baselines[i]));
    bool has_null = c->null > 0 && c->kind == CELL_PREDICTED;
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:s, s:o, s:o}",
                     "row", c->row, "quantity", c->quantity, "unit", c->unit, "obtained", kind_names[c->kind],
                     "published", report_json_number(c->published), "ours", report_json_number(c->ours),
                     "low", report_json_number(c->low), "high", report_json_number(c->high), "deviation",
                     report_json_number(reproduction_deviation(c)), "limit",
                     report_json_number(c->tolerance > 0 ? c->tolerance : NAN), "verdict", verdict(c),
                     "baselines", baselines, "null", report_json_number(has_null ? c->null : NAN),
                     "uncertainty", report_json_number(has_null ? c->uncertainty : NAN), "note", c->note,
                     "command", c->command[0] ? json_string(c->command) : json_null(), "algorithms",
                     c->algorithms[0] ? json_string(c->algorithms) : json_null());
}

static json_t *skill_to_json(const reproduction_report *r)
{
    reproduction_skill s;
    bool own = strcmp(r->profiles, r->of->profiles) == 0;
    if (!r->of->calibration) return json_null();
    reproduction_skill_of(r, &s);
    return json_pack("{s:o, s:i, s:i, s:o, s:o, s:i, s:i, s:s, s:s}", "value", report_json_number(s.skill),
                     "scored_cells", s.scored, "sources", s.sources, "worst_without_one_source",
                     report_json_number(s.worst), "without",
                     s.without[0] ? json_string(s.without) : json_null(), "unscored_cells", s.unscored,
                     "unscored_within", s.unscored_within, "calibration", r->of->calibration, "constants",
                     own ? r->of->constants : "from another profile than the profiles of the table");
}

/* Counts the constants with a range in the profiles, and the ranges that are guesses. Returns JSON null if
 * the table uses no profile. */
static json_t *ranges_to_json(const reproduction_report *r)
{
    enum { MOST = 8 };
    sim_profile *profiles[MOST];
    int count = 0, ranges = 0, guesses = 0;
    char names[sizeof r->profiles], *rest = NULL;
    snprintf(names, sizeof names, "%s", r->of->measured || r->of->exact ? "" : r->profiles);
    for (char *name = strtok_r(names, ", ", &rest); name && count < MOST;
         name = strtok_r(NULL, ", ", &rest)) {
        if (sim_profile_load(name, &profiles[count]) != STATUS_OK) {
            error_clear();
            continue;
        }
        for (int c = 0; c < SIM_CONSTANT_COUNT; c++) {
            const sim_provenance *from = &profiles[count]->provenance[c];
            bool counted = !sim_profile_has_range(profiles[count], (sim_constant)c);
            for (int i = 0; i < count; i++) /* another profile may have the constant from the same file */
                counted = counted || (sim_profile_has_range(profiles[i], (sim_constant)c) &&
                                      strcmp(profiles[i]->provenance[c].from, from->from) == 0);
            ranges += !counted;
            guesses += !counted && from->guessed;
        }
        count++;
    }
    for (int i = 0; i < count; i++) sim_profile_free(&profiles[i]);
    return count ? json_pack("{s:i, s:i}", "constants", ranges, "guesses", guesses) : json_null();
}

json_t *reproduction_json(const reproduction_report *r)
{
    json_t *cells = json_array(), *claims = json_array(), *notes = json_array();
    for (int i = 0; i < r->cell_count; i++) json_array_append_new(cells, cell_to_json(r, &r->cells[i]));
    for (int i = 0; i < r->claim_count; i++)
        json_array_append_new(claims, json_pack("{s:s, s:b, s:s}", "claim", r->claims[i].text, "holds",
                                                (int)r->claims[i].holds, "detail", r->claims[i].detail));
    for (int i = 0; i < r->note_count; i++) json_array_append_new(notes, json_string(r->notes[i]));
    return json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:b, s:o, s:o, s:o, s:o, s:o}", "schema_version",
                     RESULT_SCHEMA_VERSION, "table", r->of->name, "title", r->of->title, "published",
                     r->of->source, "profiles", r->profiles, "how", r->of->how, "simulated",
                     (int)!r->of->measured, "cells", cells, "claims", claims, "skill", skill_to_json(r),
                     "ranges", ranges_to_json(r), "notes", notes);
}
