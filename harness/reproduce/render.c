/* Renders a reproduction as CSV and JSON. */
#include "harness/reproduce/reproduce.h"

#include "common/sim/profile.h"
#include "harness/report/report.h"
#include "harness/result/run_result.h"

#include <stdio.h>
#include <string.h>

/* ---- CSV -------------------------------------------------------------------------------------- */

static void csv_number(const json_t *value, text_buffer *out)
{
    text_append(out, ",");
    if (json_is_number(value)) text_append(out, "%.6g", json_number_value(value));
}

/* Texts are quoted without escapes, because no text contains a quotation mark. */
void reproduction_csv(const reproduction_report *r, text_buffer *out)
{
    static const char *const numbers[] = {"published", "ours", "low", "high", "deviation", "limit"};
    const char *name;
    size_t i;
    json_t *cell, *baseline;
    text_append(out, "table,row,quantity,unit,obtained,published,ours,low,high,deviation,limit,verdict");
    for (int b = 0; b < CELL_BASELINES && r->of->baselines[b]; b++)
        text_append(out, ",\"%s\"", r->of->baselines[b]);
    text_append(out, ",profiles\n");
    json_array_foreach(r->cells, i, cell)
    {
        text_append(out, "%s,\"%s\",\"%s\",%s,%s", r->of->name, report_text_at(cell, "row"),
                    report_text_at(cell, "quantity"), report_text_at(cell, "unit"),
                    report_text_at(cell, "obtained"));
        for (int n = 0; n < 6; n++) csv_number(json_object_get(cell, numbers[n]), out);
        text_append(out, ",%s", report_text_at(cell, "verdict"));
        json_object_foreach(json_object_get(cell, "baselines"), name, baseline) csv_number(baseline, out);
        text_append(out, ",\"%s\"\n", r->profiles);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------- */

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

/* Counts the constants that have a range in the profiles, and how many of these ranges are guesses. Returns
 * JSON null if the table uses no profile. */
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
            for (int i = 0; i < count; i++) /* a constant from the same file counts only once */
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
    static const char *const own[] = {"source", "gpus", "link", "rule"};
    bool placed = json_object_get(json_array_get(r->cells, 0), "gpus") != NULL;
    json_t *skill = skill_to_json(r), *score = placed ? reproduction_score(r) : NULL, *cell;
    size_t i;
    json_array_foreach(r->cells, i, cell) for (size_t k = 0; k < sizeof own / sizeof *own; k++)
        json_object_del(cell, own[k]);
    return json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:b, s:O, s:O, s:o, s:o*, s:o, s:O}", "schema_version",
                     REPRODUCTION_SCHEMA_VERSION, "table", r->of->name, "title", r->of->title, "published",
                     r->of->source, "profiles", r->profiles, "how", r->of->how, "simulated",
                     (int)!r->of->measured, "cells", r->cells, "claims", r->claims, "skill", skill, "score",
                     score, "ranges", ranges_to_json(r), "notes", r->notes);
}
