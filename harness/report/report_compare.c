/* Several runs of one workload under different policies: figures side by side, and the loss against time. */
#include "harness/report/report_impl.h"

#include "harness/report/report.h"

#include <math.h>
#include <string.h>

enum { ROWS = 12, FIRST_COLUMN = 12, COLUMN = 14 };

/* The one job of a run. */
static const json_t *job_of(const json_t *runs, size_t run)
{
    return json_array_get(json_object_get(json_array_get(runs, run), "jobs"), 0);
}

/* Seconds that the measured steps of a job's slowest rank took together. */
static double duration(const json_t *job)
{
    double longest = 0;
    size_t r, i;
    json_t *rank, *step;
    json_array_foreach(json_object_get(job, "ranks"), r, rank)
    {
        double sum = 0;
        json_array_foreach(json_object_get(rank, "step_s"), i, step) sum += json_number_value(step);
        longest = fmax(longest, sum);
    }
    return longest;
}

/* The mean of the losses of all steps, of whichever rank, that ended in (from, until]; NaN: none did. Each
 * rank has its own time: the sum of its steps. */
static double loss_between(const json_t *job, double from, double until)
{
    double sum = 0;
    int count = 0;
    size_t r, i;
    json_t *rank, *step;
    json_array_foreach(json_object_get(job, "ranks"), r, rank)
    {
        const json_t *losses = json_object_get(rank, "losses");
        double now = 0;
        json_array_foreach(json_object_get(rank, "step_s"), i, step)
        {
            now += json_number_value(step);
            const json_t *loss = json_array_get(losses, i);
            if (now <= from || now > until || !json_is_number(loss)) continue;
            sum += json_number_value(loss);
            count++;
        }
    }
    return count ? sum / count : NAN;
}

static void cell(double value, int decimals, text_buffer *out)
{
    if (isnan(value))
        text_append(out, "%*s", COLUMN, "-");
    else
        text_append(out, "%*.*f", COLUMN, decimals, value);
}

static void row(const json_t *runs, const char *label, const char *path, double scale, int decimals,
                text_buffer *out)
{
    text_append(out, "%-24s", label);
    for (size_t i = 0; i < json_array_size(runs); i++)
        cell(scale * report_number_at(job_of(runs, i), path), decimals, out);
    text_append(out, "\n");
}

static double mean_staleness(const json_t *job)
{
    double reads = 0, weighted = 0;
    size_t r;
    json_t *rank;
    json_array_foreach(json_object_get(job, "ranks"), r, rank)
    {
        const json_t *s = json_object_get(rank, "staleness");
        double own = json_number_value(json_object_get(s, "reads"));
        reads += own;
        weighted += own * json_number_value(json_object_get(s, "mean"));
    }
    return reads > 0 ? weighted / reads : NAN;
}

static void heads(const json_t *runs, int width, const char *label, text_buffer *out)
{
    text_append(out, "%-*s", width, label);
    for (size_t i = 0; i < json_array_size(runs); i++)
        text_append(out, "%*s", COLUMN, report_text_at(job_of(runs, i), "policy"));
    text_append(out, "\n");
}

static void loss_against_time(const json_t *runs, text_buffer *out)
{
    double end = 0;
    for (size_t i = 0; i < json_array_size(runs); i++) end = fmax(end, duration(job_of(runs, i)));
    text_append(out,
                "\nTraining loss against time: the mean over the steps that ended since the row above\n");
    heads(runs, FIRST_COLUMN, "seconds", out);
    for (int row_number = 1; row_number <= ROWS; row_number++) {
        double from = end * (row_number - 1) / ROWS, until = end * row_number / ROWS;
        text_append(out, "%-*.3f", FIRST_COLUMN, until);
        for (size_t i = 0; i < json_array_size(runs); i++)
            cell(loss_between(job_of(runs, i), from, until), 4, out);
        text_append(out, "\n");
    }
}

void report_compare(const json_t *runs, text_buffer *out)
{
    const json_t *first = json_array_get(runs, 0), *w = json_object_get(first, "workload");
    text_append(out, "%s, %s, batch %.0f per rank, %s, seed %.0f; %s\n\n", report_text_at(w, "model"),
                report_text_at(w, "data"), report_number_at(w, "batch_per_rank"),
                report_text_at(w, "optimizer"), report_number_at(w, "seed"),
                report_text_at(first, "hardware_note"));
    heads(runs, 24, "", out);
    row(runs, "ranks", "world_size", 1, 0, out);
    row(runs, "measured steps per rank", "step_time.count", 1, 0, out);
    row(runs, "step time, median, ms", "step_time.median_s", 1e3, 3, out);
    row(runs, "samples/s, all ranks", "throughput.samples_per_s", 1, 0, out);
    row(runs, "loss, last step", "loss_last", 1, 4, out);
    row(runs, "accuracy, test data, %", "accuracy", 100, 1, out);
    text_append(out, "%-24s", "staleness, mean");
    for (size_t i = 0; i < json_array_size(runs); i++) cell(mean_staleness(job_of(runs, i)), 2, out);
    text_append(out, "\n");
    loss_against_time(runs, out);
    for (size_t i = 0; i < json_array_size(runs); i++) report_staleness(job_of(runs, i), out);
}
