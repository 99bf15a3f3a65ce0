/* Reproductions: every row of a published table that a virtual device can do, run by the engines' own code
 * and compared with the published figure. docs/reproduction.md has the protocol and the outcome.
 *
 * The files in the order in which data flow through them:
 *   published.c        the published table
 *   scaling.c          tables that say how training scales: a row of one GPU calibrates, others are predicted
 *   torch_vs_apex.c, dp_vs_ddp.c, reducer_memory.c: tables of other kinds
 *   skill.c            how much better than a null model
 *   gpu_row.c          a row measured on GPUs instead of virtual ones
 *   reproduce.c        cells, claims, notes; the fit of a profile's compute
 *   render.c           the report as CSV and JSON; harness/report/report_reproduction.c renders Markdown */
#ifndef HARNESS_REPRODUCE_REPRODUCE_H
#define HARNESS_REPRODUCE_REPRODUCE_H

#include "common/base/status.h"
#include "common/base/text.h"
#include "common/optim/optimizer.h"
#include "harness/sim/virtual_measure.h"
#include "models/models.h"

#include <jansson.h>

/* ---- Published tables: CSV files with `#` comments and a header line, in results/published ---- */

enum { PUBLISHED_COLUMNS = 12, PUBLISHED_ROWS = 64 };

typedef struct published_table {
    char *text; /* of the file, cut at its commas and lines */
    const char *header[PUBLISHED_COLUMNS];
    const char *cells[PUBLISHED_ROWS][PUBLISHED_COLUMNS]; /* "" where a row is short */
    int columns, rows;
} published_table;

/* `name` without suffix, from where the build or the installation keeps them. STATUS_DATA. */
status published_open(const char *name, published_table *out);
void published_close(published_table *t);

/* The cell of a column; "" where there is no such column. */
const char *published_text(const published_table *t, int row, const char *column);
double published_number(const published_table *t, int row, const char *column);

/* Relative: the rounding of the cell's digits combined with the row's `spread`; where no spread is stated 1
 * %, or the rounding if that is more. */
double published_uncertainty(const published_table *t, int row, const char *column);

typedef enum cell_kind {
    CELL_CALIBRATED, /* the profile was fitted to it */
    CELL_PREDICTED,  /* held out: scored */
    CELL_DERIVED,    /* of other cells: scored, a miss follows from theirs */
    CELL_DIRECTION,  /* model or hardware not stated: shown, not scored */
    CELL_IDENTITY    /* compared with a formula of our own: equal, or a defect; not scored */
} cell_kind;

enum { CELL_BASELINES = 3 };

typedef struct reproduction_cell {
    char row[64], quantity[40], unit[24];
    cell_kind kind;
    double published, ours;           /* NaN: not there */
    double low, high;                 /* of ours, over the draws of the constants from their ranges */
    double tolerance;                 /* of the deviation; 0: none is asked for */
    double baselines[CELL_BASELINES]; /* NaN: does not apply */
    double null;        /* the null model's forecast; NaN: the cell takes no part in the skill */
    double uncertainty; /* of the published figure, relative */
    char source[64];    /* of the published figure */
    char note[160];
    char command[640];   /* `harness run ...` of the job that gave the figure; "": several, or none */
    char algorithms[40]; /* by which its buckets were all-reduced: "ring and tree"; "": it has none */
} reproduction_cell;

/* A condition that must hold, in addition to single cells. */
typedef struct reproduction_claim {
    char text[200];
    bool holds;
    char detail[200];
} reproduction_claim;

/* S = 1 - sum max(0, |ln(ours / published)| - u) / sum max(0, |ln(null / published)| - u) over the predicted
 * cells with |ln(null / published)| > 2 u, where u is the cell's uncertainty. The null model says that more
 * GPUs cost nothing and that schemes are equal; it is given the calibration rows. */
typedef struct reproduction_skill {
    double skill; /* NaN: fewer than four scored cells, so no verdict */
    double worst; /* the smallest of those that leave one source out; NaN: fewer than four cells are left */
    const char *without; /* that source; within the report */
    int scored, sources;
    int unscored, unscored_within; /* cells that the null model meets too; ours is within 2 u */
} reproduction_skill;

enum { REPRODUCTION_CELLS = 128, REPRODUCTION_CLAIMS = 32, REPRODUCTION_NOTES = 8 };

