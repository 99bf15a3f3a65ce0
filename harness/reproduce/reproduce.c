#include "harness/reproduce/reproduce.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const reproduction *const reproduction_table[] = {&reproduce_torch_vs_apex, &reproduce_dp_vs_ddp,
                                                  &reproduce_ddp_benchmark, &reproduce_throughput,
                                                  &reproduce_reducer_memory};
const int reproduction_count = sizeof reproduction_table / sizeof reproduction_table[0];

status reproduce(const reproduction *what, const char *profile, bool calibration_only,
                 reproduction_report *out)
{
    reproduction_run *r = calloc(1, sizeof *r);
    if (!r) return fail(STATUS_SYSTEM, "no memory for the figures");
    r->profile = profile;
    r->calibration_only = calibration_only;
    r->report = out;
    out->of = what;
    snprintf(out->profiles, sizeof out->profiles, "%s", profile ? profile : what->profiles);
    status rc = published_open(what->name, &r->table);
    if (rc == STATUS_OK) rc = what->run(r);
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
    *c = (reproduction_cell){
        .kind = kind, .published = published, .ours = ours, .tolerance = tolerance, .null = NAN};
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

status reproduction_from(reproduction_cell *c, const virtual_workload *w)
{
    text_buffer text = {0};
    TRY(virtual_command(w, &text));
    snprintf(c->command, sizeof c->command, "%s", text.data ? text.data : "");
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

void compute_fit_apply(double factor, virtual_workload *w)
{
    workload_options(w, " --efficiency %.17g", factor);
}

status compute_fit_find(const virtual_workload *one_gpu, double step_ms, virtual_figures *scratch,
                        double *factor)
{
    enum { ROUNDS = 20 };
    *factor = 1;
    for (int i = 0; i < ROUNDS; i++) {
        virtual_workload w = *one_gpu;
        compute_fit_apply(*factor, &w);
        TRY(virtual_measure(&w, scratch));
        if (fabs(scratch->step_ms / step_ms - 1) < 1e-4) return STATUS_OK;
        *factor *= scratch->step_ms / step_ms; /* time goes with 1 / factor, but for launches */
    }
    return fail(
        STATUS_CONFIG,
        "profile %s: expected a step of %.3f ms on one GPU, the nearest that its compute gives is %.3f",
        one_gpu->profile, step_ms, scratch->step_ms);
}
