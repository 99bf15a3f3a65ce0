/* The part of the text report that shows communication against computation. For this folder only. */
#ifndef HARNESS_REPORT_REPORT_OVERLAP_H
#define HARNESS_REPORT_REPORT_OVERLAP_H

#include "harness/report/report.h"

/* One column a job that communicates, each labeled with engine and policy; nothing where none does. */
void report_overlap(const json_t *result, text_buffer *out);

/* The line that marks a run over an emulated link, or nothing. */
void report_emulated(const json_t *result, text_buffer *out);

#endif
