#include "harness/report/fit.h"

#include <math.h>

/* The 0.975 quantile of Student's t with `freedom` degrees of freedom: tables up to 10, above them the
 * expansion in 1 / freedom (Abramowitz and Stegun, 26.7.5), right to 0.1 %. */
static double student_quantile(int freedom)
{
    static const double table[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228};
    const double z = 1.959964, z3 = z * z * z, z5 = z3 * z * z, v = freedom;
    if (freedom <= 10) return table[freedom - 1];
    return z + (z3 + z) / (4 * v) + (5 * z5 + 16 * z3 + 3 * z) / (96 * v * v);
}

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
