#include "harness/reproduce/reproduce.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const reproduction *const reproduction_table[] = {&reproduce_torch_vs_apex, &reproduce_dp_vs_ddp,
                                                  &reproduce_ddp_benchmark, &reproduce_throughput,
                                                  &reproduce_reducer_memory};
const int reproduction_count = sizeof reproduction_table / sizeof reproduction_table[0];

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
    *c = (reproduction_cell){.kind = kind, .published = published, .ours = ours, .tolerance = tolerance};
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
