/* Renders the explanation of a difference from its JSON as text of at most 80 columns. */
#include "harness/compare/why.h"
#include "harness/report/report.h"

#include <stdio.h>

enum { COLUMNS = 80, WORDS_AT = 42 };
static const double mib = 1 << 20;

static void append_row(const char *name, double step_ns, double bytes, const char *differs, text_buffer *out)
{
    char line[640];
    snprintf(line, sizeof line, "%-15s%+12.3f%+13.1f  %.500s", name, 1e-6 * step_ns, bytes / mib, differs);
    text_append_wrapped(out, line, WORDS_AT, COLUMNS);
}

void why_report(const json_t *e, text_buffer *out)
{
    double a_ns = report_number_at(e, "a_step_ns"), b_ns = report_number_at(e, "b_step_ns"),
           a = report_number_at(e, "a_memory_bytes"), b = report_number_at(e, "b_memory_bytes");
    const char *largest = report_text_at(e, "largest");
    size_t i;
    json_t *row;
    text_append(out, "A  %s\nB  %s\nSIMULATED: step %.3f -> %.3f ms, peak memory %.1f -> %.1f MiB\n",
                report_text_at(e, "a"), report_text_at(e, "b"), 1e-6 * a_ns, 1e-6 * b_ns, a / mib, b / mib);
    if (json_is_true(json_object_get(e, "equal"))) {
        text_append(out, "No difference is shown.\n");
        return;
    }
    text_append(out, "%-15s%12s%13s  A -> B\n", "mechanism", "step, ms", "memory, MiB");
    json_array_foreach(json_object_get(e, "mechanisms"), i, row)
        append_row(report_text_at(row, "mechanism"), report_number_at(row, "step_ns"),
                   report_number_at(row, "memory_bytes"), report_text_at(row, "differs"), out);
    append_row("sum", b_ns - a_ns, b - a, "", out);
    if (*largest)
        text_append(out, "The largest part is %s. Each row switches one mechanism, after those above.\n",
                    largest);
}
