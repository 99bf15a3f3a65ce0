/* Shared by the files that write the report; nobody else includes it. */
#ifndef HARNESS_REPORT_REPORT_IMPL_H
#define HARNESS_REPORT_REPORT_IMPL_H

#include "common/base/text.h"

#include <jansson.h>
#include <stdbool.h>

/* report_values.c: what stands at "phases.forward_s.median_s" of an object: NULL, NaN, or "", where there is none. */
const json_t *report_at(const json_t *object, const char *path);
double report_number_at(const json_t *object, const char *path);
const char *report_text_at(const json_t *object, const char *path);

/* report_ps.c: nothing where the job has none of it. */
void report_staleness(const json_t *job, text_buffer *out);
void report_updates(const json_t *job, text_buffer *out);
void report_dataparallel_memory(const json_t *job, text_buffer *out);

#endif
