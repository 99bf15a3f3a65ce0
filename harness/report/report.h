/* Reports rendered from a run's JSON (docs/results.md), which is the only source of their figures. */
#ifndef HARNESS_REPORT_REPORT_H
#define HARNESS_REPORT_REPORT_H

#include "common/base/text.h"

#include <jansson.h>

/* The side-by-side text report. */
void report_text(const json_t *result, text_buffer *out);

/* The memory of a run that was only planned (harness/run/plan.h). */
void report_plan(const json_t *plan, text_buffer *out);

/* Several results of runs of one engine each: what `harness compare` prints. */
void report_compare(const json_t *runs, text_buffer *out);

#endif
