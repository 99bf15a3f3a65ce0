/* Fits a straight line to times of different sizes: time = latency + bytes / bandwidth (Hockney, "The
 * communication challenge for MPP", 1994). */
#ifndef HARNESS_REPORT_FIT_H
#define HARNESS_REPORT_FIT_H

#include "harness/report/significance.h"

typedef struct line_fit {
    double latency_s, bandwidth_bytes_per_s;
    interval latency_interval, bandwidth_interval; /* 95 % intervals */
    double r_squared;                              /* weighted as in the fit */
    int points;
} line_fit;

/* Minimizes the sum of the squares of the relative errors, so that small sizes, which show the latency, count
 * as much as large ones. Returns STATUS_CONFIG if `count` is less than 3, if all sizes are equal, or if a
 * time is not positive. Intervals use Student's t with count - 2 degrees of freedom. If the interval of the
 * slope contains 0, the upper limit of the bandwidth is infinite. */
status fit_line(const double *bytes, const double *seconds, int count, line_fit *out);

#endif
