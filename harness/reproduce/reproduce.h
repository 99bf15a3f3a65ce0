/* Reproductions of published tables. The engines' code runs every row that virtual devices can run, and the
 * result is compared with the published figure. docs/reproduction.md describes the protocol and the
 * results.
 *
 * Files, in the order in which data flow through them:
 *   published.c        the published table
 *   scaling.c          scaling tables: the row of one GPU is fitted, the rows of more GPUs are predicted
 *   torch_vs_apex.c    torch 0.4.1 against apex, in virtual time and on GPUs
 *   torch_vs_apex_cpu.c  torch 0.4.1 against apex, as processes on this machine
 *   dp_vs_ddp.c        DataParallel against DistributedDataParallel
 *   reducer_memory.c   memory of device 0 under DataParallel
 *   skill.c            improvement over a null model
 *   score.c            how near predicted efficiencies are, by source and by link
 *   gpu_row.c          a row measured on GPUs
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

enum { PUBLISHED_COLUMNS = 12, PUBLISHED_ROWS = 128 };

typedef struct published_table {
    char *text; /* Text of the file, with NUL characters in place of commas and line ends. */
    const char *header[PUBLISHED_COLUMNS];
    const char *cells[PUBLISHED_ROWS][PUBLISHED_COLUMNS]; /* "" if the row is too short. */
    int columns, rows;
} published_table;

/* Opens table `name` (without suffix) from the source tree or the installation. Fails like input_read(), or
 * with STATUS_DATA if the table has too many rows. */
status published_open(const char *name, published_table *out);
void published_close(published_table *t);

/* Returns the cell of a column, or "" if the column does not exist. */
const char *published_text(const published_table *t, int row, const char *column);
double published_number(const published_table *t, int row, const char *column);

/* Returns the relative uncertainty of a cell, which combines the rounding of the published digits with the
 * value of the row in the column `spread`. Without a spread, returns 1 %, or the rounding if the rounding is
 * larger. */
double published_uncertainty(const published_table *t, int row, const char *column);

typedef enum cell_kind {
    CELL_CALIBRATED, /* The profile was fitted to the cell. */
    CELL_PREDICTED,  /* No constant but collective_share was fitted to the cell. It is scored. */
    CELL_DERIVED, /* The cell is computed from other cells, and is scored. An error of the other cells is also
                     an error of this cell. */
    CELL_DIRECTION, /* The cell is not scored, because its model or hardware is unknown or differs. */
    CELL_IDENTITY   /* The cell must be equal to a formula of this project, so it is not scored. */
} cell_kind;

enum { CELL_BASELINES = 3, REPRODUCTION_ROUNDS = 1000 };

/* Skill of a reproduction. p is the published figure of a cell, x the computed figure, z the forecast of the
 * null model, and u the uncertainty of the cell:
 *
 *   skill = 1 - sum max(0, |ln(x / p)| - u) / sum max(0, |ln(z / p)| - u)
 *
 * Both sums are over the predicted cells with |ln(z / p)| > 2 u. The null model forecasts that adding GPUs
 * costs no time and that all schemes are equally fast. The null model knows the figures of the calibration
 * rows. */
typedef struct reproduction_skill {
    double skill; /* NaN if fewer than four cells are scored. */
    /* Smallest skill if the cells of one source are left out. NaN if fewer than four cells remain. */
    double worst;
    const char *without; /* The source that is left out for `worst`. Borrowed from the report. */
    int scored, sources;
    /* `unscored` counts the predicted cells with |ln(z / p)| <= 2 u, which the skill leaves out.
     * `unscored_within` counts the cells among these with |ln(x / p)| <= 2 u. */
    int unscored, unscored_within;
} reproduction_skill;

typedef struct reproduction_report {
    const struct reproduction *of;
    char profiles[256]; /* Names of the profiles used, or of the measured GPUs. */
    /* Arrays as in the JSON (docs/results.md). A cell that counts for the skill also has a "source". */
    json_t *cells, *claims, *notes;
} reproduction_report;

/* Settings of a reproduction, and its state. */
typedef struct reproduction_run {
    const char *profile;   /* Profile for all rows, or NULL if the table chooses the profile of each row. */
    bool calibration_only; /* True if only the rows that calibrate are run. */
    double efficiency;     /* Value of --efficiency for all jobs, or 0 for the default. */
    const char *dp_host;   /* Value of --dp-host for the rows of DataParallel, or NULL if it was not given. */
    const char *link;      /* Value of --link of the rows that are measured on processors. */
    int rounds;            /* Number of rounds in which these rows are measured. */
    int draws;             /* Number of random draws of the constants, which give the limits of the cells. */

    /* State, set by reproduce(). */
    int draw;              /* Number of the present draw, or 0 if the constants are not drawn. */
    published_table table; /* Published table with the same name as the reproduction. */
    virtual_figures figures;
    reproduction_report *report;
    sim_override error;                /* The error that this row has in this draw. */
    const reproduction_report *values; /* The report of draw 0 while the other draws run, else NULL. */
} reproduction_run;

