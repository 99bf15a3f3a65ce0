#include "harness/compare/why.h"

#include "harness/report/report.h"

#include <math.h>
#include <string.h>

/* The collectives of a step. The sizes count only reductions. */
typedef struct calls {
    double count, gathers, elements, largest, element_bytes, transfer_ns;
} calls;

static calls calls_of(const json_t *source)
{
    calls c = {0};
    const json_t *item;
    size_t i;
    json_array_foreach(json_object_get(source, "collectives"), i, item)
    {
        const char *name = report_text_at(item, "name");
        double elements = report_number_at(item, "elements");
        c.count++;
        c.transfer_ns += report_number_at(item, "transfer_ns");
        c.gathers += strcmp(name, "all_gather") == 0;
        if (strcmp(name, "all_reduce") != 0 && strcmp(name, "reduce_scatter") != 0) continue;
        c.elements += elements;
        if (elements <= c.largest) continue;
        c.largest = elements;
        c.element_bytes = report_number_at(item, "element_bytes");
    }
    return c;
}

const char *why_collectives(const json_t *a, const json_t *b, text_buffer *words)
{
    const double least = 0.2; /* least change of the time of the same collectives */
    calls x = calls_of(a), y = calls_of(b);
    bool compiled = json_is_true(json_object_get(b, "compiled"));
    const struct {
        const char *name, *what;
        bool changed;
        double from, to;
    } rows[] = {
        {"units", "all-gathers", x.gathers != y.gathers, x.gathers, y.gathers},
        {"gradients", "bytes sent per element", x.element_bytes != y.element_bytes, x.element_bytes,
         y.element_bytes},
        {"reductions", "millions of reduced elements", fabs(y.elements - x.elements) > 0.01 * x.elements,
         1e-6 * x.elements, 1e-6 * y.elements},
        {"readiness", "compiled graphs", json_is_true(json_object_get(a, "compiled")) != compiled, !compiled,
         compiled},
        {"buckets", "collectives", x.count != y.count, x.count, y.count},
        {"link", "ms of collectives", fabs(y.transfer_ns - x.transfer_ns) > least * x.transfer_ns,
         1e-6 * x.transfer_ns, 1e-6 * y.transfer_ns},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!rows[i].changed) continue;
        text_append(words, "%s %.4g -> %.4g", rows[i].what, rows[i].from, rows[i].to);
        return rows[i].name;
    }
    return NULL;
}

int64_t why_waiting_ns(const why_job *job)
{
    double recorded = report_number_at(job->source, "recorded_step_ns");
    double waiting = report_number_at(job->source, "waiting_ns");
    return recorded > 0 ? llround(waiting / recorded * (double)job->file[WHY_STEP_NS]) : 0;
}

bool why_traces_recompute(const json_t *a, const json_t *b)
{
    return (report_number_at(a, "recomputed_ns") > 0) != (report_number_at(b, "recomputed_ns") > 0);
}

double why_spread(const json_t *source)
{
    double least = INFINITY, most = 0;
    const json_t *item;
    size_t i;
    json_array_foreach(json_object_get(source, "step_times_ns"), i, item)
    {
        least = fmin(least, json_number_value(item));
        most = fmax(most, json_number_value(item));
    }
    return most > 0 ? most / least - 1 : 0;
}
