/* torch 0.4.1 against apex, measured on the processors of this machine. Each row is a real `harness run`,
 * whose ranks are processes that exchange gradients over an emulated link. A round runs each row once. The
 * order of the policies alternates from round to round, so that a drift of the machine affects both. */
#include "common/net/link.h"
#include "harness/launch/job.h"
#include "harness/launch/processors.h"
#include "harness/report/report.h"
#include "harness/report/statistics.h"
#include "harness/reproduce/reproduce.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WORDS = 48, COMMAND_SIZE = 512 };
/* A row of one rank has no communication, so it has only the quantities before EXPOSED. */
enum { FORWARD, BACKWARD, TOTAL, EXPOSED, HIDDEN, QUANTITIES };
static const char *const names[] = {"forward", "backward", "total", "exposed communication",
                                    "hidden communication"};
static const char *const columns[] = {"forward_ms", "backward_ms", "total_ms"};
/* Figures of a row in each round, in ns and in 1e-6 %. All are 0 if the row does not run. */
typedef int64_t row_values[QUANTITIES][REPRODUCTION_ROUNDS];

static int gpus_of(const reproduction_run *r, int row)
{
    return (int)published_number(&r->table, row, "gpus");
}

static void command_of(const reproduction_run *r, int row, char out[COMMAND_SIZE])
{
    char engine[128] = "none";
    if (gpus_of(r, row) > 1)
        snprintf(engine, sizeof engine, "ring --policy %s --gpus %d --link %.40s",
                 published_text(&r->table, row, "policy"), gpus_of(r, row), r->link);
    snprintf(out, COMMAND_SIZE,
             "harness run --device cpu --mode %s --model resnet50 --image 32 --batch 8 --threads 1 --lr 0.1 "
             "--warmup 1 --steps 4 --eval-every=-1 --quiet",
             engine);
}

/* Returns the median over the steps, in ns. */
static int64_t median(const json_t *phases, const char *phase)
{
    return llround(1e9 * report_number_at(json_object_get(phases, phase), "median_s"));
}

static void read_figures(const json_t *phases, int round, row_values out)
{
    int64_t exchange = median(phases, "communication_s");
    out[EXPOSED][round] = median(phases, "exposed_communication_s");
    out[HIDDEN][round] = exchange ? 100000000 * median(phases, "hidden_communication_s") / exchange : 0;
    out[FORWARD][round] = median(phases, "forward_s");
    out[BACKWARD][round] = median(phases, "backward_s") + out[EXPOSED][round] + median(phases, "waiting_s");
    out[TOTAL][round] = out[FORWARD][round] + out[BACKWARD][round];
}

static status run_row(const reproduction_run *r, int row, int round, row_values out)
{
    char command[COMMAND_SIZE], *words[MOST_WORDS + 1] = {NULL}, *rest = command;
    int count = 0;
    run_config c;
    run_plan plan = {0};
    run_jobs jobs = {0};
    const launch_outcome *end = &jobs.outcome;
    command_of(r, row, command);
    while (rest && count < MOST_WORDS) words[count++] = strsep(&rest, " ");
    TRY(run_config_init(&c));
    TRY(run_config_parse(&c, count - 2, words + 2));
    status rc = run_plan_make(&c, &plan);
    if (rc == STATUS_OK) rc = run_config_check_host(&c, plan.largest_job_bytes);
    if (rc == STATUS_OK) rc = run_jobs_run(&c, &plan, words, &jobs);
    if (rc == STATUS_OK && end->exit_code)
        rc = fail(end->exit_code > 128 ? STATUS_STOPPED : STATUS_PEER, "%s",
                  end->cause[0] ? end->cause : "stopped on request");
    for (int j = 0; j < JOB_COUNT && rc == STATUS_OK; j++)
        if (jobs.jobs[j].result) read_figures(json_object_get(jobs.jobs[j].result, "phases"), round, out);
    run_jobs_free(&jobs);
    run_plan_free(&plan);
    return rc;
}

/* Runs the rows with the most ranks first, so that a lack of memory shows at once. */
static status run_round(const reproduction_run *r, int round, row_values *values)
{
    log_info("round %d of %d", round + 1, r->rounds);
    for (int gpus = r->calibration_only ? 2 : 8; gpus > 0; gpus /= 2)
        for (int i = 0; i < r->table.rows; i++) {
            int row = round % 2 ? r->table.rows - 1 - i : i;
            if (gpus_of(r, row) == gpus) TRY(run_row(r, row, round, values[row]));
        }
    return STATUS_OK;
}