typedef struct reproduction_report {
    const struct reproduction *of;
    char profiles[256]; /* that predicted; measured: what it was measured on */
    reproduction_cell cells[REPRODUCTION_CELLS];
    int cell_count;
    reproduction_claim claims[REPRODUCTION_CLAIMS];
    int claim_count;
    char notes[REPRODUCTION_NOTES][400];
    int note_count;
} reproduction_report;

/* What a reproduction is run with. */
typedef struct reproduction_run {
    const char *profile;   /* NULL: each row's own */
    bool calibration_only; /* no held-out row is run */
    double efficiency;     /* of all jobs, where the table has one; 0: not given */
    const char *dp_host;   /* --dp-host of DataParallel's rows; NULL: not given */
    int draw;              /* of the constants from their ranges (simulation.h); 0: their values */
    published_table table; /* of the reproduction's name */
    virtual_figures figures;
    reproduction_report *report;
} reproduction_run;

typedef struct reproduction {
    const char *name, *summary, *title, *source, *how;
    const char *profiles;                  /* where the rows' own predict */
    const char *baselines[CELL_BASELINES]; /* what they are; NULL: none */
    const char *calibration; /* the rows that constants were fitted to, which the null model is given; NULL:
                                no skill */
    const char *constants;   /* the profiles, and the commits since which their constants are what they are */
    const struct scaling *scaling; /* of reproduction_scale() */
    bool measured;                 /* on real devices, none of it simulated */
    bool exact;                    /* no constant enters: no draws */
    status (*run)(reproduction_run *run);
} reproduction;

extern const reproduction *const reproduction_table[];
extern const int reproduction_count;

extern const reproduction reproduce_torch_vs_apex, reproduce_dp_vs_ddp, reproduce_ddp_benchmark,
    reproduce_throughput, reproduce_tf_benchmarks, reproduce_reducer_memory;

/* torch-vs-apex on the GPUs here: the rows that they can do; notes name those that they cannot. */
extern const reproduction reproduce_torch_vs_apex_cuda;

/* Runs the table with the constants' values, and, unless only the calibration is wanted, once more for each
 * of `draws` draws of them from their ranges (0 to SIM_DRAWS): a cell's low and high are those of its
 * figures. `profile` and `dp_host` as in reproduction_run; `out` is zero. STATUS_USAGE: a host for a table
 * without DataParallel. */
status reproduce(const reproduction *what, const char *profile, const char *dp_host, bool calibration_only,
                 int draws, reproduction_report *out);

/* ---- for the reproductions ---- */

/* Runs the rows of a table that says how training scales (scaling.c). */
status reproduction_scale(reproduction_run *r);

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
/* Has the cell take part in the skill. */
void reproduction_null(reproduction_cell *c, double forecast, double uncertainty, const char *source);
void reproduction_skill_of(const reproduction_report *r, reproduction_skill *out);

/* Notes the job of a cell's figure, which is the one measured last or one whose all-reduces are the same. */
status reproduction_from(const reproduction_run *r, reproduction_cell *c, const virtual_workload *w);
void reproduction_note(reproduction_report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- rendering ---- */

void reproduction_csv(const reproduction_report *r, text_buffer *out);
json_t *reproduction_json(const reproduction_report *r);

/* The efficiency that gives one GPU its published step (virtual_fit). NaN: a draw of constants that cannot
 * give it, as launches alone take longer; then it is no possible one, and figures that are measured with it
 * are NaN. */
status reproduction_fit(reproduction_run *r, const virtual_workload *one_gpu, double step_ms,
                        double *efficiency);

/* Fills r->figures. */
status reproduction_measure(reproduction_run *r, const virtual_workload *w);

/* Appends options of `harness run`. */
void workload_options(virtual_workload *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Measures one row of a published table on GPUs: ranks are threads of this process, a GPU each. */

typedef struct gpu_row {
    model_options model;
    int64_t batch; /* samples per rank */
    int gpus;
    const char *policy; /* of the ring engine; without meaning for one GPU */
    optimizer_options optimizer;
    int64_t steps, warmup; /* measured; before them */
} gpu_row;

/* Medians over the measured steps, the slowest rank's, in ms; the device is waited for between the phases.
 * Inputs are the same random numbers in every step. */
status gpu_row_measure(const gpu_row *row, double *forward_ms, double *backward_ms);

#endif
