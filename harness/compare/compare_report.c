/* Renders a comparison from its JSON as text of at most 80 columns. */
#include "harness/compare/compare.h"
#include "harness/report/report.h"
#include "harness/report/significance.h"

#include <math.h>
#include <string.h>

/* Returns "slower", "faster", ..., "~" if no difference is shown, or "" if there is no verdict. */
static const char *word_for(const char *metric, const char *verdict)
{
    if (strcmp(verdict, "too few runs") == 0 || strcmp(verdict, "none") == 0) return "";
    if (strcmp(verdict, "not shown") == 0) return "~";
    if (strcmp(metric, COMPARE_STEP_TIME) == 0 && strcmp(verdict, "equal") != 0)
        return strcmp(verdict, "more") == 0 ? "slower" : "faster";
    return verdict;
}

static void append_row(const json_t *row, text_buffer *out)
{
    const char *metric = report_text_at(row, "metric");
    cell_format format = strstr(metric, "memory") ? CELL_BYTES : strstr(metric, "/s") ? CELL_RATE : CELL_TIME;
    text_append(out, "%-28s", metric);
    report_cell(11, format, report_number_at(row, "a_median"), out);
    report_cell(11, format, report_number_at(row, "b_median"), out);
    text_append(out, "%8.3f", report_number_at(row, "ratio"));
    if (isnan(report_number_at(row, "ratio_low")))
        text_append(out, "%14s", "");
    else
        text_append(out, "  %5.3f-%-6.3f", report_number_at(row, "ratio_low"),
                    report_number_at(row, "ratio_high"));
    text_append(out, " %s\n", word_for(metric, report_text_at(row, "verdict")));
}

static bool has_verdict(const json_t *row, const char *verdict)
{
    return strcmp(report_text_at(row, "verdict"), verdict) == 0;
}

/* Appends the verdict on the step time, or the number of runs that a verdict needs. */
static void append_verdict(const json_t *job, const char *unit, text_buffer *out)
{
    const json_t *step = compare_step_time(job);
    size_t r;
    json_t *row;
    if (!step)
        text_append(out, "no verdict: expected a step time on both sides\n");
    else if (has_verdict(step, "too few runs"))
        text_append(out, "no verdict: at least %.0f %s are needed, there are %.0f and %.0f\n",
                    report_number_at(step, "least_runs"), unit, report_number_at(step, "a_runs"),
                    report_number_at(step, "b_runs"));
    else if (has_verdict(step, "none"))
        text_append(out, "no verdict: one side is simulated, so B/A contains the error of the model\n");
    else if (!has_verdict(step, "not shown") && !isnan(report_number_at(step, "p")))
        text_append(out, "shown, p = %.2g\n", report_number_at(step, "p"));
    json_array_foreach(json_object_get(job, "metrics"), r, row)
    {
        if (row == step || !has_verdict(row, "too few runs")) continue;
        text_append(out, "no verdict on the other figures: at least %.0f %s are needed\n",
                    report_number_at(row, "least_runs"), unit);
        return;
    }
}

void compare_report(const json_t *comparison, text_buffer *out)
{
    bool interleaved = json_is_true(json_object_get(comparison, "interleaved"));
    const char *unit = interleaved ? "rounds" : "runs per side";
    double steps = report_number_at(comparison, "step_tests"),
           others = report_number_at(comparison, "other_tests");
    size_t i, r;
    json_t *job, *row;
    text_append(out, "A  %s\nB  %s\n", report_text_at(comparison, "a"), report_text_at(comparison, "b"));
    if (steps + others > 0)
        text_append(out, "%s\n",
                    interleaved ? "interleaved rounds, one run of each per round"
                                : "not interleaved: drift of the machine between A and B is not excluded");
    if (steps > 1) text_append(out, "p is corrected (Holm) for %.0f step times\n", steps);
    json_array_foreach(json_object_get(comparison, "comparisons"), i, job)
    {
        const json_t *rows = json_object_get(job, "metrics");
        const char *label = report_text_at(job, "label");
        bool of_a = json_is_true(json_object_get(job, "a_simulated")),
             of_b = json_is_true(json_object_get(job, "b_simulated"));
        text_append(out, "\n%-28s%11s%11s%8s  %s\n", *label ? label : report_job_name(job).text, "A", "B",
                    "B/A",
                    of_a && of_b ? "SIMULATED"
                    : of_a       ? "A SIMULATED"
                    : of_b       ? "B SIMULATED"
                                 : "95 % interval");
        json_array_foreach(rows, r, row)
        {
            append_row(row, out);
            if (has_verdict(row, "not shown"))
                text_append(out, "  ~ not shown, p = %.2g; %.1f %% would be; 5 %% would take %.0f %s\n",
                            report_number_at(row, "p"), 100 * report_number_at(row, "detectable"),
                            report_number_at(row, "runs_for_5_percent"), unit);
        }
        append_verdict(job, unit, out);
    }
}
