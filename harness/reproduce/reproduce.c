#include "harness/reproduce/reproduce.h"

#include "harness/report/report.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const reproduction *const reproduction_table[] = {
    &reproduce_torch_vs_apex, &reproduce_dp_vs_ddp,      &reproduce_ddp_benchmark, &reproduce_throughput,
    &reproduce_tf_benchmarks, &reproduce_reducer_memory, &reproduce_training};
const int reproduction_count = sizeof reproduction_table / sizeof reproduction_table[0];

static status run_table(const reproduction *what, reproduction_run *r, int draw, reproduction_report *out)
{
    r->draw = draw;
    r->report = out;
    *out = (reproduction_report){
        .of = what, .cells = json_array(), .claims = json_array(), .notes = json_array()};
    snprintf(out->profiles, sizeof out->profiles, "%s", r->profile ? r->profile : what->profiles);
    return what->run(r);
}

void reproduction_free(reproduction_report *r)
{
    json_decref(r->cells);
    json_decref(r->claims);
    json_decref(r->notes);
}

/* Adds to each cell the range of its value over the draws. Every draw runs the same cells in the same
 * order. */
static status add_ranges(const reproduction *what, reproduction_run *r, reproduction_report *out)
{
    status rc = STATUS_OK;
    r->values = out;
    for (int draw = 1; draw <= r->draws && rc == STATUS_OK; draw++) {
        reproduction_report drawn;
        size_t i;
        json_t *cell;
        rc = run_table(what, r, draw, &drawn);
        json_array_foreach(out->cells, i, cell)
        {
            double ours = report_number_at(json_array_get(drawn.cells, i), "ours");
            json_object_set_new(cell, "low", report_json_number(fmin(report_number_at(cell, "low"), ours)));
            json_object_set_new(cell, "high", report_json_number(fmax(report_number_at(cell, "high"), ours)));
        }
        reproduction_free(&drawn);
    }
    return rc;
}

status reproduce(const reproduction *what, reproduction_run *r, reproduction_report *out)
{
    if (r->dp_host && what != &reproduce_dp_vs_ddp)
        return fail(STATUS_USAGE, "--dp-host: expected table dp-vs-ddp, got %s", what->name);
    status rc = published_open(what->name, &r->table);
    if (rc == STATUS_OK) rc = run_table(what, r, 0, out);
    if (rc == STATUS_OK && !r->calibration_only && !what->measured && !what->exact)
        rc = add_ranges(what, r, out);
    published_close(&r->table);
    virtual_figures_free(&r->figures);
    return rc;
}

json_t *reproduction_add(reproduction_report *r, const char *row, const char *quantity, const char *unit,
                         cell_kind kind, double published, double ours, double tolerance)
{
    static const char *const kinds[] = {[CELL_CALIBRATED] = "calibrated",
                                        [CELL_PREDICTED] = "predicted",
                                        [CELL_DERIVED] = "derived",
                                        [CELL_DIRECTION] = "direction only",
                                        [CELL_IDENTITY] = "identity"};
    double deviation = ours / published - 1;
    bool scored = (kind == CELL_PREDICTED || kind == CELL_DERIVED) && tolerance > 0 && !isnan(deviation);
    bool hits = fabs(deviation) <= tolerance;
    const char *verdict = "";
    if (kind == CELL_IDENTITY) verdict = hits ? "identical" : "DIFFERS";
    if (scored) verdict = hits ? "within" : "MISS";
    json_t *cell = json_pack(
        "{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:{}, s:n, s:n, s:s, s:n, s:n}", "row", row,
        "quantity", quantity, "unit", unit, "obtained", kinds[kind], "published",
        report_json_number(published), "ours", report_json_number(ours), "low", report_json_number(ours),
        "high", report_json_number(ours), "deviation", report_json_number(deviation), "limit",
        report_json_number(tolerance > 0 ? tolerance : NAN), "verdict", verdict, "baselines", "null",
        "uncertainty", "note", "", "command", "algorithms");
    for (int i = 0; i < CELL_BASELINES && r->of->baselines[i]; i++) reproduction_baseline(r, cell, i, NAN);
    json_array_append_new(r->cells, cell);
    return cell;
}

void reproduction_baseline(const reproduction_report *r, json_t *cell, int number, double value)
{
    json_object_set_new(json_object_get(cell, "baselines"), r->of->baselines[number],
                        report_json_number(value));
}

void reproduction_cell_note(json_t *cell, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    json_object_set_new(cell, "note", json_vsprintf(format, arguments));
    va_end(arguments);
}

json_t *reproduction_find(const reproduction_report *r, const char *row, const char *quantity)
{
    size_t i;
    json_t *cell;
    json_array_foreach(r->cells, i, cell)
    {
        if (strcmp(report_text_at(cell, "row"), row) == 0 &&
            strcmp(report_text_at(cell, "quantity"), quantity) == 0)
            return cell;
    }
    return NULL;
}

status reproduction_from(const reproduction_run *r, json_t *cell, const virtual_workload *w)
{
    text_buffer text = {0};
    TRY(virtual_command(w, &text));
    if (text.length > 0) json_object_set_new(cell, "command", json_string(text.data));
    text_free(&text);
    report_algorithms(r->figures.job, false, &text);
    if (text.length > 0) json_object_set_new(cell, "algorithms", json_string(text.data));
    text_free(&text);
    return STATUS_OK;
}

void reproduction_claim_that(reproduction_report *r, bool holds, const char *detail, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    json_array_append_new(r->claims, json_pack("{s:o, s:b, s:s}", "claim", json_vsprintf(format, arguments),
                                               "holds", (int)holds, "detail", detail));
    va_end(arguments);
}

void reproduction_note(reproduction_report *r, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    json_array_append_new(r->notes, json_vsprintf(format, arguments));
    va_end(arguments);
}

void workload_options(virtual_workload *w, const char *format, ...)
{
    size_t used = strlen(w->options);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(w->options + used, sizeof w->options - used, format, arguments);
    va_end(arguments);
    assert(strlen(w->options) < sizeof w->options - 1);
}

status reproduction_fit(reproduction_run *r, const virtual_workload *one_gpu, double step_ms,
                        double *efficiency)
{
    status rc = virtual_fit(one_gpu, step_ms, &r->figures, efficiency);
    if (rc != STATUS_CONFIG || r->draw == 0) return rc;
    error_clear();
    *efficiency = NAN;
    return STATUS_OK;
}

status reproduction_measure(reproduction_run *r, const virtual_workload *w)
{
    if (!isnan(w->efficiency)) return virtual_measure(w, &r->figures);
    virtual_figures_free(&r->figures);
    r->figures.step_ms = r->figures.forward_ms = r->figures.backward_ms = NAN;
    return STATUS_OK;
}
