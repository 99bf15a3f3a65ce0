#include "harness/report/fit.h"

#include <math.h>

status fit_line(const double *bytes, const double *seconds, int count, line_fit *out)
{
    double w = 0, wx = 0, wy = 0, sxx = 0, sxy = 0, syy = 0, residual = 0;
    for (int i = 0; i < count; i++) {
        if (!(seconds[i] > 0)) return fail(STATUS_CONFIG, "--fit: expected times above 0");
        double weight = 1 / (seconds[i] * seconds[i]);
        w += weight;
        wx += weight * bytes[i];
        wy += weight * seconds[i];
    }
    for (int i = 0; i < count; i++) {
        double weight = 1 / (seconds[i] * seconds[i]), x = bytes[i] - wx / w, y = seconds[i] - wy / w;
        sxx += weight * x * x;
        sxy += weight * x * y;
        syy += weight * y * y;
    }
    if (count < 3 || !(sxx > 0)) return fail(STATUS_CONFIG, "--fit: expected 3 sizes or more, got %d", count);
    double slope = sxy / sxx, start = wy / w - slope * wx / w;
    for (int i = 0; i < count; i++) {
        double error = (seconds[i] - start - slope * bytes[i]) / seconds[i];
        residual += error * error;
    }
    double variance = residual / (count - 2), t = student_quantile(count - 2);
    double slope_error = t * sqrt(variance / sxx),
           start_error = t * sqrt(variance * (1 / w + wx / w * (wx / w) / sxx));
    *out = (line_fit){.latency_s = start,
                      .bandwidth_bytes_per_s = slope > 0 ? 1 / slope : INFINITY,
                      .latency_interval = {start - start_error, start + start_error},
                      .bandwidth_interval = {slope + slope_error > 0 ? 1 / (slope + slope_error) : INFINITY,
                                             slope > slope_error ? 1 / (slope - slope_error) : INFINITY},
                      .r_squared = syy > 0 ? 1 - residual / syy : 1,
                      .points = count};
    return STATUS_OK;
}
