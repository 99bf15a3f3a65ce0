/* Computes the mean loss of a job in an interval of training time, and the staleness of the parameters that
 * the job's ranks read. */
#include "harness/report/report_impl.h"

#include <math.h>

double report_duration(const json_t *job)
{
    const json_t *ranks = json_object_get(job, "ranks");
    double longest = 0, known;
    for (size_t r = 0; r < json_array_size(ranks); r++)
        longest = fmax(longest, report_steps_sum(json_array_get(ranks, r), "step_s", 0, 1, &known));
    return longest;
}

double report_loss_between(const json_t *job, double from, double until)
{
    double sum = 0, count = 0;
    size_t r, i;
    json_t *rank, *step;
    json_array_foreach(json_object_get(job, "ranks"), r, rank)
    {
        report_steps steps = report_steps_of(rank);
        const json_t *losses = json_object_get(steps.of, "losses");
        double now = 0;
        json_array_foreach(json_object_get(steps.of, "step_s"), i, step)
        {
            now += json_number_value(step);
            const json_t *loss = json_array_get(losses, i);
            if (now <= from || now > until || !json_is_number(loss)) continue;
            sum += report_steps_in(&steps, i) * json_number_value(loss);
            count += report_steps_in(&steps, i);
        }
    }
    return count > 0 ? sum / count : NAN;
}

report_reads report_reads_of(const json_t *job)
{
    report_reads all = {0};
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
            if (i >= sizeof all.bins / sizeof all.bins[0]) break;
            all.bins[i] += json_number_value(count);
            if ((int)i + 1 > all.used) all.used = (int)i + 1;
        }
    }
    all.mean /= all.reads; /* NaN without reads */
    return all;
}

void report_staleness(const json_t *job, text_buffer *out)
{
    enum { SHOWN_BINS = 10 };
    report_reads s = report_reads_of(job);
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
