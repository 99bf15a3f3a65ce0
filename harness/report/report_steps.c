#include "harness/report/report.h"

#include <math.h>

report_steps report_steps_of(const json_t *job_or_rank)
{
    const json_t *stretches = json_object_get(job_or_rank, "stretches");
    const json_t *of = json_is_object(stretches) ? stretches : job_or_rank;
    return (report_steps){of, of == stretches ? json_object_get(of, "steps") : NULL};
}

double report_steps_in(const report_steps *s, size_t i)
{
    return s->counts ? json_number_value(json_array_get(s->counts, i)) : 1;
}

double report_steps_sum(const json_t *job_or_rank, const char *key, int turn, int turns, double *known)
{
    const report_steps s = report_steps_of(job_or_rank);
    const json_t *values = json_object_get(s.of, key),
                 *counts = json_object_get(json_object_get(s.of, "known"), key);
    size_t size = json_array_size(json_object_get(s.of, "step_s"));
    double sum = 0, all = 0, begin = 0;
    for (size_t i = 0; i < size; i++) all += report_steps_in(&s, i);
    const double from = floor(all * turn / turns), until = floor(all * (turn + 1) / turns);
    *known = 0;
    for (size_t i = 0; i < size; i++) {
        const json_t *value = json_array_get(values, i);
        double steps = report_steps_in(&s, i), end = begin + steps,
               part = (fmin(end, until) - fmax(begin, from)) / steps;
        begin = end;
        if (!(part > 0) || !json_is_number(value)) continue;
        sum += part * json_number_value(value);
        *known += part * (counts ? json_number_value(json_array_get(counts, i)) : steps);
    }
    return sum;
}