static void compare(reproduction_report *r, int ranks, const double *torch, const double *apex)
{
    char detail[80];
    snprintf(detail, sizeof detail, "%.1f against %.1f ms", apex[TOTAL], torch[TOTAL]);
    reproduction_claim_that(r, apex[TOTAL] < torch[TOTAL], detail, "%d ranks: apex is below torch-0.4.1",
                            ranks);
    snprintf(detail, sizeof detail, "%.0f against %.0f %%", apex[HIDDEN], torch[HIDDEN]);
    reproduction_claim_that(r, apex[HIDDEN] > torch[HIDDEN], detail,
                            "%d ranks: apex hides more of the exchange than torch-0.4.1", ranks);
}

/* Adds the cells of a row and sets its medians. Compares the row with earlier rows of as many ranks. */
static void add_row(const reproduction_run *r, int row, row_values *values, double medians[][QUANTITIES])
{
    const published_table *t = &r->table;
    int gpus = gpus_of(r, row);
    char label[80], command[COMMAND_SIZE];
    double added = published_number(t, row, "backward_ms") - published_number(t, 0, "backward_ms");
    snprintf(label, sizeof label, "%d rank%s, %s, %.3g CPU per rank", gpus, gpus > 1 ? "s" : "",
             published_text(t, row, "policy"), fmin(1, (double)processors_usable() / gpus));
    command_of(r, row, command);
    for (int q = 0; q < (gpus > 1 ? QUANTITIES : EXPOSED); q++) {
        statistics s = statistics_of(values[row][q], r->rounds);
        medians[row][q] = s.median / 1e6;
        double published = q < EXPOSED ? published_number(t, row, columns[q]) : q == EXPOSED ? added : NAN;
        json_t *c = reproduction_add(r->report, label, names[q], q == HIDDEN ? "%" : "ms", CELL_DIRECTION,
                                     published, medians[row][q], 0);
        json_object_update_new(c, json_pack("{s:f, s:f, s:n, s:s}", "low", s.minimum / 1e6, "high",
                                            s.maximum / 1e6, "deviation", "command", command));
    }
    for (int torch = 0; torch < row; torch++)
        if (gpus_of(r, torch) == gpus) compare(r->report, gpus, medians[torch], medians[row]);
}

static status run_on_processors(reproduction_run *r)
{
    processor_time begin = processors_time();
    double medians[PUBLISHED_ROWS][QUANTITIES];
    net_link link;
    TRY(net_link_parse(r->link, &link));
    row_values *values = calloc(PUBLISHED_ROWS, sizeof *values);
    status rc = values ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for the figures");
    snprintf(r->report->profiles, sizeof r->report->profiles, "processors of this machine (%d), --link %s",
             processors_usable(), r->link);
    for (int round = 0; round < r->rounds && rc == STATUS_OK; round++) rc = run_round(r, round, values);
    for (int row = 0; row < r->table.rows && rc == STATUS_OK; row++)
        if (values[row][TOTAL][0] > 0) add_row(r, row, values, medians);
    free(values);
    double others = processors_of_others(&begin);
    if (!isnan(others))
        reproduction_note(r->report, "Other programs used %.1f processors meanwhile.", others);
    reproduction_note(r->report, "Ranks with less than 1 CPU share processors and take longer, so compare "
                                 "only rows with the same number of ranks.");
    return rc;
}

const reproduction reproduce_torch_vs_apex_cpu = {
    .name = "torch-vs-apex",
    .title = "torch 0.4.1 DistributedDataParallel against apex: ResNet-50; measured on the processors here",
    .source = "results/published/torch-vs-apex.csv, rounded to 1 ms, of V100-PCIE-32G",
    .how = "Forward, then backward with the reduction: images of 32x32, batch 8, 1 thread per rank. A figure "
           "is the median of the rounds (smallest-largest round); a round is the mean of the ranks, and the "
           "median of 4 steps. Published exposed communication: backward minus backward on 1 GPU. Machine "
           "and images differ from the published ones, so nothing is scored.",
    .profiles = "",
    .measured = true,
    .run = run_on_processors};
