#include "harness/reproduce/reproduce.h"

#include "harness/report/report.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const reproduction *const reproduction_table[] = {&reproduce_torch_vs_apex, &reproduce_dp_vs_ddp,
                                                  &reproduce_ddp_benchmark, &reproduce_throughput,
                                                  &reproduce_tf_benchmarks, &reproduce_reducer_memory};
const int reproduction_count = sizeof reproduction_table / sizeof reproduction_table[0];

static status run_table(const reproduction *what, reproduction_run *r, int draw, reproduction_report *out)
{
    r->draw = draw;
    r->report = out;
    *out = (reproduction_report){.of = what};
    snprintf(out->profiles, sizeof out->profiles, "%s", r->profile ? r->profile : what->profiles);
    return what->run(r);
}

/* Adds the ranges of the cells. Every draw runs the same cells in the same order. */
static status add_ranges(const reproduction *what, reproduction_run *r, int draws, reproduction_report *out)
{
    reproduction_report *drawn = malloc(sizeof *drawn);
    if (!drawn) return fail(STATUS_SYSTEM, "no memory for the figures");
    status rc = STATUS_OK;
    for (int draw = 1; draw <= draws && rc == STATUS_OK; draw++) {
        rc = run_table(what, r, draw, drawn);
        for (int i = 0; rc == STATUS_OK && i < out->cell_count; i++) {
            reproduction_cell *c = &out->cells[i];
            c->low = fmin(c->low, drawn->cells[i].ours);
            c->high = fmax(c->high, drawn->cells[i].ours);
        }
    }
    free(drawn);
    return rc;
}

status reproduce(const reproduction *what, const char *profile, const char *dp_host, bool calibration_only,
                 int draws, reproduction_report *out)
{
    if (dp_host && what != &reproduce_dp_vs_ddp)
        return fail(STATUS_USAGE, "--dp-host: expected table dp-vs-ddp, got %s", what->name);
    reproduction_run *r = calloc(1, sizeof *r);
    if (!r) return fail(STATUS_SYSTEM, "no memory for the figures");
    r->profile = profile;
    r->dp_host = dp_host;
    r->calibration_only = calibration_only;
    status rc = published_open(what->name, &r->table);
    if (rc == STATUS_OK) rc = run_table(what, r, 0, out);
    if (rc == STATUS_OK && !calibration_only && !what->measured && !what->exact)
        rc = add_ranges(what, r, draws, out);
    published_close(&r->table);
    virtual_figures_free(&r->figures);
    free(r);
    return rc;
}

double reproduction_deviation(const reproduction_cell *c)
{
    return c->ours / c->published - 1;
}

bool reproduction_is_scored(const reproduction_cell *c)
{
    bool scored = c->kind == CELL_PREDICTED || c->kind == CELL_DERIVED;
    return scored && c->tolerance > 0 && !isnan(c->published) && !isnan(c->ours);
}

bool reproduction_hits(const reproduction_cell *c)
{
    return fabs(reproduction_deviation(c)) <= c->tolerance;
}

reproduction_cell *reproduction_add(reproduction_report *r, const char *row, const char *quantity,
                                    const char *unit, cell_kind kind, double published, double ours,
                                    double tolerance)
{
    assert(r->cell_count < REPRODUCTION_CELLS);
    reproduction_cell *c = &r->cells[r->cell_count++];
    *c = (reproduction_cell){.kind = kind,
                             .published = published,
                             .ours = ours,
                             .low = ours,
                             .high = ours,
                             .tolerance = tolerance,
                             .null = NAN};
    snprintf(c->row, sizeof c->row, "%s", row);
    snprintf(c->quantity, sizeof c->quantity, "%s", quantity);
    snprintf(c->unit, sizeof c->unit, "%s", unit);
    for (int i = 0; i < CELL_BASELINES; i++) c->baselines[i] = NAN;
    return c;
}

reproduction_cell *reproduction_find(reproduction_report *r, const char *row, const char *quantity)
{
    for (int i = 0; i < r->cell_count; i++)
        if (strcmp(r->cells[i].row, row) == 0 && strcmp(r->cells[i].quantity, quantity) == 0)
            return &r->cells[i];
    return NULL;
}

status reproduction_from(const reproduction_run *r, reproduction_cell *c, const virtual_workload *w)
{
    text_buffer text = {0};
    TRY(virtual_command(w, &text));
    snprintf(c->command, sizeof c->command, "%s", text.data ? text.data : "");
    text_free(&text);
    report_algorithms(r->figures.job, false, &text);
    snprintf(c->algorithms, sizeof c->algorithms, "%s", text.data ? text.data : "");
    text_free(&text);
    return STATUS_OK;
}

void reproduction_claim_that(reproduction_report *r, bool holds, const char *detail, const char *format, ...)
{
    assert(r->claim_count < REPRODUCTION_CLAIMS);
    reproduction_claim *c = &r->claims[r->claim_count++];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(c->text, sizeof c->text, format, arguments);
    va_end(arguments);
    snprintf(c->detail, sizeof c->detail, "%s", detail);
    c->holds = holds;
}

void reproduction_note(reproduction_report *r, const char *format, ...)
{
    assert(r->note_count < REPRODUCTION_NOTES);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(r->notes[r->note_count++], sizeof r->notes[0], format, arguments);
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
