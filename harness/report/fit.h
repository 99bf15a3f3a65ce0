/* Fits a straight line to times of different sizes: time = latency + bytes / bandwidth (Hockney, "The
 * communication challenge for MPP", 1994). */
#ifndef HARNESS_REPORT_FIT_H
#define HARNESS_REPORT_FIT_H

#include "harness/report/significance.h"

typedef struct line_fit {
    double latency_s, bandwidth_bytes_per_s;
    interval latency_interval, bandwidth_interval; /* 95 % */
    double r_squared;                              /* weighted like the fit */
    int points;
} line_fit;

/* Minimizes the squares of the relative errors, so that small sizes, which show the latency, count as much
 * as large ones. `count` is 3 or more with at least two different sizes, and times are positive. Otherwise
 * returns STATUS_CONFIG. Intervals use Student's t with count - 2 degrees of freedom. If the interval of
 * the slope contains 0, the upper limit of the bandwidth is infinite. */
status fit_line(const double *bytes, const double *seconds, int count, line_fit *out);

#endif
