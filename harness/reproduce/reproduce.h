/* Reproductions: every row of a published table that a virtual device can do, run by the engines' own code
 * and compared with the published figure. docs/reproduction.md has the protocol and the outcome. */
#ifndef HARNESS_REPRODUCE_REPRODUCE_H
#define HARNESS_REPRODUCE_REPRODUCE_H

#include "common/base/text.h"
#include "harness/reproduce/published.h"
#include "harness/sim/virtual_measure.h"

#include <jansson.h>

typedef enum cell_kind {
    CELL_CALIBRATED, /* the profile was fitted to it */
    CELL_PREDICTED,  /* held out: scored */
    CELL_DERIVED,    /* of other cells: scored, a miss follows from theirs */
    CELL_DIRECTION   /* model or hardware not stated: shown, not scored */
} cell_kind;

enum { CELL_BASELINES = 3 };

typedef struct reproduction_cell {
    char row[64], quantity[40], unit[24];
    cell_kind kind;
    double published, ours;           /* NaN: not there */
    double tolerance;                 /* of the deviation; 0: none is asked for */
    double baselines[CELL_BASELINES]; /* NaN: does not apply */
    char note[160];
} reproduction_cell;

/* A condition that must hold, in addition to single cells. */
typedef struct reproduction_claim {
    char text[200];
    bool holds;
    char detail[200];
} reproduction_claim;

enum { REPRODUCTION_CELLS = 128, REPRODUCTION_CLAIMS = 32, REPRODUCTION_NOTES = 8 };

typedef struct reproduction_report {
    const char *name, *title, *source, *how;
    char profiles[256];                    /* that predicted; measured: what it was measured on */
    bool measured;                         /* on real devices, none of it simulated */
    const char *baselines[CELL_BASELINES]; /* what they are; NULL: none */
    reproduction_cell cells[REPRODUCTION_CELLS];
    int cell_count;
    reproduction_claim claims[REPRODUCTION_CLAIMS];
    int claim_count;
    char notes[REPRODUCTION_NOTES][400];
    int note_count;
} reproduction_report;

typedef struct reproduction_options {
    const char *profile;   /* NULL: each row's own */
    bool calibration_only; /* no held-out row is run */
    bool cuda;             /* on the GPUs here, where the table can be measured */
} reproduction_options;

typedef struct reproduction {
    const char *name, *summary;
    status (*run)(const reproduction_options *options, reproduction_report *out);
} reproduction;

extern const reproduction *const reproduction_table[];
extern const int reproduction_count;

extern const reproduction reproduce_torch_vs_apex, reproduce_dp_vs_ddp, reproduce_ddp_benchmark,
    reproduce_throughput, reproduce_reducer_memory;

/* torch-vs-apex with `cuda`: the rows that the GPUs here can do; notes name those that they cannot. */
status reproduce_torch_vs_apex_cuda(reproduction_report *out);

/* ---- for the reproductions ---- */

/* ours / published - 1. */
double reproduction_deviation(const reproduction_cell *c);
/* Whether a scored cell is within its tolerance. */
bool reproduction_is_scored(const reproduction_cell *c);
bool reproduction_hits(const reproduction_cell *c);

/* Appends a cell with NaN baselines, or NULL-free storage beyond the end is our own mistake. */
reproduction_cell *reproduction_add(reproduction_report *r, const char *row, const char *quantity,
                                    const char *unit, cell_kind kind, double published, double ours,
                                    double tolerance);
reproduction_cell *reproduction_find(reproduction_report *r, const char *row, const char *quantity);
void reproduction_claim_that(reproduction_report *r, bool holds, const char *detail, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void reproduction_note(reproduction_report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- rendering ---- */

void reproduction_markdown(const reproduction_report *r, text_buffer *out);
void reproduction_csv(const reproduction_report *r, text_buffer *out);
json_t *reproduction_json(const reproduction_report *r);

#endif