typedef struct reproduction {
    const char *name, *summary, *title, *source, *how;
    const char *profiles;                  /* Names of the profiles that the rows use. */
    const char *baselines[CELL_BASELINES]; /* Names of the baselines, or NULL. */
    /* Describes the rows to which constants were fitted, and whose figures the null model knows. NULL if the
     * table has no skill. */
    const char *calibration;
    const char *constants; /* For each profile, the commit since which the constants of the profile have not
                              changed. */
    const struct scaling *scaling; /* Read by run() in scaling.c. */
    bool measured;                 /* True if the rows are measured on real devices. */
    bool exact; /* True if the figures do not depend on any constant, so that there are no draws. */
    status (*run)(reproduction_run *run);
} reproduction;

extern const reproduction *const reproduction_table[];
extern const int reproduction_count;

extern const reproduction reproduce_torch_vs_apex, reproduce_dp_vs_ddp, reproduce_ddp_benchmark,
    reproduce_throughput, reproduce_tf_benchmarks, reproduce_reducer_memory, reproduce_training;

/* The table torch-vs-apex, measured on the GPUs of this machine. Notes name the rows that these GPUs cannot
 * run. */
extern const reproduction reproduce_torch_vs_apex_cuda;
/* The table torch-vs-apex, measured on the processors of this machine. */
extern const reproduction reproduce_torch_vs_apex_cpu;

/* Runs the table with the constants' values. If r->calibration_only is false, also runs the table for each of
 * r->draws draws of the constants (0 to SIM_DRAWS), and sets the low and high values of the cells. The caller
 * frees `out`. Returns STATUS_USAGE if r->dp_host is given for a table without DataParallel. */
status reproduce(const reproduction *what, reproduction_run *r, reproduction_report *out);

/* ---- for the reproductions ---- */

/* Appends a cell without baselines and note. `tolerance` is the largest relative deviation, or 0 if there is
 * no limit. Numbers may be NaN. Returns the cell, borrowed. */
json_t *reproduction_add(reproduction_report *r, const char *row, const char *quantity, const char *unit,
                         cell_kind kind, double published, double ours, double tolerance);
/* Sets the baseline `number` of a cell. */
void reproduction_baseline(const reproduction_report *r, json_t *cell, int number, double value);
void reproduction_cell_note(json_t *cell, const char *format, ...) __attribute__((format(printf, 2, 3)));
json_t *reproduction_find(const reproduction_report *r, const char *row, const char *quantity);
/* Adds a claim, which is a condition on several cells. `holds` says whether the condition holds. */
void reproduction_claim_that(reproduction_report *r, bool holds, const char *detail, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Gives a predicted cell a forecast of the null model, so that the cell counts for the skill. */
void reproduction_null(json_t *cell, double forecast, double uncertainty, const char *source);
void reproduction_skill_of(const reproduction_report *r, reproduction_skill *out);

/* A selection of cells. */
typedef struct reproduction_cells {
    const char *only, *without; /* A source, or NULL. */
    const char *link;           /* "NVLink" or "network", or NULL for both. */
} reproduction_cells;
bool reproduction_selects(const reproduction_cells *selection, const json_t *cell);
/* Returns the skill over the scored cells of a selection, and sets *cells to their number. */
double reproduction_skill_over(const reproduction_report *r, const reproduction_cells *selection, int *cells);

/* Says on how many GPUs and machines a cell ran, so that its efficiency is scored. */
void reproduction_place(json_t *cell, int gpus, int nodes);
/* Scores the efficiencies of the cells that have a place: all, by link, by source, and without each source.
 */
json_t *reproduction_score(const reproduction_report *r);
/* Sets the range of the model's error: for each cell on the same link, network or NVLink, that is not of the
 * source, the published step is divided by the predicted step, and 95 % of these ratios, the middle ones, are
 * in the range. The range is from 1 to 1 if there are no cells. */
void reproduction_error(const reproduction_report *r, const char *without, int nodes, double *low,
                        double *high);

/* Stores in a cell the command that computes the figure of the cell, and the algorithms of the job that was
 * measured last. */
status reproduction_from(const reproduction_run *r, json_t *cell, const virtual_workload *w);
void reproduction_note(reproduction_report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- rendering ---- */

/* Makes the JSON of the report. The report keeps its cells, claims and notes until reproduction_free(). */
json_t *reproduction_json(const reproduction_report *r);
void reproduction_csv(const reproduction_report *r, text_buffer *out);
void reproduction_free(reproduction_report *r);

/* Sets *efficiency so that a step of one GPU takes `step_ms` (virtual_fit). If a draw of the constants cannot
 * give this time, for example because launches take longer, sets *efficiency to NaN. Figures measured with an
 * efficiency of NaN are NaN. */
status reproduction_fit(reproduction_run *r, const virtual_workload *one_gpu, double step_ms,
                        double *efficiency);

/* Measures a workload, and stores the figures in r->figures. */
status reproduction_measure(reproduction_run *r, const virtual_workload *w);

/* Appends options of `harness run` to a workload. */
void workload_options(virtual_workload *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

typedef struct gpu_row {
    model_options model;
    int64_t batch;
    int gpus;
    const char *policy; /* Policy of the ring engine. Ignored for one GPU. */
    optimizer_options optimizer;
    int64_t steps, warmup; /* Number of measured steps, and of warm-up steps before them. */
} gpu_row;

/* Measures a row on GPUs. Ranks are threads of this process. Sets the time of each pass in ms: the median
 * over the steps, and the maximum over the ranks. The device is synchronized between the passes. Every step
 * has the same random inputs. */
status gpu_row_measure(const gpu_row *row, double *forward_ms, double *backward_ms);

#endif
