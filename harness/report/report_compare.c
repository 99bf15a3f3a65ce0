/* Several runs of one workload under different policies: figures side by side, the loss against time, and how
 * stale reads were. */
#include "harness/report/report_impl.h"

#include <math.h>
#include <string.h>

enum { ROWS = 12, COLUMN = 14 };
static const report_layout figures = {24, COLUMN}, over_time = {12, COLUMN};

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

typedef struct staleness {
    double reads, largest, mean;
    double bins[64]; /* of the ranks' histograms */
    int used;
} staleness;

static staleness staleness_of(const json_t *job)
{
    enum { MOST_BINS = 64 };
    staleness all = {0};
    size_t r, i;
    json_t *rank, *count;
    json_array_foreach(json_object_get(job, "ranks"), r, rank)
    {
        const json_t *s = json_object_get(rank, "staleness");
        double reads = json_number_value(json_object_get(s, "reads"));
        all.reads += reads;
        all.mean += reads * json_number_value(json_object_get(s, "mean"));
        all.largest = fmax(all.largest, json_number_value(json_object_get(s, "largest")));
        json_array_foreach(json_object_get(s, "histogram"), i, count)
        {
            if (i >= MOST_BINS) break;
            all.bins[i] += json_number_value(count);
            if ((int)i + 1 > all.used) all.used = (int)i + 1;
        }
    }
    all.mean /= all.reads; /* NaN: no reads */
    return all;
}

static double mean_staleness(const json_t *job, const char *path)
{
    (void)path;
    return staleness_of(job).mean;
}

void report_staleness(const json_t *job, text_buffer *out)
{
    enum { SHOWN_BINS = 10 };
    staleness s = staleness_of(job);
    if (s.reads == 0) return;
    text_append(
        out,
        "\nStaleness under %s: updates that parameters got between their read and the update made from it;\n"
        "%.0f reads, mean %.2f, largest %.0f\n",
        report_text_at(job, "policy"), s.reads, s.mean, s.largest);
    double rest = 0;
    for (int i = 0; i < s.used; i++) {
        if (i >= SHOWN_BINS)
            rest += s.bins[i];
        else
            text_append(out, "  %2d  %5.1f %%  %.*s\n", i, 100 * s.bins[i] / s.reads,
                        (int)lround(40 * s.bins[i] / s.reads), "########################################");
    }
    if (rest > 0) text_append(out, "  more %4.1f %%\n", 100 * rest / s.reads);
}

static void heads(const json_t *jobs, int width, const char *label, text_buffer *out)
{
    text_append(out, "%-*s", width, label);
    for (size_t i = 0; i < json_array_size(jobs); i++)
        text_append(out, "%*s", COLUMN, report_text_at(json_array_get(jobs, i), "policy"));
    text_append(out, "\n");
}

/* How the gradients of rings are reduced; "-" under parameter servers. */
static void text_rows(const json_t *jobs, text_buffer *out)
{
    static const struct {
        const char *label, *path;
    } rows[] = {{"all-reduce, library", "collective"}, {"  algorithm", "algorithm"}};
    for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++) {
        bool any = false;
        for (size_t i = 0; i < json_array_size(jobs); i++)
            any = any || report_text_at(json_array_get(jobs, i), rows[row].path)[0];
        if (!any) return;
        text_append(out, "%-*s", figures.label_width, rows[row].label);
        for (size_t i = 0; i < json_array_size(jobs); i++) {
            const char *text = report_text_at(json_array_get(jobs, i), rows[row].path);
            text_append(out, "%*s", COLUMN, text[0] ? text : "-");
        }
        text_append(out, "\n");
    }
}

static void loss_against_time(const json_t *jobs, text_buffer *out)
{
    double end = 0;
    for (size_t i = 0; i < json_array_size(jobs); i++) end = fmax(end, duration(json_array_get(jobs, i)));
    text_append(out,
                "\nTraining loss against time: the mean over the steps that ended since the row above\n");
    heads(jobs, over_time.label_width, "seconds", out);
    for (int row = 1; row <= ROWS; row++) {
        double from = end * (row - 1) / ROWS, until = end * row / ROWS;
        text_append(out, "%-*.3f", over_time.label_width, until);
        for (size_t i = 0; i < json_array_size(jobs); i++)
            report_cell(over_time, CELL_LOSS, loss_between(json_array_get(jobs, i), from, until), out);
        text_append(out, "\n");
    }
}

void report_compare(const json_t *runs, text_buffer *out)
{
    static const report_row rows[] = {
        {"ranks", CELL_COUNT, .path = "world_size"},
        {"measured steps per rank", CELL_COUNT, .path = "step_time.count"},
        {"step time, mean, ms", CELL_MILLISECONDS, .path = "step_time.mean_s"},
        {"  median", CELL_MILLISECONDS, .path = "step_time.median_s"},
        {"samples/s, all ranks", CELL_COUNT, .path = "throughput.samples_per_s"},
        {"loss, last step", CELL_LOSS, .path = "loss_last"},
        {"accuracy, test data, %", CELL_HUNDREDTHS, .path = "accuracy"},
        {"staleness, mean", CELL_MEAN, .value = mean_staleness}};
    const json_t *first = json_array_get(runs, 0);
    json_t *jobs = json_array();
    for (size_t i = 0; i < json_array_size(runs); i++)
        json_array_append(jobs, (json_t *)report_at(json_array_get(runs, i), "jobs.0"));
    report_workload(json_object_get(first, "workload"), out);
    text_append(out, "\n%s\n\n", report_text_at(first, "hardware_note"));
    heads(jobs, figures.label_width, "", out);
    report_rows(figures, jobs, rows, sizeof rows / sizeof rows[0], out);
    report_target_rows(figures, jobs, out);
    text_rows(jobs, out);
    report_notes(jobs, out);
    loss_against_time(jobs, out);
    for (size_t i = 0; i < json_array_size(jobs); i++) report_staleness(json_array_get(jobs, i), out);
    json_decref(jobs);
}
